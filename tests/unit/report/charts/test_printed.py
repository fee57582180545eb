"""What the paper's figures show, in their page form and their print form."""

from __future__ import annotations

import math
import re
import sys
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from audit_fixtures import PROVENANCE

from bas_opd.audit.records import (
    Candidate,
    CheckpointGeometry,
    GeometryAudit,
    Pair,
    UtilityAudit,
)
from bas_opd.errors import ConfigError, DataError
from bas_opd.report.arms import Arm, over_seeds
from bas_opd.report.charts.accuracy import accuracy_by_part, accuracy_cost, budget_sweep
from bas_opd.report.charts.audits import geometry_figures, utility_figures
from bas_opd.report.charts.model import Bar, Chart, Line, Panel, Text
from bas_opd.report.charts.printed import printed, save
from bas_opd.report.charts.svg import panels, svg
from bas_opd.stats.resampling import Estimate


def estimate(value: float, reach: float = 0.02) -> Estimate:
    return Estimate(value=value, low=value - reach, high=value + reach)


def arm(name: str, budget: float | None, mean: float, share: float | None = None) -> Arm:
    parts = {"colour": estimate(mean - 0.1), "count": estimate(mean + 0.1)}
    return Arm(
        name=name,
        budget=budget,
        parts=parts,
        accuracy=estimate(mean),
        metric="mean of kinds",
        token_share=share,
    )


ARMS = [
    arm("base", None, 0.4),
    arm("full", 1.0, 0.55, 1.0),
    arm("learned10", 0.1, 0.5, 0.08),
    arm("learned25", 0.25, 0.6, 0.16),
]


def utility_audit(predicted: bool = True, **changes: Any) -> UtilityAudit:
    candidates = [
        Candidate(
            batch=batch,
            row=row,
            example=f"{batch}-{row}",
            kind="colour",
            tokens=5,
            predicted=float(row) if predicted else None,
            entropy=float(-row),
            utility=0.01 * (row + 1),
        )
        for batch in range(4)
        for row in range(8)
    ]
    values = {**PROVENANCE, "step": 111, "dropped": 0, "candidates": candidates, **changes}
    return UtilityAudit(**values)


def geometry_audit(**changes: Any) -> GeometryAudit:
    pair = Pair(selected_norm=2.0, unselected_norm=1.0, cosine=0.5, selected=2, unselected=6)
    checkpoints = [
        CheckpointGeometry(step=step, pairs=[pair, pair], mean=pair) for step in (18, 36)
    ]
    return GeometryAudit(**{**PROVENANCE, "checkpoints": checkpoints, **changes})


def utility_charts(audit: UtilityAudit) -> list[Chart]:
    found = utility_figures(audit)
    return [*found.figure, *found.more]


def gradients(**changes: Any) -> Chart:
    return geometry_figures(geometry_audit(**changes)).figure[0]


def bars(panel: Panel) -> list[Bar]:
    return [shape for shape in panel.shapes if isinstance(shape, Bar)]


def heights(panel: Panel) -> list[float]:
    return [bar.y[1] for bar in bars(panel)]


def words(panel: Panel) -> list[str]:
    return [shape.words for shape in panel.shapes if isinstance(shape, Text)]


def test_bars_are_as_high_as_the_accuracies_with_the_mean_last() -> None:
    (panel,) = accuracy_by_part(ARMS).panels
    assert heights(panel)[:3] == pytest.approx([0.3, 0.5, 0.4])
    assert len(heights(panel)) == 3 * len(ARMS)
    assert [name for _, name in panel.x.ticks] == ["colour", "count", "mean of kinds"]


def test_a_sweep_has_a_panel_for_each_part_and_marks_the_maximum_and_full_querying() -> None:
    panels = budget_sweep(ARMS).panels
    assert [panel.title for panel in panels] == ["colour", "count", "mean of kinds"]
    lines = {
        shape.style: shape
        for shape in panels[-1].shapes
        if isinstance(shape, Line) and shape.form != "interval"
    }
    assert lines["ranked"].points == ((0.1, 0.5), (0.25, 0.6), (1.0, 0.55))
    assert {y for _, y in lines["limit"].points} == {0.55}
    (best,) = [shape for shape in panels[-1].shapes if getattr(shape, "style", "") == "best"]
    assert getattr(best, "at", None) == (0.25, 0.6)


def test_a_sweep_of_one_budget_is_refused() -> None:
    with pytest.raises(DataError, match="two budgets"):
        budget_sweep(ARMS[:2])


def test_cost_is_a_share_of_full_querying_and_the_base_a_line() -> None:
    reached, cost = accuracy_cost(ARMS).panels
    assert [bar.x[1] for bar in bars(cost)] == pytest.approx([1, 0.08, 0.16])
    assert words(cost) == ["100.0 %", "8.0 %", "16.0 %"]
    assert [name for _, name in reached.y.ticks] == ["full", "learned10", "learned25"]
    assert words(reached) == ["base"]
    lines = [shape for shape in reached.shapes if isinstance(shape, Line)]
    (line,) = [each for each in lines if each.form != "interval"]
    assert {x for x, _ in line.points} == {0.4}


