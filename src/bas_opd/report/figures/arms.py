"""What the figures of accuracy are drawn from: policies, each with its accuracy and its cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from bas_opd.errors import DataError
from bas_opd.evaluate.benchmarks import Measure
from bas_opd.evaluate.results import RunEvaluation
from bas_opd.report.families import family_names, family_of, seeds_of
from bas_opd.report.run import Run
from bas_opd.stats.intervals import mean_interval
from bas_opd.stats.resampling import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One policy, over the seeds it was run with; a single seed has intervals over questions."""

    name: str
    """As in full or learned-25."""
    budget: float | None
    """Share of candidates that it may query; none if it was not trained."""
    seeds: int = 1
    parts: Mapping[str, Estimate]
    """Accuracy on each benchmark, or on each kind of question, between 0 and 1."""
    mean: Estimate
    """Accuracy over all parts, each counted alike."""
    token_share: float | None = None
    """Scored tokens over those of full querying; none if that was not run."""

    @property
    def is_full(self) -> bool:
        return self.budget == 1


def over_seeds(values: Sequence[float]) -> Estimate:
    """Return a mean with its Student-t interval; of one value no interval is known."""
    interval = mean_interval(values)
    reach = interval.half_width if math.isfinite(interval.half_width) else 0.0
    return Estimate(value=interval.mean, low=interval.mean - reach, high=interval.mean + reach)


def arms_of_runs(runs: Sequence[Run]) -> list[Arm]:
    """Return what evaluated runs say, full querying last; runs that differ in seeds are one arm."""
    judged = [(run, _evaluation(run)) for run in runs]
    asked = {run.path: sorted(each.title for each in found.results) for run, found in judged}
    if len({tuple(titles) for titles in asked.values()}) > 1:
        raise DataError(
            "The runs were not put to the same benchmarks, so they cannot stand in one figure: "
            + "; ".join(f"{path}: {', '.join(titles)}" for path, titles in asked.items())
            + "."
        )
    names = family_names(runs)
    groups: dict[str, list[tuple[Run, RunEvaluation]]] = {name: [] for name in names.values()}
    for run, evaluation in judged:
        groups[names[family_of(run)]].append((run, evaluation))
    for name, members in groups.items():
        if len({seeds_of(run) for run, _ in members}) < len(members):
            raise DataError(
                f"Two of the runs of {name} have the same seeds, so they are no two measurements. "
                "Name each run once."
            )
    full = [
        run.totals["scored_tokens"]
        for members in groups.values()
        for run, _ in members
        if run.policy == "full"
    ]
    ordered = sorted(groups.items(), key=lambda group: group[1][0][0].policy == "full")
    return [_arm(name, members, fmean(full) if full else None) for name, members in ordered]


def _evaluation(run: Run) -> RunEvaluation:
    if run.own_evaluation is None:
        raise DataError(
            f"The run in {run.path} was not evaluated, or with other weights than it has now, so "
            f"it has no accuracy to draw. Run `bas-opd eval {run.path} --bench ...` first."
        )
    return run.own_evaluation


def _arm(name: str, runs: Sequence[tuple[Run, RunEvaluation]], full_tokens: float | None) -> Arm:
    evaluations = [evaluation for _, evaluation in runs]
    measures = {
        result.title: [
            each.summary.primary
            for evaluation in evaluations
            for each in evaluation.results
            if each.title == result.title
        ]
        for result in evaluations[0].results
    }
    tokens = fmean(run.totals["scored_tokens"] for run, _ in runs)
    first = runs[0][0]
    return Arm(
        name=name,
        budget=1.0 if first.policy == "full" else float(first.config.select.query_ratio),
        seeds=len(runs),
        parts={title: _estimate(each) for title, each in measures.items()},
        mean=_estimate([evaluation.headline for evaluation in evaluations]),
        token_share=tokens / full_tokens if full_tokens else None,
    )


def _estimate(measures: Sequence[Measure]) -> Estimate:
    """Over seeds if there are several, else over the questions of the one run."""
    known = [(each.value, each) for each in measures if each.value is not None]
    if not known:
        raise DataError("A benchmark without a single question has no accuracy to draw.")
    if len(known) > 1:
        return over_seeds([value for value, _ in known])
    value, measure = known[0]
    low, high = measure.interval or (value, value)
    return Estimate(value=value, low=low, high=high)
