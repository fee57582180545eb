"""Where the ticks of an axis stand, and what colour a phase has."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_fixtures import synthetic_run

from bas_opd.data.records import PreparedSet
from bas_opd.report.charts.model import (
    DRAWN,
    Bar,
    Chart,
    axis,
    line_chart,
    percent_tick,
    value_axis,
)
from bas_opd.report.charts.training import budget_chart, phase_chart
from bas_opd.report.run import read_run


def ticks(chart: Chart) -> list[float]:
    return [value for axis in (chart.panels[0].x, chart.panels[0].y) for value, _ in axis.ticks]


@pytest.mark.parametrize("steps", [*range(2, 40), 111, 1_000])
def test_what_is_counted_in_whole_numbers_has_whole_ticks(steps: int) -> None:
    counts = [(float(step), float(step % 3)) for step in range(1, steps + 1)]
    chart = line_chart({("", "ranked"): counts}, title="", label="", x="step", y="rounds")
    assert len(chart.panels[0].x.ticks) >= 2
    # Of many steps, means are drawn, and the mean of counts is no count.
    shown = ticks(chart) if steps <= DRAWN else [value for value, _ in chart.panels[0].x.ticks]
    assert all(value == int(value) for value in shown)
    assert len(axis("step", (0.5, steps + 0.5), whole=True).ticks) <= 11


def test_other_values_keep_their_ticks() -> None:
    assert [value for value, _ in value_axis("", [0.1, 0.9]).ticks] == [0, 0.25, 0.5, 0.75, 1]
    shares = value_axis("", [0.0, 1.0], tick=percent_tick)
    assert [words for _, words in shares.ticks] == ["0 %", "25 %", "50 %", "75 %", "100 %"]


@pytest.mark.parametrize("steps", [2, 12])
def test_a_budget_in_calls_is_drawn_at_whole_calls(
    steps: int, pictures: PreparedSet, tmp_path: Path
) -> None:
    run = read_run(synthetic_run(tmp_path / "run", pictures, steps=steps))
    chart = budget_chart(run)
    assert chart is not None
    assert all(value == int(value) for value in ticks(chart))


def test_a_phase_has_the_same_colour_whatever_the_method(
    pictures: PreparedSet, tmp_path: Path
) -> None:
    styles: dict[str, set[str]] = {}
    for method in ("bas-opd", "sft", "grpo"):
        chart = phase_chart(
            read_run(synthetic_run(tmp_path / method, pictures, steps=2, method=method))
        )
        assert chart is not None
        bars = [shape for shape in chart.panels[0].shapes if isinstance(shape, Bar)]
        assert [bar.style for bar in bars] == [key.style for key in chart.keys]
        for key in chart.keys:
            styles.setdefault(key.label, set()).add(key.style)
    assert all(len(each) == 1 for each in styles.values())
    assert {"teacher", "rollout", "student"} <= styles.keys()
