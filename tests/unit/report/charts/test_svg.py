"""The page form of charts: axes, ticks and shapes."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_fixtures import synthetic_run

from bas_opd.data.records import PreparedSet
from bas_opd.report.charts.model import (
    Axis,
    Bar,
    Chart,
    Key,
    Line,
    Mark,
    Panel,
    Shape,
    Text,
    axis,
    column_chart,
    line_chart,
    named_rows,
    round_ends,
    round_step,
    short_number,
    whisker,
)
from bas_opd.report.charts.svg import sample, svg
from bas_opd.report.charts.training import budget_chart
from bas_opd.report.run import read_run

HOSTILE = '"><script>alert(1)</script>\u202e'


def chart(*shapes: Shape, words: str = "words") -> Chart:
    named = Axis(name=words, high=10, ticks=((1, words),), has_grid=True)
    panel = Panel(x=named, y=named, shapes=shapes, title=words, details=(words,))
    return Chart(title=words, label=words, panels=(panel,))


def drawn(chart: Chart) -> ET.Element:
    return ET.fromstring(svg(chart))


def count(chart: Chart, style: str) -> int:
    return sum(style in element.get("class", "") for element in drawn(chart).iter())


@pytest.mark.parametrize(
    ("width", "step"), [(0.9, 1), (1, 1), (1.2, 2), (2.2, 2.5), (3, 5), (7, 10), (0.013, 0.02)]
)
def test_steps_between_ticks_are_round(width: float, step: float) -> None:
    assert round_step(width) == pytest.approx(step)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.booleans())
def test_the_ends_of_an_axis_hold_every_value(values: list[float], zero: bool) -> None:
    low, high = round_ends(values, zero=zero)
    slack = 1e-6 * (high - low)
    assert low < high
    assert all(low - slack <= value <= high + slack for value in values)


def test_ticks_are_within_their_axis() -> None:
    assert [value for value, _ in axis("step", (1, 111)).ticks] == [25, 50, 75, 100]
    assert [short_number(value) for value in (0, 0.05, 2500, 2e-6)] == [
        "0",
        "0.05",
        "2,500",
        "2e-6",
    ]


def test_every_text_of_a_drawing_is_escaped() -> None:
    shapes = (
        Line(points=((0, 0), (1, 1)), style=HOSTILE, form="arrow"),
        Mark(at=(1, 1), style=HOSTILE, title=HOSTILE),
        Bar(x=(0, 1), y=(0, 1), style=HOSTILE, title=HOSTILE),
        whisker(1, (0, 1), HOSTILE),
        Text(at=(1, 1), words=HOSTILE),
    )
    legend = sample(Key(label=HOSTILE, style=HOSTILE, forms=("line", "mark", "bar")))
    for text in (svg(chart(*shapes, words=HOSTILE)), legend):
        assert "<script" not in text
        assert "\u202e" not in text
        ET.fromstring(text)


def test_a_chart_has_its_accessible_label() -> None:
    empty = Chart(title="", label="words", panels=(Panel(x=Axis(), y=Axis(), shapes=()),))
    lines = line_chart({("one", "ranked"): [(1, 2.0)]}, title="", label="words", x="", y="")
    for each in (chart(), empty, lines, replace(empty, is_stretched=True)):
        assert drawn(each).get("aria-label") == "words"


def test_a_step_over_its_budget_looks_different(pictures: PreparedSet, tmp_path: Path) -> None:
    run = read_run(synthetic_run(tmp_path / "run", pictures, steps=3))
    over = run.steps[1].model_copy(update={"budget": run.queries[1].calls - 1})
    made = budget_chart(replace(run, steps=(run.steps[0], over, run.steps[2])))
    assert made is not None
    assert count(made, "bar ranked") == 2
    assert count(made, "bar over") == 1


def test_an_interval_that_is_unknown_is_not_drawn() -> None:
    columns = column_chart(
        ["a", "b"], [1, 2], [(0, 3), None], title="", label="", x_name="", y_name=""
    )
    lines = line_chart(
        {("", "ink"): [(1, 1.0), (2, 2.0)]},
        title="",
        label="",
        x="",
        y="",
        intervals=[(0, 3), None],
    )
    for each in (columns, lines):
        assert count(each, "whisker ink") == 3  # A line and its two ends.


def test_styles_differ_in_shape_not_only_in_colour() -> None:
    tags = [drawn(chart(Mark(at=(5, 5), style=style)))[-1].tag for style in ("ranked", "explored")]
    assert tags == ["circle", "polygon"]
    assert drawn(chart(Mark(at=(5, 5), style="plain")))[-1].tag == "rect"


def test_a_long_name_of_a_row_is_cut_and_kept_as_a_title() -> None:
    rows = Panel(x=Axis(), y=named_rows(["k" * 90]), shapes=())
    (text,) = drawn(Chart(title="", label="", panels=(rows,)))
    assert (text.text or "").endswith("…")
    assert [title.text for title in text] == ["k" * 90]


def test_angles_are_true_where_both_axes_have_one_unit() -> None:
    wide = Axis(high=4.0)
    panel = Panel(
        x=wide,
        y=Axis(high=1.0),
        shapes=(Line(points=((0, 0), (1, 1)), style="ranked"),),
        has_equal_units=True,
    )
    (path,) = drawn(Chart(title="", label="", panels=(panel,)))
    (x0, y0), (x1, y1) = (map(float, each.split()) for each in path.get("d", "")[1:].split("L"))
    assert x1 - x0 == pytest.approx(y0 - y1)
