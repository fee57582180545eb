"""Differences between policies: over the seeds they share, and question by question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from bas_opd.evaluate.results import BenchmarkResult, Comparison, compare
from bas_opd.report.arms import ArmRuns, Entry, comparable_accuracies
from bas_opd.stats.intervals import Interval, paired_difference
from bas_opd.stats.resampling import holm

LEVEL = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedContrast:
    """Two arms over the seeds that both were run with."""

    a: str
    b: str
    difference: Interval
    """Headline accuracy of a minus that of b, paired by seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """Two runs on the questions of one benchmark."""

    benchmark: str
    a: Entry
    b: Entry
    comparison: Comparison
    adjusted_p: float
    """McNemar's p, Holm-adjusted over all pairs of this comparison."""

    @property
    def is_significant(self) -> bool:
        """Whether interval and adjusted p both exclude chance."""
        return not self.comparison.difference.holds_zero and self.adjusted_p <= LEVEL

    @property
    def verdict(self) -> str:
        """What the difference of these two runs means; other seeds may differ."""
        difference = self.comparison.difference
        if self.is_significant:
            return f"a {'gain' if difference.mean > 0 else 'loss'} for these two runs"
        if difference.holds_zero:
            return "not significantly different"
        return f"not significantly different, since the adjusted p is above {LEVEL}"


def seed_contrasts(arms: Sequence[ArmRuns]) -> Iterator[SeedContrast]:
    """Compare every policy with full querying, then with random selection of as many rows.

    Only seeds that both were run with count, and at least two of them.
    """
    seeded = sorted((arm for arm in arms if arm.is_seeds), key=lambda arm: arm.members[0].place)
    for policy in ("full", "random"):
        for arm in seeded:
            for reference in seeded:
                if reference.first.config.select.policy == policy and _has_reference(
                    arm, reference
                ):
                    yield from _contrast(arm, reference)


def paired(arms: Sequence[ArmRuns]) -> tuple[Paired, ...]:
    """Pair runs on the questions they share, those against full querying first."""
    partners = sorted(
        ((a, b) if a.place <= b.place else (b, a) for a, b in _partners(arms)),
        key=lambda pair: (-pair[1].place, pair[0].place),
    )
    found = [
        (result.title, a, b, compare(result.scored, other.scored))
        for a, b in partners
        for result, other in _shared(a, b)
    ]
    adjusted = holm([comparison.p_value for *_, comparison in found])
    return tuple(
        Paired(benchmark=title, a=a, b=b, comparison=comparison, adjusted_p=p)
        for (title, a, b, comparison), p in zip(found, adjusted, strict=True)
    )


def _has_reference(arm: ArmRuns, reference: ArmRuns) -> bool:
    mine, other = arm.first.config.select, reference.first.config.select
    if mine.policy in ("full", other.policy) or arm.task != reference.task:
        return False
    return other.policy == "full" or mine.query_ratio == other.query_ratio


def _contrast(arm: ArmRuns, reference: ArmRuns) -> Iterator[SeedContrast]:
    both = [seeds for seeds in arm.by_seed if seeds in reference.by_seed]
    entries = [each.by_seed[seeds] for each in (arm, reference) for seeds in both]
    values = comparable_accuracies(entries)
    if len(both) > 1 and values:
        difference = paired_difference(values[: len(both)], values[len(both) :])
        yield SeedContrast(a=arm.name, b=reference.name, difference=difference)


def _partners(arms: Sequence[ArmRuns]) -> Iterator[tuple[Entry, Entry]]:
    """Yield the pairs of runs that compare policies.

    Two seeds of one policy say nothing of it. Of two policies with several seeds each, runs of the
    same seed say most; every further pair would only weaken the adjusted p of all.
    """
    for one, other in combinations(arms, 2):
        for a in one.members:
            for b in other.members:
                if not (one.is_seeds and other.is_seeds) or a.seeds == b.seeds:
                    yield a, b


def _shared(a: Entry, b: Entry) -> Iterator[tuple[BenchmarkResult, BenchmarkResult]]:
    """Yield the benchmarks that both runs have, with the same questions and judge."""
    mine, theirs = a.run.own_evaluation, b.run.own_evaluation
    if mine is None or theirs is None:
        return
    others = {each.fingerprint: each for each in theirs.results if each.scored}
    for each in mine.results:
        other = others.get(each.fingerprint)
        if each.scored and other is not None and each.is_comparable(other):
            yield each, other
