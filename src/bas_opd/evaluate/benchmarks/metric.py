"""The accuracy of a set of questions: which number is the primary one, and differences of it.

Everything that prints an accuracy asks here, so that a model has one number and the number a name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bas_opd.evaluate.benchmarks.summary import (
    EVERY_QUESTION,
    Measure,
    Scored,
    accuracy,
    grouped,
    mean,
    share,
)
from bas_opd.stats.intervals import Interval, stratified_mean
from bas_opd.stats.resampling import paired_p


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """An accuracy: the mean over parts of the questions, in which each part weighs the same."""

    name: str
    group: str = ""
    """What the parts are by; empty if all questions are one part."""
    parts: tuple[str, ...] = ()
    """The parts that must be there; none: whichever are."""

    def measure(self, scored: Sequence[Scored]) -> Measure:
        """Return the accuracy of scored answers."""
        return self.of_parts([accuracy(those) for those in self._split(scored)])

    def of_parts(self, parts: Sequence[Measure]) -> Measure:
        """Return the accuracy over parts whose right answers were counted."""
        if self.group:
            return mean(self.name, parts)
        correct = sum(part.correct or 0 for part in parts)
        return share(self.name, correct, sum(part.n for part in parts))

    def difference(self, a: Mapping[str, Scored], b: Mapping[str, Scored]) -> Interval:
        """Return the accuracy of a minus that of b, both by question id, paired by question."""
        return stratified_mean([[x - y for x, y in pairs] for pairs in self._pairs(a, b)])

    def p_value(self, a: Mapping[str, Scored], b: Mapping[str, Scored]) -> float:
        """Return how probable a difference of at least this size is if both are equally good."""
        return paired_p(
            [
                (pairs.count((True, False)), pairs.count((False, True)), len(pairs))
                for pairs in self._pairs(a, b)
            ]
        )

    def _pairs(
        self, a: Mapping[str, Scored], b: Mapping[str, Scored]
    ) -> list[list[tuple[bool, bool]]]:
        """Return for each part, and each of its questions, whether a and b are right."""
        return [
            [(each.is_correct, b[each.id].is_correct) for each in those]
            for those in self._split(list(a.values()))
        ]

    def _split(self, scored: Sequence[Scored]) -> list[list[Scored]]:
        if not self.group:
            return [list(scored)]
        found = grouped(scored, self.group)
        return [found.get(part, []) for part in self.parts or found]


ALL_QUESTIONS = Metric(name=EVERY_QUESTION)
"""The share of all questions: each question weighs the same."""
MEAN_OF_KINDS = Metric(name="mean of kinds", group="kind")
"""The mean accuracy of the kinds of question: each kind weighs the same."""


def primary_metric(kinds: Collection[str]) -> Metric:
    """Return the primary metric of a set that has these kinds of question.

    A set of one kind, or of none, has one accuracy: that of all questions.
    """
    return MEAN_OF_KINDS if len(set(kinds)) > 1 else ALL_QUESTIONS
