"""What a run came to, in words and numbers that the page and the card share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bas_opd.audit.records import Provenance
from bas_opd.report.numerals import accuracy_text, clock, counted, ends_text, percent, value_text
from bas_opd.report.run import Run
from bas_opd.run.verify import Verification


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One number of the first screen."""

    name: str
    value: str
    detail: str


def result(run: Run) -> str:
    """Return the result of a run in one sentence, with its interval if there is one."""
    sums = run.totals
    steps = counted(len(run.steps), "step")
    if not run.is_finished:
        steps = f"{len(run.steps):,} of {run.planned_steps:,} steps"
    asked = (
        f"with its teacher asked about {percent(sums['calls'], sums['candidates'])} of the "
        f"rollouts and {percent(sums['scored_tokens'], sums['candidate_tokens'])} of their tokens"
    )
    evaluation = run.own_evaluation
    if evaluation is None:
        what = (
            "the model was not evaluated" if run.evaluation is None else "its evaluation is stale"
        )
        return f"{run.policy} trained for {steps}, {asked}; {what}."
    return (
        f"{run.policy} reaches {accuracy_text(evaluation.headline)} on "
        f"{evaluation.headline_name} after {steps}, {asked}."
    )


def stale_sentence(run: Run) -> str:
    """Say that an evaluation is not of this run's model; nothing where it is, or may be."""
    if run.evaluation is None or run.own_evaluation is not None:
        return ""
    return (
        "The evaluation on record is of other weights than this run's model, so its numbers are "
        "not the run's. The same `bas-opd eval` command makes it anew."
    )


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
            f"{sums['candidate_tokens']:,} at full querying; {sums['processed_tokens']:,} "
            "processed, prompts counted",
        ),
        Tile(
            name="training time",
            value=clock(run.seconds),
            detail=f"{percent(seconds.get('teacher', 0.0), run.seconds)} of it the teacher, "
            f"{clock(seconds.get('teacher', 0.0))}",
        ),
    )


def _accuracy_tile(run: Run) -> Tile:
    evaluation = run.own_evaluation
    if evaluation is None or evaluation.headline.value is None:
        stale = "evaluated with other weights" if stale_sentence(run) else "not evaluated"
        return Tile(name="accuracy", value="-", detail=stale)
    headline = evaluation.headline
    ends = "" if headline.interval is None else f"{ends_text(headline)}, "
    return Tile(
        name="accuracy",
        value=value_text(headline),
        detail=f"{ends}{headline.name}, {evaluation.headline_name}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """Who was asked in an audit; `note`, for every figure, is empty if it was the run's teacher."""

    sentence: str
    note: str = ""


def stand_in(audit: Provenance) -> StandIn:
    """Say who was asked: the run's teacher, or who stood in for it."""
    if audit.teacher == "own":
        return StandIn(sentence=f"Teacher: the run's own ({audit.teacher_mode}).")
    return StandIn(
        sentence="Teacher = student: the frozen student stood in for the run's teacher, as in the "
        "paper; the run's own teacher may value rollouts differently.",
        note="Teacher = student.",
    )


def budget_sentence(run: Run) -> str:
    """Say whether any step asked more than it was allowed."""
    if not run.steps:
        return "No step is on record yet, so nothing was asked."
    over = sum(step.calls > step.budget for step in run.steps)
    most = max(step.budget for step in run.steps)
    if over:
        return (
            f"{over:,} of {len(run.steps):,} steps asked the teacher more than K allowed; the "
            f"worst by {counted(run.totals['overrun'], 'call')}."
        )
    none = "the one step did not ask"
    if len(run.steps) > 1:
        none = f"none of the {len(run.steps):,} steps asked"
    return (
        f"Overrun 0: {none} the teacher more than its "
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
    for source, wanted in (("training", ""), ("held-out", " --held-out SET")):
        if source not in sources:
            yield f"No utility audit on {source} batches; `bas-opd audit RUN{wanted}` makes one."
    if run.geometry is None and not run.asks_everything:
        yield (
            "No audit of the gradients; `bas-opd audit RUN` makes one if the run kept several "
            "checkpoints (`run.keep_every`)."
        )
    if not run.shown:
        yield "No rollout's text is on record (run.examples_per_step was 0), so none is shown."
    yield (
        "No other run stands beside this one: `bas-opd report RUN RUN` compares, with full "
        "querying or a random choice for one. The base model was not measured here."
    )


def _evaluation_gaps(run: Run) -> Iterator[str]:
    if run.evaluation is None:
        yield "No evaluation; `bas-opd eval RUN --bench NAME --data FOLDER` makes one."
        return
    if stale := stale_sentence(run):
        yield stale
    partial = [each.title for each in run.evaluation.results if each.is_partial]
    if partial:
        yield f"Not the whole of {', '.join(partial)}, but a part of it or another set."
    deferred = sum(each.summary.deferred for each in run.evaluation.results)
    if run.evaluation.judge is None and deferred:
        yield (
            f"No judge was asked; answers that no rule could read, {deferred:,} of them, count as "
            "not correct."
        )
