"""Differences of arms, paired by seed and by question, and the claims that a study declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy

from bas_opd.reproduce.arms import BASE
from bas_opd.reproduce.questions import Questions
from bas_opd.reproduce.results import RunResult
from bas_opd.reproduce.study import Comparison, Study
from bas_opd.stats.crossed import crossed_interval
from bas_opd.stats.intervals import Interval, paired_difference

Arms = Mapping[str, Sequence[RunResult]]
"""Arm -> its results by seed, arms in the order of the table."""


def difference(
    arms: Arms, arm: str, reference: str, questions: Questions | None = None
) -> Interval | None:
    """Return an arm's mean minus that of a reference, over the seeds that both have.

    The interval is over seeds and questions, or over seeds alone if the questions are not known.
    The base is the same at every seed.
    """
    if arm == reference:
        return None
    mine, theirs = _at_common_seeds(arms, arm, reference)
    if not mine:
        return None
    if questions is None:
        return paired_difference(
            [each.accuracy for each in mine], [each.accuracy for each in theirs]
        )
    values = _outcomes(mine) - _outcomes(theirs)
    return crossed_interval(values, kinds=questions.kinds, clusters=questions.clusters)


def _at_common_seeds(arms: Arms, *names: str) -> list[list[RunResult]]:
    """Return the results of each arm at the seeds that all have; the base is the same at each."""
    trained = {name: {each.seed: each for each in arms[name]} for name in names if name != BASE}
    common = sorted(set.intersection(*map(set, trained.values())), key=str)
    return [
        [arms[BASE][0] if name == BASE else trained[name][seed] for seed in common]
        for name in names
    ]


def _outcomes(results: Sequence[RunResult]) -> numpy.ndarray:
    return numpy.array([[outcome == "1" for outcome in each.outcomes] for each in results], float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A declared comparison and what the results say of it."""

    comparison: Comparison
    missing: int
    """Runs it needs that have no result yet; while there are any, nothing is evaluated."""
    difference: Interval | None = None
    gain: float | None = None
    """Of `against` over the base, at the same seeds."""
    tested: Interval | None = None
    """What the claim says is above zero: the difference or, for non-inferiority with a margin m,
    arm - (1 - m) against - m base, so that the gain counts with its uncertainty."""

    @property
    def margin(self) -> float:
        """The margin as a difference of accuracies; 0 for superiority."""
        return (self.comparison.margin or 0.0) * (self.gain or 0.0)

    @property
    def is_met(self) -> bool | None:
        """Whether the interval of what is tested is above zero; none while runs are missing."""
        if self.tested is None:
            return None
        lower = self.tested.mean - self.tested.half_width
        # Where nothing was gained over the base, there is nothing to be non-inferior to.
        gained = self.comparison.margin is None or (self.gain or 0.0) > 0
        return gained and lower > 0


def evaluate(study: Study, arms: Arms, questions: Questions) -> list[Verdict]:
    """Evaluate the primary comparisons of a study, each as it was declared and only if complete."""
    declared = {arm.name: arm.seeds for arm in study.declared.arms}
    verdicts = []
    for each in study.declared.comparisons:
        names = (each.arm, each.against)
        wanted = {(name, seed) for name in names for seed in declared[name]} | {(BASE, None)}
        found = {(name, run.seed) for name in (*names, BASE) for run in arms.get(name, ())}
        if missing := len(wanted - found):
            verdicts.append(Verdict(comparison=each, missing=missing))
            continue
        results = _at_common_seeds(arms, *names, BASE)
        arm, against, base = map(_outcomes, results)
        margin = each.margin or 0.0
        tested = arm - (1 - margin) * against - margin * base
        verdicts.append(
            Verdict(
                comparison=each,
                missing=0,
                difference=difference(arms, *names, questions),
                gain=fmean(run.accuracy for run in results[1]) - arms[BASE][0].accuracy,
                tested=crossed_interval(tested, kinds=questions.kinds, clusters=questions.clusters),
            )
        )
    return verdicts
