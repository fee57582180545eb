"""What the pages on studies quote: gaps and costs, computed from the records of a study."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

import numpy
from numpy.typing import NDArray

from bas_opd.reproduce.arms import arm_config
from bas_opd.reproduce.comparing import difference, evaluate
from bas_opd.reproduce.questions import read_questions
from bas_opd.reproduce.results import RunResult, identity, read_results
from bas_opd.reproduce.study import read_study
from bas_opd.stats.crossed import crossed_interval
from bas_opd.stats.intervals import Interval
from bas_opd.text import ends_of, ends_text


class StudyRecords:
    """A folder of results with the study that declared them."""

    def __init__(self, folder: Path) -> None:
        self.study = read_study(folder / "study.toml")
        self.results = read_results(folder)
        self.questions = read_questions(folder)
        self.arms = self.by_arm(self.results)

    def by_arm(self, results: list[RunResult]) -> dict[str, list[RunResult]]:
        """Results of each arm that has some, by seed, in the order of the file."""
        found = {
            arm.name: sorted((r for r in results if r.arm == arm.name), key=lambda r: r.seed or 0)
            for arm in self.study.arms
        }
        return {name: those for name, those in found.items() if those}

    def gap(self, arm: str, reference: str) -> Interval:
        """An arm minus a reference, in points, over seeds and questions."""
        found = difference(self.arms, arm, reference, self.questions)
        assert found is not None
        return Interval(mean=100 * found.mean, half_width=100 * found.half_width, n=found.n)

    def adjusted(self, arm: str, reference: str) -> Interval:
        """The same with an interval that is wider for the number of declared comparisons."""
        level = 1 - 0.05 / len(self.study.declared.comparisons)
        return self._sum({arm: 1, reference: -1}, level)

    def growth(self, small: tuple[str, str], large: tuple[str, str]) -> Interval:
        """How much larger the first arm's lead over its reference is than the second's."""
        return self._sum({small[0]: 1, small[1]: -1, large[0]: -1, large[1]: 1}, 0.95)

    def _sum(self, signs: Mapping[str, int], level: float) -> Interval:
        """A signed sum of arms, in points, at the seeds that all have."""
        assert self.questions is not None
        runs = {arm: {run.seed: run for run in self.arms[arm]} for arm in signs}
        common = sorted(set.intersection(*map(set, runs.values())), key=str)
        values = [
            numpy.sum([sign * right(runs[arm][seed]) for arm, sign in signs.items()], axis=0)
            for seed in common
        ]
        kinds, clusters = self.questions.kinds, self.questions.clusters
        found = crossed_interval(numpy.array(values), kinds=kinds, clusters=clusters, level=level)
        return Interval(mean=100 * found.mean, half_width=100 * found.half_width, n=found.n)

    def mean_cost(self, arm: str, name: str) -> float:
        return fmean(getattr(run.cost, name) for run in self.arms[arm])

    def share(self, arm: str, name: str, of: str = "full") -> float:
        return self.mean_cost(arm, name) / self.mean_cost(of, name)

    def verdicts(self) -> dict[tuple[str, str], bool | None]:
        """Whether each declared comparison is met; None: runs are missing."""
        assert self.questions is not None
        return {
            (each.comparison.arm, each.comparison.against): each.is_met
            for each in evaluate(self.study, self.arms, self.questions)
        }


def right(run: RunResult) -> NDArray[numpy.float64]:
    return numpy.array([outcome == "1" for outcome in run.outcomes], dtype=float)


def is_as_claimed(result: RunResult) -> bool:
    """Whether a run's identity is that of its settings, data and base; the base has none."""
    if result.seed is None:
        return True
    for device in ("auto", "cpu", "cuda"):  # as the command named it
        places = ["model.path=x", f"model.device={device}", "data.path=x", "run.output=x"]
        settings = [*result.overrides, *places]
        config = arm_config(result.spec, result.seed, settings, task="finesearch2")
        shared = {name: getattr(result, name) for name in ("train", "questions", "base")}
        if result.identity == identity(config, **shared):
            return True
    return False


def ends(interval: Interval, shape: str = ".1f") -> str:
    return ends_text(ends_of(interval), shape, 1)
