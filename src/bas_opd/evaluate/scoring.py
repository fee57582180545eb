"""Scoring one answer: by rule, and by a judge where the rule defers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bas_opd.answers import Answer, choice, short, yes_no
from bas_opd.evaluate.benchmarks import Benchmark, Scored
from bas_opd.evaluate.benchmarks.summary import Note, Outcome
from bas_opd.evaluate.judge import Case, Verdict
from bas_opd.evaluate.questions import Output, Question


def by_rule(benchmark: Benchmark, question: Question, output: Output) -> Scored | None:
    """Return the verdict of the benchmark's rule; None where it defers to a judge."""
    outcome: Outcome = "wrong"
    value = ""
    if output.refusal:
        outcome = "unscored"
    elif benchmark.is_right is not None:
        outcome = _outcome(benchmark.is_right(output.text, question.reference))
    else:
        answer = _read(question, output)
        if answer.status == "answered" and question.form == "short":
            outcome = _outcome(answer.value is True)
        elif answer.status == "answered":
            value = str(answer.value)
            outcome = _outcome(value == question.reference)
        elif answer.status != "none" and not output.is_cut:
            return None
    return Scored(
        id=question.id, outcome=outcome, groups=question.groups, value=value, note=_note(output)
    )


def by_judge(question: Question, verdict: Verdict | None) -> Scored:
    """Return the verdict of a judge; without a judge the answer stays unscored."""
    outcome = "unscored" if verdict is None else verdict.outcome
    return Scored(id=question.id, outcome=outcome, source="judge", groups=question.groups)


def score_in_memory(
    benchmark: Benchmark, questions: Sequence[Question], outputs: Iterable[tuple[int, Output]]
) -> tuple[Scored, ...]:
    """Score outputs that come in any order by rule alone; return verdicts in question order."""
    scored = {
        index: by_rule(benchmark, questions[index], output) or by_judge(questions[index], None)
        for index, output in outputs
    }
    return tuple(scored[index] for index in range(len(questions)))


def case_of(question: Question, output: Output) -> Case:
    """Return what the judge is shown: a letter means nothing to it without its option."""
    reference = question.reference
    if option := question.options.get(reference):
        reference = f"({reference}) {option}"
    return Case(question=question.prompt, reference=reference, answer=output.text)


def _read(question: Question, output: Output) -> Answer:
    if question.form == "choice":
        return choice(output.text, question.options, was_cut=output.is_cut)
    if question.form == "yes_no":
        return yes_no(output.text, was_cut=output.is_cut)
    return short(output.text, question.reference, was_cut=output.is_cut)


def _outcome(is_right: bool) -> Outcome:
    return "correct" if is_right else "wrong"


def _note(output: Output) -> Note:
    if output.refusal:
        return "refused"
    if output.is_cut:
        return "cut"
    return "" if output.text.strip() else "empty"
