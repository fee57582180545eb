"""Several runs side by side: what each cost and reached, and what can be said of the differences.

Pages and texts show the same object, so that they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from bas_opd.audit.resampling import holm
from bas_opd.audit.statistics import Interval, mean_interval
from bas_opd.errors import DataError
from bas_opd.evaluate.benchmarks import Measure
from bas_opd.evaluate.comparing import Comparison, compare
from bas_opd.report.evaluation import BenchmarkResult
from bas_opd.report.run import Run

LEVEL = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One run in a comparison."""

    number: int
    label: str
    run: Run
    full: Run | None
    """The run with full querying that it can be measured against; none, if it is that one."""

    @property
    def accuracy(self) -> Measure | None:
        return None if self.run.evaluation is None else self.run.evaluation.headline

    @property
    def token_share(self) -> float | None:
        """Scored tokens over those of full querying: of that run, or of its own candidates."""
        whole = self.run.totals["candidate_tokens"]
        if self.full is not None:
            whole = self.full.totals["scored_tokens"]
        return self.run.totals["scored_tokens"] / whole if whole else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """Two runs on the questions of one benchmark."""

    benchmark: str
    a: str
    b: str
    comparison: Comparison
    adjusted_p: float
    """McNemar's p, Holm-adjusted over all pairs of this comparison."""

    @property
    def is_shown(self) -> bool:
        """Whether the difference is more than chance, all pairs that were looked at counted."""
        return not self.comparison.difference.holds_zero and self.adjusted_p <= LEVEL


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedGroup:
    """Runs that differ in their seeds alone."""

    policy: str
    labels: tuple[str, ...]
    accuracy: Interval | None
    """Over the runs; none unless all were evaluated on the same questions."""
    scored_tokens: Interval
    seconds: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """What several runs say together."""

    entries: tuple[Entry, ...]
    pairs: tuple[Paired, ...]
    groups: tuple[SeedGroup, ...]
    notes: tuple[str, ...]
    """What stands in the way of comparing them."""


def compare_runs(runs: Sequence[Run]) -> RunComparison:
    """Compare runs in the order given."""
    if len({run.path.resolve() for run in runs}) < len(runs):
        raise DataError("The same run was given twice. Name each run once.")
    labels = _labels(runs)
    entries = tuple(
        Entry(number=number, label=label, run=run, full=_full_of(run, runs))
        for number, (label, run) in enumerate(zip(labels, runs, strict=True), start=1)
    )
    return RunComparison(
        entries=entries,
        pairs=_pairs(entries),
        groups=tuple(_groups(entries)),
        notes=tuple(_notes(entries)),
    )


def findings(comparison: RunComparison) -> tuple[str, ...]:
    """Say of each pair what its difference is worth."""
    return tuple(_sentence(pair) for pair in comparison.pairs)


def headline(comparison: RunComparison) -> str:
    """Return the comparison in one sentence: the first pair's difference, or what was asked."""
    if comparison.pairs:
        return _sentence(comparison.pairs[0], with_p=False)
    asked = ", ".join(
        f"{entry.label} {entry.run.totals['calls']:,} times" for entry in comparison.entries
    )
    return f"The teacher was asked by {asked}; no two runs were judged on the same questions."


def _sentence(pair: Paired, *, with_p: bool = True) -> str:
    result = pair.comparison
    low, high = (
        100 * (result.difference.mean + side * result.difference.half_width) for side in (-1, 1)
    )
    if result.only_a == result.only_b == 0:
        return f"{pair.a} and {pair.b} have the same questions of {pair.benchmark} right."
    if pair.is_shown:
        verdict = "a gain" if result.difference.mean > 0 else "a loss"
    elif result.difference.holds_zero:
        verdict = "a difference inside its interval, so neither is shown to be better"
    else:
        verdict = f"not shown, since its adjusted p is above {LEVEL}"
    p = f", adjusted p {pair.adjusted_p:.2g}" if with_p else ""
    return (
        f"{pair.a} against {pair.b} on {pair.benchmark}: {100 * result.difference.mean:+.1f} "
        f"points over {result.n:,} questions (95 % interval {low:+.1f} to {high:+.1f}{p}), "
        f"{verdict}."
    )


