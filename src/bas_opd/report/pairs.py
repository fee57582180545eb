"""Runs two by two, question by question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from bas_opd.evaluate.comparing import Comparison, compare
from bas_opd.evaluate.results import BenchmarkResult
from bas_opd.report.entries import Entry
from bas_opd.report.families import seeds_of
from bas_opd.report.seeds import Family
from bas_opd.stats.resampling import holm

LEVEL = 0.05


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
    def is_shown(self) -> bool:
        """Whether the difference is more than chance, all pairs that were looked at counted."""
        return not self.comparison.difference.holds_zero and self.adjusted_p <= LEVEL

    @property
    def verdict(self) -> str:
        """What the difference is worth, of these two runs; another seed may give another."""
        difference = self.comparison.difference
        if self.is_shown:
            return f"{'a gain' if difference.mean > 0 else 'a loss'} for these two runs"
        if difference.holds_zero:
            return "a difference inside its interval, so neither is shown to be better"
        return f"not shown, since its adjusted p is above {LEVEL}"


def paired(families: Sequence[Family]) -> tuple[Paired, ...]:
    """Pair runs on the questions they share, those against full querying first."""
    partners = sorted(
        ((a, b) if a.place <= b.place else (b, a) for a, b in _partners(families)),
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


def _partners(families: Sequence[Family]) -> Iterator[tuple[Entry, Entry]]:
    """Yield the pairs of runs that say something of a policy.

    Two seeds of one policy say nothing of it, and of two policies with several seeds each those of
    the same seed say most; every further pair would only weaken the adjusted p of all.
    """
    for one, other in combinations(families, 2):
        for a in one.members:
            for b in other.members:
                if not (one.is_seeds and other.is_seeds) or seeds_of(a.run) == seeds_of(b.run):
                    yield a, b


def _shared(a: Entry, b: Entry) -> Iterator[tuple[BenchmarkResult, BenchmarkResult]]:
    """Yield the benchmarks on whose very questions both runs have verdicts, read alike."""
    mine, theirs = a.run.own_evaluation, b.run.own_evaluation
    if mine is None or theirs is None:
        return
    others = {each.fingerprint: each for each in theirs.results if each.scored}
    for each in mine.results:
        other = others.get(each.fingerprint)
        if each.scored and other is not None and each.is_comparable(other):
            yield each, other
