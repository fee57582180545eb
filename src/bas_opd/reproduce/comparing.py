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
    both = {name: {each.seed: each for each in arms[name]} for name in (arm, reference)}
    for name, other in ((arm, reference), (reference, arm)):
        if name == BASE:
            both[BASE] = dict.fromkeys(both[other], arms[BASE][0])
    common = sorted(both[arm].keys() & both[reference].keys(), key=str)
    if not common:
        return None
    mine, theirs = ([both[name][seed] for seed in common] for name in (arm, reference))
    if questions is None:
        return paired_difference(
            [each.accuracy for each in mine], [each.accuracy for each in theirs]
        )
    values = _outcomes(mine) - _outcomes(theirs)
    return crossed_interval(values, kinds=questions.kinds, clusters=questions.clusters)


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
    """Of `against` over the base."""

    @property
    def margin(self) -> float:
        """The margin as a difference of accuracies; 0 for superiority."""
        return (self.comparison.margin or 0.0) * (self.gain or 0.0)

    @property
    def is_met(self) -> bool | None:
        """Whether the interval is above minus the margin; none while runs are missing."""
        if self.difference is None:
            return None
        lower = self.difference.mean - self.difference.half_width
        # Where nothing was gained over the base, there is nothing to be non-inferior to.
        gained = self.comparison.margin is None or (self.gain or 0.0) > 0
        return gained and lower > -self.margin


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
        gain = fmean(run.accuracy for run in arms[each.against]) - arms[BASE][0].accuracy
        verdicts.append(
            Verdict(
                comparison=each,
                missing=0,
                difference=difference(arms, *names, questions),
                gain=gain,
            )
        )
    return verdicts
