"""The result of a run, in words and numbers that the page and the card share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from bas_opd.evaluate.benchmarks import Measure, Summary
from bas_opd.evaluate.results import Comparison, RunEvaluation, compare
from bas_opd.report.run import Run
from bas_opd.run.verify import Verification
from bas_opd.stats.intervals import Interval
from bas_opd.text import clock, counted, ends_text, percent, points


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """A run before and after training, on one benchmark."""

    title: str
    before: Summary
    after: Summary
    comparison: Comparison | None
    """The trained model against its base, question by question."""

    @property
    def rows(self) -> Iterator[tuple[str, ...]]:
        """Name, before, after, difference and its interval of every number; the primary first."""
        difference = None if self.comparison is None else self.comparison.difference
        mean, interval = ("-", "-") if difference is None else points(difference)
        primary, others = self.after.primary, {each.label: each for each in self.before.also}
        name = f"{self.title}, {primary.label}"
        yield name, value_text(self.before.primary), value_text(primary), mean, interval
        for each in self.after.also:
            was = others.get(each.label)
            yield each.label, value_text(was), value_text(each), _change(was, each), ""


def _change(before: Measure | None, after: Measure) -> str:
    if before is None or before.value is None or after.value is None:
        return "-"
    return f"{100 * (after.value - before.value):+.1f}"


def value_text(measure: Measure | None, digits: int = 1) -> str:
    """Return a measure in percent, or a dash."""
    return "-" if measure is None or measure.value is None else percent(measure.value, 1, digits)


def interval_text(measure: Measure | None) -> str:
    """Return the confidence interval of a measure in percent, or a dash."""
    return ends_text(None if measure is None else measure.interval) or "-"


def named_text(measure: Measure) -> str:
    """Return a measure in percent with its name, as in 50.6 % (mean of kinds)."""
    return f"{value_text(measure)} ({measure.name})"


def verdict(difference: Interval) -> str:
    """Return what a difference means, by its interval."""
    if difference.holds_zero:
        return "not significantly different"
    return "a gain" if difference.mean > 0 else "a loss"


def result(run: Run) -> str:
    """Return the result of a run in one sentence, with its interval if there is one."""
    steps = counted(len(run.steps), "step")
    if not run.is_finished:
        steps = f"{len(run.steps):,} of {run.planned_steps:,} steps"
    asked = _learned_from(run)
    evaluation = run.own_evaluation
    if evaluation is None:
        what = "its evaluation is stale"
        if run.evaluation is None:
            what = "the model was not evaluated"
            if run.evaluations:
                last = run.evaluations[-1]
                what = f"evaluated during training, it had {last.words} after step {last.step:,}"
        return f"{run.policy} trained for {steps} {asked}{_reward_change(run)}; {what}."
    return (
        f"{run.policy} reaches {_accuracy(evaluation)} on {evaluation.headline_name} "
        f"after {steps}, {_from_base(run)}{asked}."
    )


def _learned_from(run: Run) -> str:
    """Return what a run learned from, as part of a sentence."""
    sums = run.totals
    if run.selects:
        return (
            f"with its teacher asked about {percent(sums['calls'], sums['candidates'])} of the "
            f"rollouts and {percent(sums['scored_tokens'], sums['candidate_tokens'])} of their "
            "tokens"
        )
    if run.has_queries:
        return f"with all {sums['calls']:,} rollouts scored by a teacher that is told the answer"
    if run.method == "sft":
        return (
            f"on {_learned_rows(run):,} of {sums['generated']:,} responses of the initial model to "
            "the crop"
        )
    return f"on {sums['rollouts']:,} graded rollouts"


def _learned_rows(run: Run) -> int:
    return sum(len(step.rows or ()) for step in run.steps)


def _reward_change(run: Run) -> str:
    parts = first_and_last(run)
    if parts is None:
        return ""
    first, last, steps = parts
    return (
        f", whose mean reward went from {first:.2f} in the first {counted(steps, 'step')} to "
        f"{last:.2f} in the last {steps}"
    )


def first_and_last(run: Run) -> tuple[float, float, int] | None:
    """Return the mean reward in the first and in the last quarter of the steps, and its steps."""
    means = [fmean(step.rewards) for step in run.rewarded if step.rewards]
    steps = len(means) // 4
    return (fmean(means[:steps]), fmean(means[-steps:]), steps) if steps else None


def _from_base(run: Run) -> str:
    """Return the accuracy before training and the difference since, as part of a sentence."""
    if run.before is None or run.before.headline.value is None:
        return ""
    before = f"from {value_text(run.before.headline)} of its base"
    (first, *others) = gains(run)
    if others or first.comparison is None:
        return f"{before}, "
    difference = first.comparison.difference
    mean, interval = points(difference)
    return f"{before} ({mean} points, 95 % CI {interval}, {verdict(difference)}), "


def gains(run: Run) -> tuple[Gain, ...]:
    """Return what training changed on each benchmark; nothing unless the base was asked the same.

    A difference is unknown where the verdicts on single questions are.
    """
    before, after = run.before, run.own_evaluation
    if before is None or after is None:
        return ()
    base = {each.fingerprint: each for each in before.results}
    return tuple(
        Gain(
            title=each.title,
            before=base[each.fingerprint].summary,
            after=each.summary,
            comparison=compare(each.scored, base[each.fingerprint].scored, each.metric)
            if each.scored and base[each.fingerprint].scored and each.summary.primary.n
            else None,
        )
        for each in after.results
    )


def _accuracy(evaluation: RunEvaluation) -> str:
    headline = evaluation.headline
    if headline.value is None:
        return "an unknown accuracy"
    interval = "" if headline.interval is None else f", 95 % CI {interval_text(headline)}"
    return f"{value_text(headline)} ({headline.name}{interval})"


def stale_sentence(run: Run) -> str:
    """Return that the evaluation is of other weights; nothing where it is not, or unknown."""
    if run.evaluation is None or run.own_evaluation is not None:
        return ""
    return (
        "The evaluation on record is of other weights than this run's model, so its numbers are "
        "not the run's. Rerun `bas-opd eval` to update it."
    )


def tiles(run: Run) -> tuple[tuple[str, str, str], ...]:
    """Return accuracy, what was learned from, its cost and time: name, value and detail of each."""
    phase, words = ("teacher", "the teacher") if run.has_teacher else ("rollout", "sampling")
    spent = run.totals["seconds"].get(phase, 0.0)
    learned = _query_tiles if run.has_queries else _reward_tiles
    if run.method == "sft":
        learned = _generation_tiles
    return (
        ("accuracy", *_accuracy_tile(run)),
        *learned(run),
        (
            "training time",
            clock(run.seconds),
            f"{percent(spent, run.seconds)} of it {words}, {clock(spent)}",
        ),
    )


def _reward_tiles(run: Run) -> tuple[tuple[str, str, str], ...]:
    sums, parts = run.totals, first_and_last(run)
    dropped = f"; {sums['dropped_groups']:,} prompts dropped" if sums["dropped_groups"] else ""
    reward = ("mean reward", "-", "too few steps to compare")
    if parts is not None:
        first, last, steps = parts
        over = counted(steps, "step")
        reward = ("mean reward", f"{last:.2f}", f"in the last {over}; {first:.2f} in the first")
    return (
        reward,
        (
            "rollouts",
            f"{sums['rollouts']:,}",
            f"{sums['rewards']:,} graded, {_unread(run)}{dropped}; "
            f"{counted(sums['updates'], 'optimizer update')}; {sums['total_tokens']:,} total "
            "tokens",
        ),
    )


def _generation_tiles(run: Run) -> tuple[tuple[str, str, str], ...]:
    sums, learned = run.totals, _learned_rows(run)
    detail = "ungraded, all of them learned from"
    if sums["rewards"]:
        detail = f"{percent(learned, sums['generated'])} of them right and learned from, "
        detail += _unread(run)
    return (
        ("responses of the teacher", f"{sums['generated']:,}", detail),
        (
            "total tokens",
            f"{sums['total_tokens']:,}",
            f"{sums['sampled_tokens']:,} of them sampled by the teacher; "
            f"{counted(sums['updates'], 'optimizer update')}",
        ),
    )


def _unread(run: Run) -> str:
    deferred = run.totals["deferred"]
    return f"{deferred:,} of them not readable by rule" if deferred else "all readable by rule"


def _query_tiles(run: Run) -> tuple[tuple[str, str, str], ...]:
    sums, repeated = run.totals, ""
    if run.repeated_calls:
        repeated = f"; {run.repeated_calls:,} more were lost in a kill and made again"
    return (
        (
            "teacher calls",
            f"{sums['calls']:,}",
            f"{percent(sums['calls'], sums['candidates'])} of {sums['candidates']:,} at "
            f"full querying{repeated}",
        ),
        (
            "scored tokens",
            f"{sums['scored_tokens']:,}",
            f"{percent(sums['scored_tokens'], sums['candidate_tokens'])} of "
            f"{sums['candidate_tokens']:,} at full querying; {sums['processed_tokens']:,} "
            f"processed, prompts counted; {sums['total_tokens']:,} total tokens of sampler, "
            "teacher and student",
        ),
    )


def _accuracy_tile(run: Run) -> tuple[str, str]:
    evaluation = run.own_evaluation
    if run.evaluation is None and run.evaluations:
        last = run.evaluations[-1]
        after = f"after step {last.step:,}, on {counted(last.n, 'question')}"
        return percent(last.accuracy), f"{last.metric}, evaluated during training {after}"
    if evaluation is None or evaluation.headline.value is None:
        return "-", "evaluated with other weights" if stale_sentence(run) else "not evaluated"
    headline, beside = evaluation.headline, evaluation.beside
    ends = "" if headline.interval is None else f" ({interval_text(headline)})"
    other = "" if beside is None else f"; {beside.name} {value_text(beside)}"
    base = "" if run.before is None else f"; its base {value_text(run.before.headline)}"
    detail = f"{headline.name}{ends}, {evaluation.headline_name}{base}{other}"
    return value_text(headline), detail


def budget_sentence(run: Run) -> str:
    """Return whether any step asked more of the teacher than its budget allowed."""
    steps = run.queries
    if not steps:
        return "No step is on record yet, so nothing was asked."
    over = sum(step.used > step.budget for step in steps)
    kind = run.select.budget
    unit = kind.replace("_", " ").removesuffix("s")
    most = max(step.budget for step in steps)
    if over:
        return (
            f"{over:,} of {len(run.steps):,} steps asked the teacher more than K allowed; the "
            f"worst by {counted(run.totals['overrun'], unit)}.{_requests(run)}"
        )
    none = "the one step did not ask"
    if len(run.steps) > 1:
        none = f"none of the {len(run.steps):,} steps asked"
    full = "|C|" if kind == "calls" else f"x {unit}s of full querying"
    return (
        f"Overrun 0: {none} the teacher more than its "
        f"K = floor({run.select.query_ratio:f} {full}), at most {most:,}. K is fixed before "
        f"the teacher is asked anything.{_requests(run)}"
    )


def _requests(run: Run) -> str:
    """Return what was sent to the server of a teacher, as a sentence; nothing if it has none."""
    if run.requests is None:
        return ""
    sent = {step.step: run.requests.get(step.step, 0) for step in run.queries}
    rows = sum(len(step.selected) for step in run.queries)
    beyond = sum(max(0, sent[step.step] - len(step.selected)) for step in run.queries)
    limits = " K limits the selected rows; teacher.retries limits the requests beyond one for each,"
    return (
        f" Requests are counted apart: {counted(sum(sent.values()), 'request')} for "
        f"{counted(rows, 'selected row')}.{f'{limits} here {beyond:,}.' if beyond else ''}"
    )


def not_run(run: Run, checked: Verification) -> Iterator[str]:
    """Yield what was not done, and the command that does it."""
    if not run.is_finished:
        yield (
            f"The run has not finished: {len(run.steps):,} of {run.planned_steps:,} steps are on "
            "record. Rerun `bas-opd train` to resume it."
        )
    if not checked.is_sound:
        yield "The records did not pass every check, so nothing on this page is certain."
    if not checked.recomputed_draws:
        what = "Random draws and predictions" if run.rule.learns else "Random draws"
        yield f"{what} were not recomputed; `bas-opd verify RUN --draws` does that."
    yield from _evaluation_gaps(run)
    sources = {audit.source for audit in run.utility_audits}
    for source, wanted in (("training", ""), ("held-out", " --held-out SET")):
        if source not in sources and run.selects:
            yield f"No utility audit on {source} batches; `bas-opd audit RUN{wanted}` makes one."
    if run.geometry is None and not run.leaves_nothing and run.selects:
        yield (
            "No audit of the gradients; `bas-opd audit RUN` makes one if the run kept several "
            "checkpoints (`run.keep_every`)."
        )
    if not run.shown:
        yield "No rollout's text is on record (run.examples_per_step was 0), so none is shown."
    other = "full querying or random selection" if run.selects else "another method"
    yield (
        "No comparison with another run; `bas-opd report RUN RUN` makes one, for example with "
        f"{other}."
    )


def _evaluation_gaps(run: Run) -> Iterator[str]:
    if run.evaluation is None:
        yield "No evaluation; `bas-opd eval RUN --bench NAME --data FOLDER` makes one."
        return
    if run.before is None and run.own_evaluation is not None:
        what = "not evaluated" if run.base_evaluation is None else "asked other questions"
        yield (
            f"No accuracy before training: the base model was {what}. `bas-opd eval RUN --base "
            "--bench NAME --data FOLDER` evaluates it."
        )
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
