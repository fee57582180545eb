"""Accuracy over total cost: every mark is explained, and the line strikes no name through."""

from __future__ import annotations

from bas_opd.report.arms import Arm
from bas_opd.report.charts.accuracy import TOTAL_INSIDE, accuracy_total
from bas_opd.report.charts.model import TEXT_WIDTH, Line, Mark, Text
from bas_opd.stats.resampling import Estimate


def arm(name: str, policy: str, share: float, accuracy: float) -> Arm:
    estimate = Estimate(value=accuracy, low=accuracy - 0.01, high=accuracy + 0.01)
    return Arm(
        name=name,
        policy=policy,
        budget=1.0,
        parts={},
        accuracy=estimate,
        metric="mean of kinds",
        total_share=share,
    )


ARMS = [
    arm("fewer1", "full", 0.4, 0.53),
    arm("fewer4", "full", 0.7, 0.55),
    arm("full", "full", 1.0, 0.555),
    arm("covering12", "covering", 0.55, 0.52),
    arm("random12", "random", 0.5, 0.51),
    arm("entropy25", "entropy", 0.6, 0.50),
    arm("grpo", "grpo", 0.9, 0.51),
]


def test_every_kind_of_mark_has_its_key() -> None:
    chart = accuracy_total(ARMS)
    marks = {shape.style for shape in chart.panels[0].shapes if isinstance(shape, Mark)}
    assert {key.style for key in chart.keys} == marks
    assert {key.label for key in chart.keys} == {
        "queries every rollout",
        "learns what to query",
        "queries at random",
        "ranks by a fixed rule",
        "another method",
    }
    assert [key.label for key in accuracy_total(ARMS[:3]).keys] == ["queries every rollout"]


def test_no_name_is_struck_through_by_the_line() -> None:
    (panel,) = accuracy_total(ARMS).panels
    across = TOTAL_INSIDE[0] / (panel.x.high - panel.x.low)
    up = TOTAL_INSIDE[1] / (panel.y.high - panel.y.low)
    (line,) = [s for s in panel.shapes if isinstance(s, Line) and s.style == "faint"]
    names = [shape for shape in panel.shapes if isinstance(shape, Text)]
    assert len(names) == len(ARMS)
    for name in names:
        middle = name.at[1] + 7.5 / up
        reach = len(name.words) * TEXT_WIDTH / 2 / across
        for (x0, y0), (x1, y1) in zip(line.points, line.points[1:], strict=False):
            for share in range(101):
                x = x0 + share / 100 * (x1 - x0)
                if abs(x - name.at[0]) < reach:
                    y = y0 + share / 100 * (y1 - y0)
                    assert abs(y - middle) * up > 3, name.words


def test_one_arm_that_queries_every_rollout_makes_no_line() -> None:
    joined, single = accuracy_total(ARMS), accuracy_total(ARMS[2:])
    assert joined.caption == "The line joins the arms that query every rollout they sample."
    assert single.caption == ""
    assert not [s for s in single.panels[0].shapes if isinstance(s, Line) and s.style == "faint"]
