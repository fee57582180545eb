"""Utility captured over the budget, and utility by predicted rank (Figure 3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bas_opd.audit.records import UtilityAudit
from bas_opd.audit.utility import CURVE, Ranking, UtilityDiagnostics, diagnose
from bas_opd.report.figures.canvas import BLUE, GREEN, INK, ORANGE, SOFT, note, panels, styled
from bas_opd.stats.resampling import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINES: dict[Ranking, tuple[str, str]] = {
    "oracle": (GREEN, "-"),
    "learned": (ORANGE, "-"),
    "entropy": (BLUE, "-."),
    "random": (SOFT, "--"),
}


@styled
def utility_diagnostics(audit: UtilityAudit) -> Figure:
    """Draw both panels; without a predictor, the first alone."""
    found = diagnose(audit)
    bands = None if found.prediction is None else found.prediction.bands
    figure, axes = panels(
        1, 1 if bands is None else 2, width=4.2 if bands is None else 7.6, height=3.2
    )
    _capture(axes[0], found, float(audit.query_ratio))
    if bands is not None:
        _bands(axes[1], found)
    note(figure, provenance(audit, found))
    return figure


def provenance(audit: UtilityAudit, found: UtilityDiagnostics) -> str:
    """Say what was audited, and above all who stood for the teacher."""
    teacher = (
        "the run's own teacher"
        if audit.teacher == "own"
        else "the frozen student IN PLACE OF the teacher, as in the paper"
    )
    return (
        f"{found.candidates:,} candidates of {found.batches} {audit.source} batches, step "
        f"{audit.step}; {teacher}. Intervals: 95 %, bootstrap over batches; p: sign flips, Holm."
    )


def _capture(axes: Axes, found: UtilityDiagnostics, ratio: float) -> None:
    budgets = [100 * float(each) for each in CURVE]
    for ranking, shares in found.curve.items():
        colour, style = LINES[ranking]
        axes.plot(budgets, [100 * share for share in shares], style, color=colour, label=ranking)
    if ratio < 1:
        axes.axvline(100 * ratio, color=SOFT, linewidth=0.8, linestyle=":")
    axes.set_xlabel("candidates queried, %")
    axes.set_ylabel("utility captured, %")
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 102)
    axes.set_title("(a) utility captured")
    axes.grid()
    axes.legend(loc="lower right")


def _bands(axes: Axes, found: UtilityDiagnostics) -> None:
    assert found.prediction is not None
    bands = found.prediction.bands or ()
    means = [band.utility for band in bands]
    unknown = not all(math.isfinite(each.high) for each in means)  # of a single batch
    axes.bar(
        range(len(means)),
        [each.value for each in means],
        yerr=None if unknown else [_below(means), _above(means)],
        color=[ORANGE, "#e0a566", "#cbbba5", "#cfcfcc"][: len(means)],
        width=0.68,
        error_kw={"elinewidth": 1, "capsize": 3, "ecolor": INK},
    )
    top = max(each.value if unknown else each.high for each in means)
    for place, band in enumerate(bands):
        if band.p_above_next is not None:
            height = top * (1.06 + 0.09 * (len(bands) - 2 - place))
            axes.plot([place, place + 1], [height, height], color=SOFT, linewidth=0.9)
            axes.text(place + 0.5, height, f"p = {band.p_above_next:.2g}", ha="center", va="bottom")
    axes.set_ylim(0, top * 1.36)
    axes.set_xticks(range(len(means)), ["top quarter", "2nd", "3rd", "last"][: len(means)])
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2))
    axes.set_xlabel("predicted rank within its batch")
    axes.set_ylabel("mean utility")
    axes.set_title("(b) utility by predicted rank")
    axes.grid(axis="y")


def _below(means: Sequence[Estimate]) -> list[float]:
    return [each.value - each.low for each in means]


def _above(means: Sequence[Estimate]) -> list[float]:
    return [each.high - each.value for each in means]
