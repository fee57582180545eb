"""What a run came to, in words and numbers that the page and the card share."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from bas_opd.audit.records import Provenance
from bas_opd.audit.statistics import Interval
from bas_opd.evaluate.benchmarks import Measure
from bas_opd.report.costs import percent
from bas_opd.report.run import Run
from bas_opd.runtime.console import duration
from bas_opd.runtime.verify import Verification


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One number of the first screen."""

    name: str
    value: str
    detail: str


def result(run: Run) -> str:
    """Return the result of a run in one sentence, with its interval if there is one."""
    sums = run.totals
    steps = f"{len(run.steps):,} step{'s' * (len(run.steps) != 1)}"
    if not run.is_finished:
        steps = f"{len(run.steps):,} of {run.planned_steps:,} steps"
    asked = (
        f"with its teacher asked about {percent(sums['calls'], sums['candidates'])} of the "
        f"rollouts and {percent(sums['scored_tokens'], sums['candidate_tokens'])} of their tokens"
    )
    if run.evaluation is None:
        return f"{run.policy} trained for {steps}, {asked}; the model was not evaluated."
    return (
        f"{run.policy} reaches {accuracy_text(run.evaluation.headline)} on "
        f"{run.evaluation.headline_name} after {steps}, {asked}."
    )


def accuracy_text(measure: Measure) -> str:
    """Write an accuracy with its interval."""
    if measure.value is None:
        return "no accuracy that is known"
    if measure.interval is None:
        return f"{100 * measure.value:.1f} %"
    low, high = measure.interval
    return f"{100 * measure.value:.1f} % (95 % interval {100 * low:.1f} to {100 * high:.1f})"


def tiles(run: Run) -> tuple[Tile, ...]:
    """Return accuracy, calls, tokens and time, each with what it is a share of."""
    sums, seconds = run.totals, run.totals["seconds"]
    return (
        _accuracy_tile(run),
        Tile(
            name="teacher calls",
            value=f"{sums['calls']:,}",
            detail=f"{percent(sums['calls'], sums['candidates'])} of {sums['candidates']:,} at "
            "full querying",
        ),
        Tile(
            name="scored tokens",
            value=f"{sums['scored_tokens']:,}",
            detail=f"{percent(sums['scored_tokens'], sums['candidate_tokens'])} of "
            f"{sums['candidate_tokens']:,} at full querying",
        ),
        Tile(
            name="training time",
            value=clock(run.seconds),
            detail=f"{percent(seconds.get('teacher', 0.0), run.seconds)} of it the teacher, "
            f"{clock(seconds.get('teacher', 0.0))}",
        ),
    )


def clock(seconds: float) -> str:
    """Write a time, to the second where it is short."""
    return f"{seconds:,.0f} s" if 10 <= seconds < 600 else duration(seconds)


def _accuracy_tile(run: Run) -> Tile:
    if run.evaluation is None or (value := run.evaluation.headline.value) is None:
        return Tile(name="accuracy", value="-", detail="not evaluated")
    interval = run.evaluation.headline.interval
    ends = "" if interval is None else f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}, "
    return Tile(
        name="accuracy",
        value=f"{100 * value:.1f} %",
        detail=f"{ends}{run.evaluation.headline.name}, {run.evaluation.headline_name}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """Who was asked in an audit, for every figure of it; empty if it was the run's own teacher."""

    sentence: str = ""
    note: str = ""


def stand_in(audit: Provenance) -> StandIn:
    """Say who stood in for the teacher."""
    if audit.teacher == "own":
        return StandIn()
    return StandIn(
        sentence="Teacher = student: the frozen student stood in for the run's teacher, as in the "
        "paper; the run's own teacher may value rollouts differently.",
        note="Teacher = student.",
    )


def plus_minus(interval: Interval) -> str:
    """Write a mean with how far its interval reaches, if that is known."""
    if not math.isfinite(interval.half_width):
        return f"{interval.mean:.2f}"
    return f"{interval.mean:.2f} ± {interval.half_width:.2f}"


def budget_sentence(run: Run) -> str:
    """Say whether any step asked more than it was allowed."""
    if not run.steps:
        return "No step is on record yet, so nothing was asked."
    over = sum(step.calls > step.budget for step in run.steps)
    most = max(step.budget for step in run.steps)
    if over:
        return (
            f"{over:,} of {len(run.steps):,} steps asked the teacher more than K allowed; the "
            f"worst by {run.totals['overrun']:,} calls."
        )
    return (
        f"Overrun 0: none of the {len(run.steps):,} steps asked the teacher more than its "
        f"K = floor({run.config.select.query_ratio:f} |C|), at most {most:,}. K is fixed before "
        "the teacher is asked anything."
    )


def not_run(run: Run, checked: Verification) -> Iterator[str]:
    """Yield what a reader might take for done that was not."""
    if not run.is_finished:
        yield (
            f"The run has not finished: {len(run.steps):,} of {run.planned_steps:,} steps are on "
            "record. The same `bas-opd train` command goes on."
        )
    if not checked.is_sound:
        yield "The records did not pass every check, so nothing on this page is certain."
    if any("random draws not repeated" in check.note for check in checked.checks):
        yield "Random draws were not repeated; `bas-opd verify RUN --draws` does that."
    yield from _evaluation_gaps(run)
    sources = {audit.source for audit in run.utility_audits}
    for source in ("training", "held-out"):
        if source not in sources:
            yield f"No utility audit on {source} batches; `bas-opd audit RUN` makes one."
    if run.geometry is None:
        yield "No audit of the gradients; `bas-opd audit RUN` makes one."
    if not run.shown:
        yield "No rollout's text is on record (run.examples_per_step was 0), so none is shown."
    yield (
        "No other run stands beside this one: `bas-opd report RUN RUN` compares, with full "
        "querying or a random choice for one. The base model was not measured here."
    )


def _evaluation_gaps(run: Run) -> Iterator[str]:
    if run.evaluation is None:
        yield "No evaluation; `bas-opd eval RUN` makes one."
        return
    partial = [each.title for each in run.evaluation.results if each.is_partial]
    if partial:
        yield f"Not the whole of {', '.join(partial)}, but a part of it or another set."
    deferred = sum(each.summary.deferred for each in run.evaluation.results)
    if run.evaluation.judge is None and deferred:
        yield (
            f"No judge was asked: {deferred:,} answers that no rule could read count as not "
            "correct."
        )
