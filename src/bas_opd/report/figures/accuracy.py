"""Accuracy over benchmarks, over budgets (Figure 2) and over cost (Figure 5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bas_opd.errors import DataError
from bas_opd.report.figures.arms import Arm
from bas_opd.report.figures.canvas import BLUE, GREEN, INK, ORANGE, SOFT, note, panels, styled
from bas_opd.stats.resampling import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHADES = ("#c3c6c9", SOFT, "#8fb3d1", BLUE, ORANGE, GREEN, "#7d5a8c", "#4d8f8b")
COLUMNS = 4


@styled
def accuracy_by_part(arms: Sequence[Arm], *, source: str) -> Figure:
    """Draw the accuracy of every arm on every benchmark (the figure above the paper's abstract)."""
    parts = [*arms[0].parts, "mean"]
    figure, (axes,) = panels(1, 1, width=1.6 + 0.9 * len(parts), height=3.2)
    width = 0.84 / len(arms)
    for place, arm in enumerate(arms):
        values = [*arm.parts.values(), arm.mean]
        x = [part + (place - (len(arms) - 1) / 2) * width for part in range(len(parts))]
        axes.bar(
            x,
            [100 * value.value for value in values],
            width=0.92 * width,
            yerr=_reach(values),
            color=SHADES[place % len(SHADES)],
            error_kw={"elinewidth": 0.8, "ecolor": INK},
            label=arm.name,
        )
    axes.set_xticks(range(len(parts)), parts)
    axes.set_ylabel("right answers, %")
    axes.grid(axis="y")
    axes.legend(ncols=min(len(arms), 6), loc="lower left", bbox_to_anchor=(0, 1))
    note(figure, source)
    return figure


@styled
def budget_sweep(arms: Sequence[Arm], *, source: str) -> Figure:
    """Draw accuracy over the query budget, a panel for each benchmark and one for the mean.

    Orange marks each panel's maximum, the dashed line full querying (Figure 2).
    """
    swept = sorted(
        ((arm.budget, arm) for arm in arms if arm.budget is not None), key=lambda pair: pair[0]
    )
    if len(swept) < 2:
        raise DataError("A sweep needs runs of one policy at two budgets at least.")
    parts = [*swept[0][1].parts, "mean"]
    rows = math.ceil(len(parts) / COLUMNS)
    figure, axes = panels(rows, COLUMNS, width=8.2, height=2.1 * rows)
    for panel, part in zip(axes, parts, strict=False):
        values = [arm.mean if part == "mean" else arm.parts[part] for _, arm in swept]
        _sweep(panel, [100 * budget for budget, _ in swept], values)
        panel.set_title(part)
    for panel in axes[len(parts) :]:
        panel.set_axis_off()
    figure.supylabel("right answers, %", fontsize=8.5)
    note(figure, f"Share of candidates queried, in %. Orange: maximum. Dashed: full.  {source}")
    return figure


@styled
def accuracy_cost(arms: Sequence[Arm], *, source: str) -> Figure:
    """Draw mean accuracy beside what the teacher was asked, a row for each policy (Figure 5)."""
    trained = [arm for arm in arms if arm.budget is not None]
    if not any(arm.token_share is not None for arm in trained):
        raise DataError(
            "Cost is counted against full querying, and no run with select.policy=full is among "
            "these. Add one."
        )
    figure, (left, right) = panels(
        1, 2, width=7.4, height=0.9 + 0.36 * len(trained), sharey=True, width_ratios=(3, 2)
    )
    rows = range(len(trained))
    for row, arm in enumerate(trained):
        left.errorbar(
            100 * arm.mean.value,
            row,
            xerr=_reach([arm.mean]),
            fmt="s" if arm.is_full else "o",
            color=_colour(arm),
            elinewidth=1.2,
            capsize=3,
        )
        share = arm.token_share or 0.0
        right.barh(row, 100 * share, color=_colour(arm), height=0.55)
        label = "not known" if arm.token_share is None else f"{100 * share:.1f} %"
        right.text(100 * share + 2, row, label, va="center", fontsize=7.5)
    for arm in arms:
        if arm.budget is None:
            left.axvline(100 * arm.mean.value, color=SOFT, linewidth=1, linestyle=":")
            top = left.get_xaxis_transform()
            left.text(100 * arm.mean.value, 1, arm.name, transform=top, ha="center", va="bottom")
    left.set_yticks(
        rows, [f"{arm.name}  ({100 * (arm.budget or 0):g} % queried)" for arm in trained]
    )
    left.invert_yaxis()
    left.set_xlabel("right answers, mean, %")
    right.set_xlabel("tokens scored, % of full querying")
    right.set_xlim(0, 122)
    right.tick_params(labelleft=False)
    left.grid(axis="x")
    note(figure, source)
    return figure


def _colour(arm: Arm) -> str:
    return ORANGE if arm.name.startswith("learned") else SOFT if arm.is_full else BLUE


def _sweep(panel: Axes, budgets: Sequence[float], values: Sequence[Estimate]) -> None:
    heights = [100 * value.value for value in values]
    panel.errorbar(
        budgets,
        heights,
        yerr=_reach(values),
        color=BLUE,
        marker="o",
        markersize=4,
        elinewidth=0.8,
        capsize=2,
    )
    best = max(range(len(heights)), key=heights.__getitem__)
    panel.plot(budgets[best], heights[best], "o", color=ORANGE, markersize=6.5, zorder=3)
    if budgets[-1] == 100:
        panel.axhline(heights[-1], color=SOFT, linewidth=0.9, linestyle="--")
    panel.set_xticks(list(budgets), [f"{budget:g}" for budget in budgets])
    panel.grid(axis="y")


def _reach(values: Sequence[Estimate]) -> list[list[float]]:
    """Return how far the intervals go below and above, in points."""
    return [
        [100 * (each.value - each.low) for each in values],
        [100 * (each.high - each.value) for each in values],
    ]
