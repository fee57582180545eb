"""Numbers of a benchmark from scored samples.

A sample that could not be scored counts as not correct, and is shown. Intervals take samples as
independent; where several questions share a picture, they are somewhat too narrow.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from bas_opd.stats.intervals import wilson_interval

Outcome = Literal["correct", "wrong", "unscored"]
Source = Literal["rule", "judge"]
Note = Literal["", "cut", "empty", "refused"]
"""A special case of an answer: cut at the token limit, without text, or refused by the server."""

SEVEN = ("vstar", "zoombench", "hrbench4k", "mmvp", "cvbench", "mmstar", "pope")
"""The paper's benchmarks, in the order of its tables."""

EVERY_QUESTION = "all questions"
"""Name of the accuracy in which each question weighs the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One sample with its verdict."""

    id: str
    outcome: Outcome
    source: Source = "rule"
    """Who decided: the rule, or the judge it was deferred to, even if that judge could not."""
    groups: Mapping[str, str] = field(default_factory=dict)
    value: str = ""
    """What the rule read: a letter, yes or no, or nothing."""
    note: Note = ""

    @property
    def is_correct(self) -> bool:
        return self.outcome == "correct"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One number between 0 and 1, of one part of a benchmark or of all of it."""

    name: str
    group: str = ""
    """What it is a part by: category, split, cycle."""
    part: str = ""
    value: float | None
    """None where there is nothing to divide by."""
    interval: tuple[float, float] | None = None
    """95 %, by Wilson; None where none is known."""
    n: int
    correct: int | None = None
    """How many of n, where the number is a plain share."""

    @property
    def label(self) -> str:
        """What a table calls it, as in "accuracy, cycle 0"."""
        part = f"{self.group} {self.part}".strip()
        return f"{self.name}, {part}" if part else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a table shows of one benchmark."""

    benchmark: str
    n: int
    expected: int | None
    """How many questions the whole benchmark has; None if that is free."""
    primary: Measure
    """The number that stands for the benchmark, rule and judge together; `metric.py` defines it."""
    rule_only: Measure
    """The same, with everything that was deferred counted as not correct."""
    also: tuple[Measure, ...]
    deferred: int
    unscored: int
    is_partial: bool = False
    """Whether these are not the questions of the whole benchmark."""
    cut: int = 0
    """Answers that ran into the limit of tokens."""
    empty: int = 0
    """Answers without any text."""
    refused: int = 0
    """Questions that the server would not answer."""

    @property
    def beside(self) -> Measure | None:
        """The accuracy over all questions, where the primary number is another one."""
        return next((each for each in self.also if each.name == EVERY_QUESTION), None)

    @property
    def deferral_rate(self) -> float:
        return self.rate(self.deferred)

    @property
    def unscored_rate(self) -> float:
        return self.rate(self.unscored)

    def rate(self, count: int) -> float:
        """Return a count of samples as a share of all."""
        return count / self.n if self.n else 0.0


def summarise(
    benchmark: str,
    scored: Sequence[Scored],
    *,
    expected: int | None,
    is_partial: bool,
    primary: Callable[[Sequence[Scored]], Measure],
    also: tuple[Measure, ...],
) -> Summary:
    """Return the primary number of scored samples by rule and judge, and by rule alone."""
    by_rule = [
        each if each.source == "rule" else replace(each, outcome="unscored") for each in scored
    ]
    notes = Counter(each.note for each in scored)
    return Summary(
        benchmark=benchmark,
        n=len(scored),
        expected=expected,
        primary=primary(scored),
        rule_only=primary(by_rule),
        also=also,
        deferred=sum(each.source == "judge" for each in scored),
        unscored=sum(each.outcome == "unscored" for each in scored),
        is_partial=is_partial,
        cut=notes["cut"],
        empty=notes["empty"],
        refused=notes["refused"],
    )


def share(name: str, correct: int, n: int, *, group: str = "", part: str = "") -> Measure:
    """Return correct over n with its Wilson interval."""
    value, interval = (correct / n, wilson_interval(correct, n)) if n else (None, None)
    return Measure(
        name=name, group=group, part=part, value=value, interval=interval, n=n, correct=correct
    )


def accuracy(
    scored: Iterable[Scored], *, name: str = "accuracy", group: str = "", part: str = ""
) -> Measure:
    """Return the share of samples that are correct."""
    outcomes = [each.is_correct for each in scored]
    return share(name, sum(outcomes), len(outcomes), group=group, part=part)


def grouped(scored: Iterable[Scored], group: str) -> dict[str, list[Scored]]:
    """Return the samples by their value of a group, values in alphabetical order."""
    parts: dict[str, list[Scored]] = {}
    for each in scored:
        if group in each.groups:
            parts.setdefault(each.groups[group], []).append(each)
    return {part: parts[part] for part in sorted(parts)}


def accuracy_by(scored: Iterable[Scored], group: str) -> tuple[Measure, ...]:
    """Return the accuracy of every part."""
    return tuple(
        accuracy(those, group=group, part=part) for part, those in grouped(scored, group).items()
    )


def all_right(scored: Iterable[Scored], group: str, *, size: int, name: str) -> Measure:
    """Return the share of groups of a given size in which every sample is correct.

    Of a partial set, groups that are not whole are left out.
    """
    whole = [those for those in grouped(scored, group).values() if len(those) == size]
    right = sum(all(each.is_correct for each in those) for those in whole)
    return share(name, right, len(whole))


def blend(name: str, parts: Sequence[tuple[float, Measure]]) -> Measure:
    """Return a weighted mean of independent shares; undefined if one of them is.

    Its interval is put together from those of the shares: each side's distance is the root of
    the sum of squared, weighted distances (Zou and Donner's method of variance recovery).
    """
    n = sum(measure.n for _, measure in parts)
    if n == 0:
        return Measure(name=name, value=None, n=0)
    value, below, above = 0.0, 0.0, 0.0
    for weight, measure in parts:
        if measure.value is None or measure.interval is None:
            return Measure(name=name, value=None, n=n)
        low, high = measure.interval
        value += weight * measure.value
        below += (weight * (measure.value - low)) ** 2
        above += (weight * (high - measure.value)) ** 2
    interval = (value - math.sqrt(below), value + math.sqrt(above))
    return Measure(name=name, value=value, interval=interval, n=n)


def mean(name: str, measures: Sequence[Measure]) -> Measure:
    """Return the unweighted mean of independent shares."""
    return blend(name, [(1 / len(measures), measure) for measure in measures])


def overall(summaries: Iterable[Summary]) -> Measure | None:
    """Return the unweighted mean of the seven, or nothing while one of them is missing."""
    primaries = {summary.benchmark: summary.primary for summary in summaries}
    if not set(SEVEN) <= set(primaries):
        return None
    return mean("average of seven", [primaries[name] for name in SEVEN])
