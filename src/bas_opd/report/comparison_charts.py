"""The charts of several runs together."""

from __future__ import annotations

from bas_opd.report.charts import Chart, Series, plot
from bas_opd.report.comparison import RunComparison
from bas_opd.report.drawing import percent_tick
from bas_opd.report.selection import utility_by_step

STYLES = {
    "learned": "ranked",
    "regressed": "ranked",
    "random": "explored",
    "entropy": "third",
    "full": "plain",
}
"""The look of each policy."""


def accuracy_cost(comparison: RunComparison) -> Chart | None:
    """Draw accuracy against scored tokens, numbered as the table is; none if nothing was judged."""
    series = []
    for entry in comparison.entries:
        accuracy, share = entry.accuracy, entry.token_share
        if accuracy is None or accuracy.value is None or share is None:
            continue
        series.append(
            Series(
                label=f"{entry.number} {entry.label}",
                style=STYLES[entry.run.config.select.policy],
                points=[(share, accuracy.value)],
                intervals=[] if accuracy.interval is None else [accuracy.interval],
                has_line=False,
                titles=[str(entry.number)],
            )
        )
    if not series:
        return None
    spoken = "; ".join(
        f"{each.label}: {100 * y:.1f} % right at {100 * x:.1f} % of the tokens"
        for each in series
        for x, y in each.points
    )
    return plot(
        series,
        label=f"Accuracy against scored tokens. {spoken}.",
        x_name="scored tokens, share of full querying",
        y_name="accuracy",
        x_ends=(0, max(1.0, *(each.points[0][0] for each in series))),
        x_tick=percent_tick,
        y_tick=percent_tick,
        zero=False,
        numbered=True,
    )


def utilities(comparison: RunComparison) -> Chart | None:
    """Draw the mean observed utility of each step's selected rows, for each run."""
    series = []
    for entry in comparison.entries:
        points = [(float(each.step), each.mean) for each in utility_by_step(entry.run.steps)]
        if len(points) > 1:
            series.append(
                Series(
                    label=f"{entry.number} {entry.label}",
                    style=STYLES[entry.run.config.select.policy],
                    points=points,
                    has_marks=len(points) <= 40,
                )
            )
    if not series:
        return None
    return plot(
        series,
        label="Mean observed utility of the rows asked about, step by step, for each run.",
        x_name="step",
        y_name="mean observed utility",
    )
