"""What a page shows first: verdict, cost and a chart, on one scale."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_fixtures import comparison_of, page_of
from PIL import Image
from report_fixtures import evaluate, synthetic_run
from shapes import make_pictures

from bas_opd.report.charts.model import Bar
from bas_opd.report.charts.training import phase_chart
from bas_opd.report.comparison import compare_runs, cost_sentence, entry_tiles
from bas_opd.report.pages.examples import varied
from bas_opd.report.pages.templates import template
from bas_opd.report.run import read_run
from bas_opd.types import Example

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
        f"{mine['calls']:,} teacher calls, {mine['total_tokens']:,} total tokens",
    )
    page, _ = comparison_of(tmp_path / "out", *runs)
    assert sentence in page.partition("<h1>")[2].partition("</h1>")[0].replace("&nbsp;", " ")
    assert page.index('class="tiles"') < page.index('id="runs"')


def test_a_headline_never_breaks_before_a_percent_sign(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    for page in (page_of(runs[0]), comparison_of(tmp_path / "out", *runs)[0]):
        headline = page.partition("<h1>")[2].partition("</h1>")[0]
        assert "&nbsp;%" in headline
        assert " %" not in headline


def test_an_accuracy_has_one_notation(runs: tuple[Path, Path], tmp_path: Path) -> None:
    """Those of the paper's layout of costs are shares of tokens, with two digits as there."""
    for page in (page_of(runs[0]), comparison_of(tmp_path / "out", *runs)[0]):
        evaluated = page.partition('id="evaluation"')[2].partition("</section>")[0]
        assert "50.0 %" in evaluated
        assert "50.00 %" not in evaluated


def test_examples_of_one_kind_show_pictures_that_differ(tmp_path: Path) -> None:
    """Two pictures, each under three names with another brightness."""
    wide = Image.linear_gradient("L")
    examples = []
    for number, picture in enumerate([wide, wide.rotate(90)] * 3):
        image = tmp_path / f"{number}.png"
        picture.point(lambda value, number=number: value - 5 * number).save(image)
        examples.append(Example(id=str(number), image=image, crop=None, question="", answer=""))
    one, other = varied(examples[::2] + examples[1::2], 2)
    assert int(one.id) % 2 != int(other.id) % 2
    (third,) = varied(examples[2::2] + examples[3::2], 1, shown=[one])
    assert int(third.id) % 2 != int(one.id) % 2


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