def _labels(runs: Sequence[Run]) -> list[str]:
    """Call a run by its policy; where that is not unique, by its folder; else by its place."""
    for names in (
        [run.policy for run in runs],
        [run.name for run in runs],
        [f"{run.path.resolve().parent.name}/{run.name}" for run in runs],
    ):
        if len(set(names)) == len(names):
            return names
    return [str(run.path) for run in runs]


def _full_of(run: Run, runs: Sequence[Run]) -> Run | None:
    if run.policy == "full":
        return None
    partners = [each for each in runs if each.policy == "full" and _same_task(run, each)]
    same_seed = [each for each in partners if each.config.run.seed == run.config.run.seed]
    return next(iter([*same_seed, *partners]), None)


def _same_task(a: Run, b: Run) -> bool:
    """Whether two runs had the same data, start, batches and number of steps."""
    return (a.started.data.fingerprint, a.started.base, a.config.rollout, len(a.steps)) == (
        b.started.data.fingerprint,
        b.started.base,
        b.config.rollout,
        len(b.steps),
    )


def _pairs(entries: Sequence[Entry]) -> tuple[Paired, ...]:
    found = [
        (result.title, a.label, b.label, compare(result.scored, other.scored))
        for a, b in combinations(entries, 2)
        for result, other in _shared(a.run, b.run)
    ]
    adjusted = holm([comparison.p_value for *_, comparison in found])
    return tuple(
        Paired(benchmark=title, a=a, b=b, comparison=comparison, adjusted_p=p)
        for (title, a, b, comparison), p in zip(found, adjusted, strict=True)
    )


def _shared(a: Run, b: Run) -> Iterator[tuple[BenchmarkResult, BenchmarkResult]]:
    """Yield the benchmarks on whose very questions both runs have verdicts."""
    if a.evaluation is None or b.evaluation is None:
        return
    others = {each.fingerprint: each for each in b.evaluation.results if each.scored}
    for each in a.evaluation.results:
        if each.scored and each.fingerprint in others:
            yield each, others[each.fingerprint]


def _groups(entries: Sequence[Entry]) -> Iterator[SeedGroup]:
    families: dict[object, list[Entry]] = {}
    for entry in entries:
        families.setdefault(_family(entry.run), []).append(entry)
    for members in families.values():
        if len(members) > 1:
            yield SeedGroup(
                policy=members[0].run.policy,
                labels=tuple(each.label for each in members),
                accuracy=_mean_accuracy(members),
                scored_tokens=mean_interval(
                    [float(each.run.totals["scored_tokens"]) for each in members]
                ),
                seconds=mean_interval([each.run.seconds for each in members]),
            )


def _family(run: Run) -> str:
    """Return what runs have in common that differ in seeds and places alone."""
    settings = run.config.model_dump(mode="json")
    settings["select"].pop("seed")
    settings["run"] = {"steps": len(run.steps)}
    settings["data"].pop("path")
    settings["model"].pop("path")
    return repr((settings, run.started.base))


def _mean_accuracy(members: Sequence[Entry]) -> Interval | None:
    values = []
    questions = set()
    for entry in members:
        evaluation = entry.run.evaluation
        if evaluation is None or evaluation.headline.value is None:
            return None
        values.append(evaluation.headline.value)
        questions.add(frozenset(each.fingerprint for each in evaluation.results))
    return mean_interval(values) if len(questions) == 1 else None


def _notes(entries: Sequence[Entry]) -> Iterator[str]:
    runs = [entry.run for entry in entries]
    unevaluated = [entry.label for entry in entries if entry.run.evaluation is None]
    if unevaluated:
        yield f"Not evaluated: {', '.join(unevaluated)}; `bas-opd eval RUN` does it."
    unfinished = [entry.label for entry in entries if not entry.run.is_finished]
    if unfinished:
        yield f"Not finished: {', '.join(unfinished)}; shown is what they did so far."
    for what, values in (
        ("on different data", {run.started.data.fingerprint for run in runs}),
        ("from different base models", {run.started.base for run in runs}),
        ("for different numbers of steps", {len(run.steps) for run in runs}),
        ("on different devices", {run.started.device for run in runs}),
    ):
        if len(values) > 1:
            yield f"The runs were trained {what}; their numbers differ for that reason too."
    if not any(run.policy == "full" for run in runs):
        yield (
            "No run with full querying is among them, so shares are of each run's own candidates."
        )
    if len(entries) == len({run.policy for run in runs}):
        yield (
            "One seed of each policy: intervals are over questions and leave out how much another "
            "seed would change."
        )
