"""Scales, ticks and shapes of the charts."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bas_opd.report.bars import calls_chart, columns, shares, stacked
from bas_opd.report.charts import Series, plot
from bas_opd.report.drawing import Canvas, Scale, reaching, round_step, short_number


@pytest.mark.parametrize(
    ("width", "step"), [(0.9, 1), (1, 1), (1.2, 2), (2.2, 2.5), (3, 5), (7, 10), (0.013, 0.02)]
)
def test_steps_between_ticks_are_round(width: float, step: float) -> None:
    assert round_step(width) == pytest.approx(step)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.booleans())
def test_the_ends_of_a_scale_hold_every_value(values: list[float], zero: bool) -> None:
    low, high = reaching(values, zero=zero)
    slack = 1e-6 * (high - low)
    assert low < high
    assert all(low - slack <= value <= high + slack for value in values)


def test_ticks_lie_within_their_scale() -> None:
    scale = Scale(low=1, high=111, start=0, end=100)
    assert scale.ticks(5) == [25, 50, 75, 100]
    assert [short_number(value) for value in (0, 0.05, 2500, 2e-6)] == [
        "0",
        "0.05",
        "2,500",
        "2e-6",
    ]


def test_whatever_text_a_drawing_holds_is_escaped() -> None:
    hostile = '"><script>alert(1)</script>\u202e'
    canvas = Canvas(width=10, height=10, label=hostile)
    canvas.add("text", hostile, title=hostile, x=1, class_=hostile)
    svg = str(canvas.svg())
    assert "<script" not in svg
    assert "\u202e" not in svg
    ET.fromstring(svg)


def bars(svg: str, style: str) -> int:
    return sum(style in element.get("class", "") for element in ET.fromstring(svg).iter())


def test_a_step_over_its_budget_looks_different() -> None:
    chart = calls_chart([5, 6, 7], [6, 6, 6], label="calls")
    assert bars(chart.svg, "bar ranked") == 2
    assert bars(chart.svg, "bar over") == 1


def test_every_kind_of_chart_is_well_formed_and_says_what_it_shows() -> None:
    line = Series(label="one", style="ranked", points=[(1, 2.0), (2, 3.0)], intervals=[(1, 3)])
    for chart in (
        plot([line], label="words", x_name="x", y_name="y"),
        plot(
            [Series(label="", style="plain", points=[(1, 1)])], label="words", x_name="", y_name=""
        ),
        shares({"<kind>": (0.5, 0.2), "k" * 90: (0.5, 0.8)}, label="words", names=("a", "b")),
        stacked({"teacher": 1.0, "student": 0.0}, label="words"),
        calls_chart([0], [0], label="words"),
    ):
        assert ET.fromstring(chart.svg).get("aria-label") == "words"


def test_an_interval_that_is_not_known_is_not_drawn() -> None:
    line = Series(label="", style="ink", points=[(1, 1.0), (2, 2.0)], intervals=[(0, 3), None])
    for chart in (
        columns(["a", "b"], [1, 2], [(0, 3), None], label="words", x_name="", y_name=""),
        plot([line], label="words", x_name="", y_name=""),
    ):
        assert bars(chart.svg, "whisker ink") == 3  # A line and its two ends.


def test_looks_differ_in_shape_not_only_in_colour() -> None:
    shapes = set()
    for style in ("ranked", "explored", "plain"):
        canvas = Canvas(width=10, height=10, label="")
        canvas.mark(5, 5, style)
        shapes.add(ET.fromstring(canvas.svg())[0].tag)
    assert len(shapes) == 3
