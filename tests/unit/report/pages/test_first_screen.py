"""What a page shows first: verdict, cost and a chart, on one scale."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_fixtures import comparison_of, page_of
from report_fixtures import evaluate, synthetic_run
from shapes import make_pictures

from bas_opd.report.charts.model import Bar
from bas_opd.report.charts.training import phase_chart
from bas_opd.report.comparison import compare_runs, cost_sentence, entry_tiles
from bas_opd.report.pages.templates import template
from bas_opd.report.run import read_run

HALF = [True, False] * 20


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    data = make_pictures(tmp_path / "data", n=12, seed=4)
    learned = synthetic_run(tmp_path / "learned", data, steps=3)
    full = synthetic_run(tmp_path / "full", data, steps=3, policy="full")
    for run in (learned, full):
        evaluate(run, HALF)
    return learned, full


def test_the_headline_and_tiles_of_a_comparison_have_the_cost(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    comparison = compare_runs([read_run(run) for run in runs])
    mine, full = (entry.run.totals for entry in comparison.entries)
    share = 100 * mine["calls"] / full["calls"]
    sentence = cost_sentence(comparison)
    assert f"learned-25 made {share:.1f} % of the teacher calls" in sentence
    assert entry_tiles(comparison)[0] == (
        "learned-25, mean of kinds",
        "50.0 %",
        f"{mine['calls']:,} calls, {mine['total_tokens']:,} total tokens",
    )
    page, _ = comparison_of(tmp_path / "out", *runs)
    assert sentence in page.partition("<h1>")[2].partition("</h1>")[0]
    assert page.index('class="tiles"') < page.index('id="runs"')


def test_the_times_of_several_runs_have_one_scale(runs: tuple[Path, Path]) -> None:
    run = read_run(runs[0])
    for longest, end in ((None, 1.0), (2 * run.seconds, 0.5)):
        chart = phase_chart(run, longest)
        assert chart is not None
        bars = [shape for shape in chart.panels[0].shapes if isinstance(shape, Bar)]
        assert bars[-1].x[1] == pytest.approx(end)


def test_a_report_of_one_run_draws_accuracy_and_cost(runs: tuple[Path, Path]) -> None:
    page = page_of(runs[0])
    assert page.index('id="accuracy-and-cost"') < page.index('id="budget"')
    assert "scored tokens vs. full" in page


def test_a_table_that_scrolls_has_a_shadow_but_not_in_print() -> None:
    style = template("style.css.jinja").render()
    assert "no-repeat local" in style
    assert ".wide { overflow: visible; background: none; }" in style
