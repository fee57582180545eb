"""Accuracy over benchmarks, over budgets (Figure 2), beside cost (Figure 5) and over total cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import get_args

from bas_opd.errors import DataError
from bas_opd.report.arms import Arm
from bas_opd.report.charts.model import (
    PARTS,
    TEXT_WIDTH,
    WIDTH,
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
    named_columns,
    named_rows,
    percent_tick,
    round_ends,
    row_bars,
    value_axis,
    whisker,
)
from bas_opd.select.rules import PolicyName, policy_rule
from bas_opd.stats.resampling import Estimate
from bas_opd.text import percent

PANELS_PER_ROW = 4
CROWDED = 1.3
"""Share of full querying beyond which 50 % and 100 % stand too close for two ticks."""
TOTAL_WIDTH, TOTAL_HEIGHT = 720, 460
TOTAL_INSIDE = (666, 402)
"""The part of it that is left for points, about."""
RISES = (0, 13, -13, 22, -22, 32, -32)
"""Pixels by which a name may stand above or below its point."""
DISTANCE = 0.5
"""Square pixels of cover that a pixel of distance from the point is worth."""
PASSES = 4
APART = 44.0
"""Pixels around a point that the names of others keep off."""
STRIDE = 6.0
"""Pixels between the points of a line that names keep off."""
Box = tuple[float, float, float, float]
LONG_NAME = 90
"""Pixels of a page; a chart is wider for the rest of a longer name."""


def policy_style(policy: str) -> str:
    """Return the look of a policy; without one, nothing was trained."""
    if policy and policy not in get_args(PolicyName):
        return "third"  # another method
    if not policy or policy_rule(policy).asks_everything:
        return "plain"
    if policy_rule(policy).learns:
        return "ranked"
    return "third" if policy_rule(policy).ranks_by else "explored"


def accuracy_cost(arms: Sequence[Arm], cost: str = "scored tokens vs. full") -> Chart:
    """Draw accuracy beside the share of tokens the teacher scored, a row for each arm (Figure 5).

    Arms that were not trained are vertical lines. `cost` names the shares, if they are others.
    """
    trained = [arm for arm in arms if arm.budget is not None]
    if not any(arm.token_share is not None for arm in trained):
        raise DataError(
            "Cost is counted against full querying, and no run with select.policy=full is among "
            "these. Add one."
        )
    rows = named_rows([arm.name for arm in trained])
    reached: list[Shape] = []
    scored: list[Shape] = []
    for row, arm in enumerate(trained):
        style = policy_style(arm.policy)
        if ends := _ends(arm.accuracy):
            level = ((ends[0], -row), (ends[1], -row))
            reached.append(Line(points=level, style=style, form="interval"))
        reached.append(Mark(at=(arm.accuracy.value, -row), style=style))
        if arm.token_share is None:
            scored.append(Text(at=(0, -row), words="unknown"))
        else:
            scored += row_bars(row, [arm.token_share], ["faded"])
    for arm in arms:
        if arm.budget is None:
            rows = replace(rows, high=1.0)
            line = ((arm.accuracy.value, rows.low), (arm.accuracy.value, 0.5))
            reached.append(Line(points=line, style="faint"))
            reached.append(Text(at=line[1], words=arm.name, is_above=True))
    values = [
        end for arm in arms for end in (arm.accuracy.low, arm.accuracy.value, arm.accuracy.high)
    ]
    ends = round_ends(values, zero=False)
    accuracy = axis(f"accuracy, {_metric(arms)}", ends, tick=percent_tick, wanted=2, grid=True)
    most = max(1.0, *(arm.token_share or 0.0 for arm in trained))
    long = max(0.0, max(len(arm.name) for arm in trained) * TEXT_WIDTH - LONG_NAME)
    spoken = "; ".join(
        f"{arm.name}: {percent(arm.accuracy.value)}"
        + ("" if arm.token_share is None else f" at {percent(arm.token_share)} of the tokens")
        for arm in arms
    )
    return Chart(
        title="Accuracy and cost",
        label=f"Accuracy ({_metric(arms)}), and {cost}. {spoken}.",
        panels=(
            Panel(x=accuracy, y=rows, shapes=tuple(reached)),
            Panel(
                x=Axis(
                    name=cost,
                    high=1.35 * most,
                    ticks=(*([(0.5, "50 %")] if most < CROWDED else []), (1.0, "100 %")),
                ),
                y=replace(rows, ticks=()),
                shapes=tuple(scored),
            ),
        ),
        columns=(0.6 * WIDTH + long, 0.4 * WIDTH),
        width=WIDTH + long,
        height=60 + 24 * len(trained),
    )


def accuracy_total(arms: Sequence[Arm]) -> Chart:
    """Draw accuracy over the total tokens of each arm; a line joins those that query everything.

    Arms above the line are worth more than sampling less at the same cost.
    """
    points = [(arm, (arm.total_share, arm.accuracy.value)) for arm in arms if arm.total_share]
    if not points:
        raise DataError(
            "No total tokens are known as a share of full querying. Add runs with "
            "select.policy=full that count them."
        )
    ends = [end for arm, _ in points for end in (arm.accuracy.low, arm.accuracy.high)]
    x = axis(
        "total tokens vs. full",
        round_ends([share for _, (share, _) in points], zero=False),
        tick=percent_tick,
    )
    y = value_axis(f"accuracy, {_metric(arms)}", ends, zero=False, tick=percent_tick)
    whole = sorted(at for arm, at in points if policy_style(arm.policy) == "plain")
    shapes: list[Shape] = []
    if len(whole) > 1:
        shapes.append(Line(points=tuple(whole), style="faint"))
    for arm, at in points:
        style = policy_style(arm.policy)
        if reach := _ends(arm.accuracy):
            shapes.append(whisker(at[0], reach, style))
        shapes.append(Mark(at=at, style=style, size=1.3))
    shapes += _labels([arm for arm, _ in points], x, y, line=whole)
    kinds = {_kind(arm.policy): policy_style(arm.policy) for arm, _ in points}
    spoken = "; ".join(
        f"{arm.name}: {percent(accuracy)} at {percent(share)} of the tokens"
        for arm, (share, accuracy) in points
    )
    untrained = ", ".join(
        f"{arm.name} {percent(arm.accuracy.value)}" for arm in arms if arm.budget is None
    )
    caption: list[str] = []
    if len(whole) > 1:
        caption.append("The line joins the arms that query every rollout they sample.")
    if untrained:
        caption.append(f"Without training: {untrained}.")
    return Chart(
        title="Accuracy over total cost",
        label=f"Accuracy ({_metric(arms)}) over total tokens as a share of full querying. "
        f"{spoken}.",
        panels=(Panel(x=x, y=y, shapes=tuple(shapes)),),
        keys=tuple(Key(label=kind, style=kinds[kind], forms=("mark",)) for kind in sorted(kinds)),
        caption=" ".join(caption),
        width=TOTAL_WIDTH,
        height=TOTAL_HEIGHT,
    )


def _kind(policy: str) -> str:
    """Return how an arm chooses what it queries, as a legend names it."""
    if policy not in get_args(PolicyName):
        return "another method"
    if policy_rule(policy).asks_everything:
        return "queries every rollout"
    if policy_rule(policy).learns:
        return "learns what to query"
    return "ranks by a fixed rule" if policy_rule(policy).ranks_by else "queries at random"


def _labels(
    arms: Sequence[Arm], x: Axis, y: Axis, *, line: Sequence[tuple[float, float]]
) -> Iterator[Text]:
    """Yield the names of arms, each beside its point where it covers least, also of the line."""
    across, up = TOTAL_INSIDE[0] / (x.high - x.low), TOTAL_INSIDE[1] / (y.high - y.low)
    taken = [(TOTAL_INSIDE[0] + 45.0, TOTAL_INSIDE[1] / 2, 80.0, 1e4)]  # the right edge
    for (left, low), (right, high) in pairwise(line):
        parts = max(1, round((right - left) * across / STRIDE))
        for part in range(parts + 1):
            share = part / parts
            at = (left + share * (right - left), low + share * (high - low))
            taken.append(((at[0] - x.low) * across, (at[1] - y.low) * up, STRIDE, 5.0))
    whiskers = []
    for arm in arms:
        left = ((arm.total_share or 0.0) - x.low) * across
        low, at, high = ((end - y.low) * up for end in _low_to_high(arm.accuracy))
        whiskers.append((arm.name, left, low, at, high))
        taken += [(left, at, 11.0, 11.0), (left, (low + high) / 2, 6.0, high - low)]
    boxes = {}
    for _ in range(PASSES):  # a name that was placed early may find a better place later
        for name, left, low, at, high in whiskers:
            width = len(name) * TEXT_WIDTH
            others = [*taken, *(box for other, box in boxes.items() if other != name)]
            # Beside the point of another arm it would be read as that one's name.
            others += [(a, b, APART, 12.0) for other, a, _, b, _ in whiskers if other != name]
            aside = width / 2 + 9
            places = [(left + side, at + rise) for rise in RISES for side in (aside, -aside)]
            places += [(left, end) for end in (high + 9, low - 9, high + 20, low - 20)]
            boxes[name] = min(
                ((*place, width, 11.0) for place in places),
                key=lambda box, at=at, others=others: (
                    _covered(box, others) + DISTANCE * abs(box[1] - at)
                ),
            )
    for name, (left, middle, _, _) in boxes.items():
        # A text stands 4 pixels above its point, and half its height is above its middle.
        yield Text(
            at=(x.low + left / across, y.low + (middle - 7.5) / up), words=name, is_above=True
        )


def _low_to_high(estimate: Estimate) -> tuple[float, float, float]:
    low, high = _ends(estimate) or (estimate.value, estimate.value)
    return low, estimate.value, high


def _covered(box: Box, taken: Sequence[Box]) -> float:
    """Return the area of a box (middle, width, height) that others cover."""
    x, y, width, height = box
    return sum(
        max(0.0, (width + w) / 2 - abs(x - a)) * max(0.0, (height + h) / 2 - abs(y - b))
        for a, b, w, h in taken
    )


def accuracy_by_part(arms: Sequence[Arm]) -> Chart:
    """Draw the accuracy of every arm on every benchmark (the figure above the paper's abstract)."""
    parts = [*arms[0].parts, _metric(arms)]
    width = 0.84 / len(arms)
    shapes: list[Shape] = []
    for place, arm in enumerate(arms):
        for part, estimate in enumerate((*arm.parts.values(), arm.accuracy)):
            centre = part + (place - (len(arms) - 1) / 2) * width
            shapes.append(
                Bar(
                    x=(centre - 0.46 * width, centre + 0.46 * width),
                    y=(0.0, estimate.value),
                    style=f"part-{place % PARTS}",
                    title=f"{arm.name}, {parts[part]}: {percent(estimate.value)}",
                )
            )
            if ends := _ends(estimate):
                shapes.append(whisker(centre, ends, "ink"))
    highest = [each.high for arm in arms for each in (*arm.parts.values(), arm.accuracy)]
    return Chart(
        title="Accuracy by benchmark",
        label=f"Accuracy by benchmark; {_metric(arms)}: "
        + "; ".join(f"{arm.name} {percent(arm.accuracy.value)}" for arm in arms)
        + ".",
        panels=(
            Panel(
                x=named_columns(parts),
                y=value_axis("accuracy", highest, tick=percent_tick),
                shapes=tuple(shapes),
            ),
        ),
        keys=tuple(
            Key(label=arm.name, style=f"part-{place % PARTS}", forms=("bar",))
            for place, arm in enumerate(arms)
        ),
        width=150 + 85 * len(parts),
        height=215,
    )


def budget_sweep(arms: Sequence[Arm]) -> Chart:
    """Draw accuracy over the query budget, a panel for each part and one for the primary accuracy.

    Each panel marks its maximum; the dashed line is full querying (Figure 2).
    """
    swept = sorted(
        ((arm.budget, arm) for arm in arms if arm.budget is not None), key=lambda pair: pair[0]
    )
    if len(swept) < 2:
        raise DataError("A sweep needs runs of one policy with at least two budgets.")
    budgets = [budget for budget, _ in swept]
    metric = _metric(arms)
    parts = [*swept[0][1].parts, metric]
    panels = [
        _sweep(
            part,
            budgets,
            [arm.accuracy if part == metric else arm.parts[part] for _, arm in swept],
        )
        for part in parts
    ]
    return Chart(
        title="Accuracy over the query budget",
        label=f"Accuracy over the query budget; {metric}: "
        + "; ".join(f"{percent(arm.accuracy.value)} at {100 * budget:g} %" for budget, arm in swept)
        + ".",
        panels=tuple(panels),
        columns=(1,) * PANELS_PER_ROW,
        caption="Accuracy over the share of candidates queried, in %. Diamond: maximum. Dashed: "
        "full querying.",
        width=780,
        height=145 * -(-len(parts) // PANELS_PER_ROW),
    )


def _metric(arms: Sequence[Arm]) -> str:
    """Name the accuracy of arms; those of one figure are of the same benchmarks."""
    return " or ".join(dict.fromkeys(arm.metric for arm in arms))


def _sweep(part: str, budgets: Sequence[float], values: Sequence[Estimate]) -> Panel:
    points = tuple((budget, each.value) for budget, each in zip(budgets, values, strict=True))
    best = max(points, key=lambda point: point[1])
    shapes: list[Shape] = [
        whisker(budget, ends, "ranked")
        for budget, each in zip(budgets, values, strict=True)
        if (ends := _ends(each))
    ]
    if budgets[-1] == 1:
        shapes.append(Line(points=((0.0, points[-1][1]), points[-1]), style="limit"))
    shapes.append(Line(points=points, style="ranked"))
    shapes += [Mark(at=point, style="best" if point == best else "ranked") for point in points]
    ends = [end for each in values for end in (each.low, each.high)]
    return Panel(
        x=Axis(high=1.05, ticks=tuple((budget, f"{100 * budget:g}") for budget in budgets)),
        y=value_axis("", ends, zero=False, tick=percent_tick),
        shapes=tuple(shapes),
        title=part,
    )


def _ends(estimate: Estimate) -> tuple[float, float] | None:
    """Return both ends of an interval; none where it is unknown, as with one seed."""
    return (estimate.low, estimate.high) if estimate.low < estimate.high else None
