"""From what a model said to whether it was right: by rule, and what the rule defers by a judge."""

from __future__ import annotations

from dataclasses import dataclass

from bas_opd.evaluate.answering import Output
from bas_opd.evaluate.answers import Answer, choice, short, yes_no
from bas_opd.evaluate.benchmarks import Benchmark, Scored
from bas_opd.evaluate.finesearch import grade
from bas_opd.evaluate.judge import Case, Verdict
from bas_opd.evaluate.questions import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One question with its answer."""

    question: Question
    output: Output


def by_rule(benchmark: Benchmark, sample: Sample) -> Scored | None:
    """Return the verdict of the benchmark's rule; None where it leaves that to a judge."""
    question, text = sample.question, sample.output.text
    if benchmark.grader == "finesearch":
        return _scored(question, is_right=grade(text, question.reference))
    answer = _read(question, text)
    if answer.status == "answered":
        if question.form == "short":
            return _scored(question, is_right=answer.value is True)
        value = str(answer.value)
        return _scored(question, is_right=value == question.reference, value=value)
    if answer.status == "none" or sample.output.is_cut:
        return _scored(question, is_right=False)
    return None


def by_judge(question: Question, verdict: Verdict | None) -> Scored:
    """Return what a judge made of an answer; without a judge it stays unscored."""
    outcome = "unscored" if verdict is None else verdict.outcome
    return Scored(id=question.id, outcome=outcome, source="judge", groups=question.groups)


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


def _scored(question: Question, *, is_right: bool, value: str = "") -> Scored:
    outcome = "correct" if is_right else "wrong"
    return Scored(id=question.id, outcome=outcome, groups=question.groups, value=value)
