"""Scoring one answer: by rule, and by a judge where the rule defers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bas_opd.answers import Answer, choice, short, yes_no
from bas_opd.evaluate.benchmarks import Benchmark, Scored
from bas_opd.evaluate.benchmarks.summary import Note, Outcome
from bas_opd.evaluate.judge import Verdict
from bas_opd.evaluate.judge_prompt import Case
from bas_opd.evaluate.questions import Output, Question, Sample


def by_rule(benchmark: Benchmark, sample: Sample) -> Scored | None:
    """Return the verdict of the benchmark's rule; None where it defers to a judge."""
    question, output = sample.question, sample.output
    if output.refusal:
        return _scored(sample, "unscored")
    if benchmark.is_right is not None:
        return _scored(sample, _outcome(benchmark.is_right(output.text, question.reference)))
    answer = _read(question, output.text)
    if answer.status == "answered":
        if question.form == "short":
            return _scored(sample, _outcome(answer.value is True))
        value = str(answer.value)
        return _scored(sample, _outcome(value == question.reference), value=value)
    if answer.status == "none" or output.is_cut:
        return _scored(sample, "wrong")
    return None


def by_judge(question: Question, verdict: Verdict | None) -> Scored:
    """Return the verdict of a judge; without a judge the answer stays unscored."""
    outcome = "unscored" if verdict is None else verdict.outcome
    return Scored(id=question.id, outcome=outcome, source="judge", groups=question.groups)


def score_in_memory(
    benchmark: Benchmark, questions: Sequence[Question], outputs: Iterable[tuple[int, Output]]
) -> tuple[Scored, ...]:
    """Score outputs that come in any order by rule alone; return verdicts in question order."""
    scored: dict[int, Scored] = {}
    for index, output in outputs:
        sample = Sample(question=questions[index], output=output)
        scored[index] = by_rule(benchmark, sample) or by_judge(sample.question, None)
    return tuple(scored[index] for index in range(len(questions)))


def case_of(sample: Sample) -> Case:
    """Return what the judge is shown: a letter means nothing to it without its option."""
    question = sample.question
    reference = question.reference
    if option := question.options.get(reference):
        reference = f"({reference}) {option}"
    return Case(question=question.prompt, reference=reference, answer=sample.output.text)


def _read(question: Question, text: str) -> Answer:
    if question.form == "choice":
        return choice(text, question.options)
    if question.form == "yes_no":
        return yes_no(text)
    return short(text, question.reference)


def _outcome(is_right: bool) -> Outcome:
    return "correct" if is_right else "wrong"


def _scored(sample: Sample, outcome: Outcome, *, value: str = "") -> Scored:
    return Scored(
        id=sample.question.id,
        outcome=outcome,
        groups=sample.question.groups,
        value=value,
        note=_note(sample.output),
    )


def _note(output: Output) -> Note:
    if output.refusal:
        return "refused"
    if output.is_cut:
        return "cut"
    return "" if output.text.strip() else "empty"