def test_cost_without_full_querying_is_refused() -> None:
    with pytest.raises(DataError, match=r"select\.policy=full"):
        accuracy_cost([arm("learned25", 0.25, 0.6)])


def test_the_diagnostics_show_every_ranking_the_bands_and_their_tests() -> None:
    capture, bands, _ = utility_charts(utility_audit())
    assert [key.label for key in capture.keys] == ["oracle", "learned", "entropy", "random"]
    assert heights(bands.panels[0]) == pytest.approx([0.075, 0.055, 0.035, 0.015])
    assert len([each for each in words(bands.panels[0]) if each.startswith("p = ")]) == 3
    assert "32 candidates of 4 training batches" in capture.label


def test_a_single_batch_is_drawn_without_intervals() -> None:
    alone = [each for each in utility_audit().candidates if each.batch == 0]
    _, bands, _ = utility_charts(utility_audit(candidates=alone))
    assert heights(bands.panels[0]) == pytest.approx([0.075, 0.055, 0.035, 0.015])
    assert "whisker" not in svg(bands)


def test_without_predictions_only_the_capture_is_drawn() -> None:
    (capture,) = utility_charts(utility_audit(predicted=False))
    assert "learned" not in [key.label for key in capture.keys]


def test_the_geometry_has_a_panel_for_each_checkpoint_with_its_ratio_and_cosine() -> None:
    panels = gradients().panels
    assert [panel.title for panel in panels] == ["step 18", "step 36"]
    assert panels[0].details == ("ratio 2.00", "cosine 0.500")
    tips = {
        tuple(round(end, 6) for end in shape.points[-1])
        for shape in panels[0].shapes
        if isinstance(shape, Line)
    }
    assert tips == {(1.0, 0.0), (0.25, round(0.5 * math.sqrt(0.75), 6))}


def test_a_student_in_place_of_the_teacher_is_named_on_every_chart() -> None:
    own = [*utility_charts(utility_audit()), gradients()]
    student = [*utility_charts(utility_audit(teacher="student")), gradients(teacher="student")]
    assert not any("Teacher = student" in each.caption + each.label for each in own)
    for each in student:
        assert "Teacher = student." in each.caption
        assert "Teacher = student: the frozen student" in each.label


@pytest.mark.parametrize(
    "chart",
    [
        accuracy_by_part(ARMS),
        budget_sweep(ARMS),
        accuracy_cost(ARMS),
        *utility_charts(utility_audit()),
        gradients(),
    ],
    ids=lambda chart: chart.title,
)
def test_print_shows_the_drawing_of_the_page_with_its_legend_and_a_note(chart: Chart) -> None:
    in_print, on_page = printed([chart], note="the note"), unescape(svg(chart))
    assert re.sub("<title>.*?</title>", "", panels(chart)) in in_print
    for panel in chart.panels:
        named = [name for _, name in (*panel.x.ticks, *panel.y.ticks)]
        for each in (panel.x.name, panel.y.name, panel.title, *named, *words(panel)):
            assert each in on_page
    assert all(f">{key.label}</text>" in in_print for key in chart.keys)
    assert ">the note</text>" in in_print


def test_several_charts_have_letters_and_a_figure_needs_no_style_sheet_but_its_own() -> None:
    figure = printed(utility_charts(utility_audit()), note="s")
    assert re.findall(r">(\([a-z]\)) ", figure) == ["(a)", "(b)", "(c)"]
    assert "var(" not in figure
    assert not re.search(r"(href|src)=", figure)


def test_a_long_name_is_printed_whole() -> None:
    name = "learned-25, select.exploration=0.0, run.lr=0.001"
    figure = printed([accuracy_cost([*ARMS, arm(name, 0.25, 0.6, 0.16)])], note="s")
    assert f">{name}</text>" in figure


def test_a_figure_is_saved_as_svg_and_pdf_and_the_same_numbers_give_the_same_bytes(
    tmp_path: Path,
) -> None:
    for name in ("a", "b"):
        files = save(printed([accuracy_cost(ARMS)], note="s"), tmp_path / name)
        assert [file.suffix for file in files] == [".svg", ".pdf"]
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    pdf = (tmp_path / "a.pdf").read_bytes()
    assert pdf == (tmp_path / "b.pdf").read_bytes()
    assert b"/FontFile2" in pdf, "the font is embedded"


def test_without_svglib_the_error_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "svglib.svglib", None)
    with pytest.raises(ConfigError, match="pip install svglib"):
        save(printed([accuracy_cost(ARMS)], note="s"), tmp_path / "a")


def test_one_seed_has_no_interval() -> None:
    assert over_seeds([0.5]) == Estimate(value=0.5, low=0.5, high=0.5)
    several = over_seeds([0.4, 0.6])
    assert several.low < 0.4 < 0.6 < several.high
