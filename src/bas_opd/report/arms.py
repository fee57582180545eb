"""The runs of a comparison, the arms they belong to, and what an arm reached and cost.

An arm is one way of selecting under one set of settings; its runs differ in their seeds alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import PurePath
from typing import Any

from bas_opd.config.loading import FREE, dump, flat
from bas_opd.config.schema import Config, DataConfig, ModelConfig
from bas_opd.errors import DataError
from bas_opd.evaluate.benchmarks import Measure
from bas_opd.evaluate.results import RunEvaluation
from bas_opd.report.run import Run
from bas_opd.select.rules import reference_order
from bas_opd.stats.intervals import Interval, mean_interval
from bas_opd.stats.resampling import Estimate
from bas_opd.text import plus_minus

SEEDS = ("run.seed", "select.seed")
PATHS = ("model.path", "data.path", "run.output", "eval.data")
"""Settings that say where something is; what it is, its fingerprint says."""
FOLDERS = (*PATHS, "teacher.path")
"""Settings of which a page shows the end alone."""

ArmKey = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One run in a comparison."""

    number: int
    label: str
    run: Run
    full: Run | None
    """The run with full querying that it is compared with; none if it is that run itself. One with
    fewer rollouts a prompt is compared with the one that has most."""

    @property
    def place(self) -> int:
        """Of its policy in comparisons: the higher one is the reference."""
        return reference_order(self.run.config.select.policy)

    @property
    def seeds(self) -> tuple[int, int]:
        """Of training and of selection."""
        return self.run.config.run.seed, self.run.config.select.seed

    @property
    def accuracy(self) -> Measure | None:
        evaluation = self.run.own_evaluation
        return None if evaluation is None else evaluation.headline

    @property
    def before(self) -> Measure | None:
        """The accuracy of its base, if that was asked the same questions."""
        before = self.run.before
        return None if before is None else before.headline

    @property
    def beside(self) -> Measure | None:
        """The accuracy over all questions, where that is not `accuracy` itself."""
        evaluation = self.run.own_evaluation
        return None if evaluation is None else evaluation.beside

    @property
    def token_share(self) -> float | None:
        """Scored tokens over those of full querying: of that run, or of its own candidates."""
        whole = self.run.totals["candidate_tokens"]
        if self.full is not None:
            whole = self.full.totals["scored_tokens"]
        return self.run.totals["scored_tokens"] / whole if whole else None

    @property
    def processed_share(self) -> float | None:
        """Tokens the teacher processed, prompts counted, over those of the run with full querying.

        Without that run it is unknown: the prompts of unselected rows were never counted.
        """
        return self._share("processed_tokens")

    @property
    def total_share(self) -> float | None:
        """Total tokens over those of the run with full querying; unknown without that run."""
        return self._share("total_tokens")

    def _share(self, name: str) -> float | None:
        full = self.full or (self.run if self.run.is_full else None)
        if full is None or not full.totals[name]:
            return None
        return self.run.totals[name] / full.totals[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRuns:
    """All given runs of one arm."""

    name: str
    """The policy, and the settings that distinguish it from other arms of that policy."""
    members: tuple[Entry, ...]

    @property
    def is_seeds(self) -> bool:
        """Whether these are several runs, no two of them with the same seeds."""
        return len(self.members) > 1 and len(self.by_seed) == len(self.members)

    @property
    def by_seed(self) -> dict[tuple[int, int], Entry]:
        return {entry.seeds: entry for entry in self.members}

    @property
    def first(self) -> Run:
        return self.members[0].run

    @property
    def task(self) -> ArmKey:
        """Everything but how rows were selected."""
        return tuple(pair for pair in arm_key(self.first) if not pair[0].startswith("select."))

    @property
    def metric(self) -> str:
        """Name of the accuracy."""
        accuracy = self.members[0].accuracy
        return "" if accuracy is None else accuracy.name

    @property
    def accuracy(self) -> Interval | None:
        """Over the runs; none unless all were evaluated on the same questions."""
        values = comparable_accuracies(self.members)
        return mean_interval(values) if values else None

    @property
    def seconds(self) -> Interval:
        return mean_interval([entry.run.seconds for entry in self.members])

    @property
    def tokens(self) -> tuple[str, str, str]:
        """Scored, processed and total tokens; a dash for what the method has not."""
        names = ("scored_tokens", "processed_tokens", "total_tokens")
        scored, processed, total = (plus_minus(self.total(name), ",.0f") for name in names)
        return (scored, processed, total) if self.first.has_queries else ("-", "-", total)

    def total(self, name: str) -> Interval:
        """Return the mean of a total over the runs, such as `scored_tokens`."""
        return mean_interval([float(entry.run.totals[name]) for entry in self.members])


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """What an arm reached and cost, over its seeds; one seed has intervals over questions."""

    name: str
    """As in full or learned-25."""
    policy: str = ""
    """Empty if it was not trained."""
    budget: float | None
    """Share of candidates that it may query, 0 without queries; none if it was not trained."""
    seeds: int = 1
    parts: Mapping[str, Estimate]
    """Accuracy on each benchmark, or on each kind of question, between 0 and 1."""
    accuracy: Estimate
    """Its primary accuracy."""
    metric: str
    """Name of that accuracy, as in mean of kinds."""
    beside: Estimate | None = None
    """Its accuracy over all questions, where the primary one is another."""
    token_share: float | None = None
    """Scored tokens over those of full querying; none if that was not run."""
    total_share: float | None = None
    """Total tokens over those of full querying, likewise."""


def entries_of(runs: Sequence[Run]) -> tuple[Entry, ...]:
    """Number and name the runs in the order given."""
    return tuple(
        Entry(number=number, label=label, run=run, full=_full_of(run, runs))
        for number, (label, run) in enumerate(zip(_labels(runs), runs, strict=True), start=1)
    )


def arm_key(run: Run) -> ArmKey:
    """Return what all runs of an arm have in common."""
    facts = {
        **_settings(run),
        "data": run.started.data.fingerprint,
        "base": run.started.base,
        "steps": len(run.steps),
    }
    return tuple(sorted((name, str(value)) for name, value in facts.items()))


def arm_names(runs: Sequence[Run]) -> dict[ArmKey, str]:
    """Name each arm by its policy, and by its own settings where others share that policy."""
    arms = {arm_key(run): run for run in runs}
    names: dict[ArmKey, str] = {}
    for key, run in arms.items():
        others = [_settings(each) for each in arms.values() if each.policy == run.policy]
        names[key] = ", ".join((run.policy, *_own_settings(_settings(run), others)))
    if len(set(names.values())) < len(names):
        return {key: f"{names[key]} ({run.name})" for key, run in arms.items()}
    return names


def group_by_arm(entries: Sequence[Entry]) -> tuple[ArmRuns, ...]:
    """Group runs by arm, in the order in which the arms appear."""
    names = arm_names([entry.run for entry in entries])
    members: dict[str, list[Entry]] = {name: [] for name in names.values()}
    for entry in entries:
        members[names[arm_key(entry.run)]].append(entry)
    return tuple(ArmRuns(name=name, members=tuple(those)) for name, those in members.items())


def arms_of_runs(runs: Sequence[Run]) -> list[Arm]:
    """Return what the arms of evaluated runs reached and cost, full querying last."""
    asked = {run.path: sorted(each.title for each in _evaluation(run).results) for run in runs}
    if len({tuple(titles) for titles in asked.values()}) > 1:
        raise DataError(
            "The runs were evaluated on different benchmarks and cannot share a table or figure: "
            + "; ".join(f"{path}: {', '.join(titles)}" for path, titles in asked.items())
            + "."
        )
    groups = group_by_arm(entries_of(runs))
    for group in groups:
        if len(group.by_seed) < len(group.members):
            raise DataError(
                f"Two runs of {group.name} have the same seeds, so they are not independent. "
                "Name each run once."
            )
    full = [group for group in groups if group.first.is_full]
    # With fewer rollouts a prompt, full querying is no reference.
    full.sort(key=lambda group: -_rollouts(group.first))
    ordered = sorted(groups, key=lambda group: group.first.is_full)
    return [_arm(group, full[0] if full else None) for group in ordered]


def over_seeds(values: Sequence[float]) -> Estimate:
    """Return a mean with its Student-t interval, which has no width if there is one value."""
    interval = mean_interval(values)
    reach = interval.half_width if math.isfinite(interval.half_width) else 0.0
    return Estimate(value=interval.mean, low=interval.mean - reach, high=interval.mean + reach)


def estimate_of(measure: Measure) -> Estimate | None:
    """Return a measure with its interval over questions; none if nothing was measured."""
    if measure.value is None:
        return None
    low, high = measure.interval or (measure.value, measure.value)
    return Estimate(value=measure.value, low=low, high=high)


def comparable_accuracies(entries: Sequence[Entry]) -> list[float]:
    """Return the accuracies, or nothing unless all have the same questions and judge."""
    evaluations = [each for entry in entries if (each := entry.run.own_evaluation) is not None]
    values = [each.headline.value for each in evaluations]
    known = [value for value in values if value is not None]
    is_alike = all(a.is_comparable(b) for a, b in combinations(evaluations, 2))
    return known if len(known) == len(entries) and is_alike else []


def _evaluation(run: Run) -> RunEvaluation:
    if run.own_evaluation is None:
        raise DataError(
            f"The run in {run.path} has no evaluation of its current weights, so it has no "
            f"accuracy to draw. Run `bas-opd eval {run.path} --bench ...` first."
        )
    return run.own_evaluation


def _arm(group: ArmRuns, full: ArmRuns | None) -> Arm:
    evaluations = [_evaluation(entry.run) for entry in group.members]
    beside = [each for evaluation in evaluations if (each := evaluation.beside) is not None]
    return Arm(
        name=group.name,
        policy=group.first.kind,
        budget=group.first.query_share,
        seeds=len(group.members),
        parts={
            result.title: _estimate(
                [
                    each.summary.primary
                    for evaluation in evaluations
                    for each in evaluation.results
                    if each.title == result.title
                ]
            )
            for result in evaluations[0].results
        },
        accuracy=_estimate([evaluation.headline for evaluation in evaluations]),
        metric=evaluations[0].headline.name,
        beside=_estimate(beside) if len(beside) == len(evaluations) else None,
        token_share=_share(group, full, "scored_tokens"),
        total_share=_share(group, full, "total_tokens"),
    )


def _share(group: ArmRuns, full: ArmRuns | None, name: str) -> float | None:
    whole = 0.0 if full is None else full.total(name).mean
    return group.total(name).mean / whole if whole else None


def _estimate(measures: Sequence[Measure]) -> Estimate:
    """Over seeds if there are several, else over the questions of the one run."""
    known = [each for measure in measures if (each := estimate_of(measure)) is not None]
    if not known:
        raise DataError("A benchmark without questions has no accuracy to draw.")
    return known[0] if len(known) == 1 else over_seeds([each.value for each in known])


def _labels(runs: Sequence[Run]) -> list[str]:
    """Call a run by its policy, else by its folder, else by its path: the first that is unique."""
    for names in (
        [run.policy for run in runs],
        [run.name for run in runs],
        [f"{run.path.resolve().parent.name}/{run.name}" for run in runs],
    ):
        if len(set(names)) == len(names):
            return names
    return [str(run.path) for run in runs]


def _full_of(run: Run, runs: Sequence[Run]) -> Run | None:
    mine = _rollouts(run)
    # Full querying with fewer rollouts a prompt than another run of it is no reference.
    least = mine + 1 if run.is_full else mine
    partners = [
        each
        for each in runs
        if each.is_full and _task(run) == _task(each) and _rollouts(each) >= least
    ]
    partners.sort(key=lambda each: (_rollouts(each) != mine, -_rollouts(each)))
    partners = [each for each in partners if _rollouts(each) == _rollouts(partners[0])]
    same_seed = [each for each in partners if each.config.run.seed == run.config.run.seed]
    return next(iter([*same_seed, *partners]), None)


def _task(run: Run) -> tuple[Any, ...]:
    """Data, start, batches and number of steps, whatever the rollouts a prompt."""
    rollout = run.config.rollout.model_copy(update={"per_prompt": 1})
    return run.started.data.fingerprint, run.started.base, rollout, len(run.steps)


def _rollouts(run: Run) -> int:
    return run.config.rollout.per_prompt


def default_settings() -> dict[str, Any]:
    """Return every setting with its default; those in `PATHS` have none, but a dash."""
    return flat(dump(Config(model=ModelConfig(path="-"), data=DataConfig(path="-"))))


def shortened(path: str) -> str:
    """Return the end of a path: a page that is sent on shows no folders of its writer."""
    parts = PurePath(path).parts
    return "/".join(("…", *parts[-2:])) if len(parts) > 2 else path


def _own_settings(mine: dict[str, Any], others: Sequence[dict[str, Any]]) -> list[str]:
    """Return the settings that are neither the default nor shared by every other."""
    plain = default_settings()

    def written(key: str, value: Any) -> str:
        if key in FOLDERS and value:
            return shortened(value)
        return str(value).lower() if isinstance(value, bool) else str(value)

    return [
        f"{key}={written(key, value)}"
        for key, value in mine.items()
        if value != plain[key] and any(each[key] != value for each in others)
    ]


def _settings(run: Run) -> dict[str, Any]:
    left_out = {*SEEDS, *PATHS, *FREE}
    return {key: value for key, value in flat(dump(run.config)).items() if key not in left_out}
