"""Several runs side by side: cost, accuracy, and whether they differ significantly.

Pages and texts show the same object, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from bas_opd.errors import DataError
from bas_opd.evaluate.benchmarks.summary import EVERY_QUESTION
from bas_opd.evaluate.results import BenchmarkResult, Comparison, compare
from bas_opd.report.arms import ArmRuns, Entry, comparable_accuracies, entries_of, group_by_arm
from bas_opd.report.findings import interval_text, stale_sentence, value_text, verdict
from bas_opd.report.run import Run
from bas_opd.stats.intervals import Interval, paired_difference
from bas_opd.stats.resampling import holm
from bas_opd.text import clock, counted, listed, percent, plus_minus, points

FEW = 4
"""Runs that a heading names one by one."""
LEVEL = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedContrast:
    """Two arms over the seeds that both were run with."""

    a: str
    b: str
    metric: str
    """Name of the accuracy."""
    difference: Interval
    """Accuracy of a minus that of b, paired by seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """Two runs on the questions of one benchmark."""

    benchmark: str
    a: Entry
    b: Entry
    comparison: Comparison
    adjusted_p: float
    """Holm-adjusted over all pairs of this comparison."""

    @property
    def is_significant(self) -> bool:
        """Whether interval and adjusted p both exclude chance."""
        return not self.comparison.difference.holds_zero and self.adjusted_p <= LEVEL

    @property
    def verdict(self) -> str:
        """What the difference of these two runs means; other seeds may differ."""
        difference = self.comparison.difference
        if self.is_significant:
            return f"{verdict(difference)} for these two runs"
        if difference.holds_zero:
            return verdict(difference)
        return f"not significantly different, since the adjusted p is above {LEVEL}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """Several runs and their differences."""

    entries: tuple[Entry, ...]
    pairs: tuple[Paired, ...]
    groups: tuple[ArmRuns, ...]
    """Arms of several seeds."""
    contrasts: tuple[SeedContrast, ...]
    notes: tuple[str, ...]
    """What limits the comparison."""


def compare_runs(runs: Sequence[Run]) -> RunComparison:
    """Compare runs in the order given."""
    if len({run.path.resolve() for run in runs}) < len(runs):
        raise DataError("The same run was given twice. Name each run once.")
    entries = entries_of(runs)
    arms = group_by_arm(entries)
    return RunComparison(
        entries=entries,
        pairs=_paired(arms),
        groups=tuple(arm for arm in arms if arm.is_seeds),
        contrasts=tuple(_seed_contrasts(arms)),
        notes=tuple(_notes(entries, arms)),
    )


def _seed_contrasts(arms: Sequence[ArmRuns]) -> Iterator[SeedContrast]:
    """Compare every policy with full querying, then with random selection of as many rows.

    Only seeds that both were run with count, and at least two of them.
    """
    seeded = sorted((arm for arm in arms if arm.is_seeds), key=lambda arm: arm.members[0].place)
    pairs = [(arm, other) for arm in seeded for other in seeded if _is_reference(other, arm)]
    for arm, reference in sorted(pairs, key=lambda pair: -pair[1].members[0].place):
        both = [seeds for seeds in arm.by_seed if seeds in reference.by_seed]
        entries = [each.by_seed[seeds] for each in (arm, reference) for seeds in both]
        values = comparable_accuracies(entries)
        if len(both) > 1 and values:
            difference = paired_difference(values[: len(both)], values[len(both) :])
            yield SeedContrast(
                a=arm.name, b=reference.name, metric=arm.metric, difference=difference
            )


def _paired(arms: Sequence[ArmRuns]) -> tuple[Paired, ...]:
    """Pair runs on the questions they share, those against full querying first."""
    partners = sorted(
        ((a, b) if a.place <= b.place else (b, a) for a, b in _partners(arms)),
        key=lambda pair: (-pair[1].place, pair[0].place),
    )
    found = [
        (result.title, a, b, compare(result.scored, other.scored, result.metric))
        for a, b in partners
        for result, other in _shared(a, b)
    ]
    adjusted = holm([comparison.p_value for *_, comparison in found])
    return tuple(
        Paired(benchmark=title, a=a, b=b, comparison=comparison, adjusted_p=p)
        for (title, a, b, comparison), p in zip(found, adjusted, strict=True)
    )


def _is_reference(reference: ArmRuns, arm: ArmRuns) -> bool:
    rule, other = arm.first.rule, reference.first.rule
    same = rule == other and arm.first.method == reference.first.method
    if arm.first.is_full or same or arm.task != reference.task:
        return False
    is_random = other.draws_at_random and not other.learns
    share, by = arm.first.query_share, reference.first.query_share
    return reference.first.is_full or (is_random and share == by)


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
        is_known = each.summary.primary.value is not None
        if each.scored and is_known and other is not None and each.is_comparable(other):
            yield each, other


def metric_name(comparison: RunComparison) -> str:
    """Name the accuracy of the runs, or of each of them if they differ in it."""
    names = [entry.accuracy.name for entry in comparison.entries if entry.accuracy is not None]
    return " or ".join(dict.fromkeys(names)) or "accuracy"


def run_table(comparison: RunComparison) -> list[tuple[str, ...]]:
    """Return a row for each run under a header, shares of full querying in brackets."""
    every = (EVERY_QUESTION,) if any(entry.beside for entry in comparison.entries) else ()
    base = ("its base",) if any(entry.run.before for entry in comparison.entries) else ()
    header = ("run", "steps", metric_name(comparison), "95 % CI", *base, *every, "calls")
    rows = [
        (
            f"{entry.number} {entry.label}",
            f"{len(entry.run.steps):,}",
            value_text(entry.accuracy),
            interval_text(entry.accuracy),
            *(value_text(entry.before) for _ in base),
            *(value_text(entry.beside) for _ in every),
            *_teacher_cells(entry),
            _with_share(sums["total_tokens"], entry.total_share),
            clock(entry.run.seconds),
        )
        for entry in comparison.entries
        for sums in [entry.run.totals]
    ]
    costs = ("scored tokens", "processed tokens", "total tokens", "time")
    return [(*header, *costs), *rows]


def _teacher_cells(entry: Entry) -> tuple[str, str, str]:
    if not entry.run.has_queries:
        return "-", "-", "-"
    sums = entry.run.totals
    return (
        _with_share(sums["calls"], sums["calls"] / (sums["candidates"] or 1)),
        _with_share(sums["scored_tokens"], entry.token_share),
        _with_share(sums["processed_tokens"], entry.processed_share),
    )


def _with_share(count: int, share: float | None) -> str:
    return f"{count:,}" if share is None else f"{count:,} ({percent(share)})"


def findings(comparison: RunComparison) -> tuple[str, ...]:
    """Return a sentence for each difference over seeds, then for each pair."""
    return (
        *map(_over_seeds, comparison.contrasts),
        *(_of_pair(pair) for pair in comparison.pairs),
    )


def headline(comparison: RunComparison) -> str:
    """Return one sentence: over seeds, else against full querying, else on all runs alike."""
    if comparison.contrasts:
        return _over_seeds(comparison.contrasts[0])
    lead = next(iter(comparison.pairs), None)
    if lead is None or not lead.b.run.is_full or _is_of_methods(comparison):
        return _neutral(comparison)
    same = [pair for pair in comparison.pairs if (pair.a, pair.b) == (lead.a, lead.b)]
    if len(same) == 1:
        return _of_pair(lead, with_p=False)
    gains = sum(pair.is_significant and pair.comparison.difference.mean > 0 for pair in same)
    losses = sum(pair.is_significant for pair in same) - gains
    return (
        f"{lead.a.label} against {lead.b.label} on {len(same)} benchmarks, for these two runs: a "
        f"gain on {gains}, a loss on {losses}, not significantly different on "
        f"{len(same) - gains - losses}."
    )


def cost_sentence(comparison: RunComparison) -> str:
    """Return what the run of the headline cost, as shares of full querying."""
    entry = next((each for each in comparison.entries if each.full is not None), None)
    if entry is None or entry.full is None or _is_of_methods(comparison):
        return ""
    mine, full = entry.run.totals, entry.full.totals
    share = percent(mine["total_tokens"], full["total_tokens"])
    if not entry.run.has_queries:
        return f"{entry.label} took {share} of the total tokens of full querying."
    return (
        f"{entry.label} made {percent(mine['calls'], full['calls'])} of the teacher calls and took "
        f"{share} of the total tokens."
    )


def entry_tiles(comparison: RunComparison) -> list[tuple[str, str, str]]:
    """Return a tile for each run, if they are few: accuracy, or else its work, and cost."""
    if len(comparison.entries) > FEW:
        return []
    tiles = []
    for entry in comparison.entries:
        reached, (count, what) = entry.accuracy, _work(entry.run)
        total = f"{entry.run.totals['total_tokens']:,} total tokens"
        if reached is None or reached.value is None:
            tiles.append((f"{entry.label}, {what}", f"{count:,}", total))
        else:
            cost = f"{count:,} {what}, {total}"
            tiles.append((f"{entry.label}, {reached.name}", percent(reached.value), cost))
    return tiles


def _is_of_methods(comparison: RunComparison) -> bool:
    """Return whether several methods are compared, of which no one pair says most."""
    methods = {entry.run.method for entry in comparison.entries}
    return len(methods) > 1 and len(comparison.entries) > 2


def _work(run: Run) -> tuple[int, str]:
    """Return how much of what its method pays for a run took."""
    if run.has_queries:
        return run.totals["calls"], "teacher calls"
    if run.method == "sft":
        return run.totals["generated"], "responses of the teacher"
    return run.totals["rollouts"], "graded rollouts"


def _neutral(comparison: RunComparison) -> str:
    """Return the accuracies, or else the work, of all runs alike."""
    if not comparison.pairs:
        return _unpaired(comparison)
    reached = {
        entry.label: accuracy.value
        for entry in comparison.entries
        if (accuracy := entry.accuracy) is not None and accuracy.value is not None
    }
    if len(reached) > FEW:
        low, high = (pick(reached, key=reached.__getitem__) for pick in (min, max))
        right = (
            f"Of {len(reached)} runs, {low} reaches least, {percent(reached[low])}, and {high} "
            f"most, {percent(reached[high])}"
        )
    else:
        right = ", ".join(f"{label} reaches {percent(each)}" for label, each in reached.items())
    significant = sum(pair.is_significant for pair in comparison.pairs)
    return (
        f"{right} ({metric_name(comparison)}); {significant} of "
        f"{counted(len(comparison.pairs), 'difference')} between them "
        f"{'is' if significant == 1 else 'are'} significant, question by question."
    )


def _unpaired(comparison: RunComparison) -> str:
    means = [
        f"{group.name} over {len(group.members)} seeds: {plus_minus(group.accuracy, '.1f', 100)} % "
        f"({group.metric})"
        for group in comparison.groups
        if group.accuracy is not None
    ]
    if means:
        return f"{', '.join(means)}."
    works = [(entry.label, *_work(entry.run)) for entry in comparison.entries]
    with_work = [f"{label} with {count:,} {what}" for label, count, what in works]
    if len(with_work) > FEW:
        with_work = [*with_work[:FEW], f"{len(works) - FEW} more"]
    return (
        f"{len(works)} runs, no two of which can be paired on the same questions: "
        f"{listed(with_work)}."
    )


def _over_seeds(contrast: SeedContrast) -> str:
    mean, interval = points(contrast.difference)
    return (
        f"{contrast.a} against {contrast.b} over {contrast.difference.n} seeds: {mean} points "
        f"({contrast.metric}, 95 % CI {interval}), {verdict(contrast.difference)}."
    )


def _of_pair(pair: Paired, *, with_p: bool = True) -> str:
    result = pair.comparison
    if result.only_a == result.only_b == 0:
        return (
            f"{pair.a.label} and {pair.b.label} have the same questions of {pair.benchmark} right."
        )
    mean, interval = points(result.difference)
    p = f", adjusted p {pair.adjusted_p:.2g}" if with_p else ""
    return (
        f"{pair.a.label} against {pair.b.label} on {pair.benchmark}: {mean} points "
        f"({result.metric}, {counted(result.n, 'question')}, 95 % CI {interval}{p}), "
        f"{pair.verdict}."
    )


def _notes(entries: Sequence[Entry], arms: Sequence[ArmRuns]) -> Iterator[str]:
    runs = [entry.run for entry in entries]
    unevaluated = [entry.label for entry in entries if entry.run.evaluation is None]
    if unevaluated:
        yield (
            f"Not evaluated: {', '.join(unevaluated)}; `bas-opd eval RUN --bench NAME --data "
            "FOLDER` does it."
        )
    for entry in entries:
        if stale := stale_sentence(entry.run):
            yield f"{entry.label}: {stale} They are left out of every comparison."
    unfinished = [entry.label for entry in entries if not entry.run.is_finished]
    if unfinished:
        yield f"Not finished: {', '.join(unfinished)}; their steps so far are shown."
    for what, values in (
        ("on different data", {run.started.data.fingerprint for run in runs}),
        ("from different base models", {run.started.base for run in runs}),
        ("for different numbers of steps", {len(run.steps) for run in runs}),
        ("on different devices", {run.started.device for run in runs}),
    ):
        if len(values) > 1:
            yield f"The runs were trained {what}; their numbers differ for that reason too."
    if any(run.has_queries for run in runs) and not any(run.is_full for run in runs):
        yield ("No run has full querying, so shares are of each run's own candidates.")
    for entry in entries:
        evaluation = entry.run.own_evaluation
        for each in () if evaluation is None else evaluation.results:
            if not each.scored:
                yield (
                    f"{entry.label}: the verdicts on {each.title} are incomplete, or of an older "
                    "version, so it is not paired there. Rerun `bas-opd eval`; finished questions "
                    "are not asked again."
                )
    yield from _judge_notes(entries)
    yield from _seed_notes(arms)


def _judge_notes(entries: Sequence[Entry]) -> Iterator[str]:
    results: dict[str, list[tuple[Entry, BenchmarkResult]]] = {}
    for entry in entries:
        evaluation = entry.run.own_evaluation
        for each in () if evaluation is None else evaluation.results:
            results.setdefault(each.fingerprint, []).append((entry, each))
    for those in results.values():
        if all(a.is_comparable(b) for (_, a), (_, b) in combinations(those, 2)):
            continue
        judges = "; ".join(f"{entry.label}: {each.judge or 'no judge'}" for entry, each in those)
        yield (
            f"On {those[0][1].title} the runs had different judges ({judges}); runs whose deferred "
            "answers had different judges are not compared there."
        )


def _seed_notes(arms: Sequence[ArmRuns]) -> Iterator[str]:
    for arm in arms:
        for a, b in combinations(arm.members, 2):
            if a.seeds == b.seeds:
                yield (
                    f"{a.label} and {b.label} have the same seed of {arm.name}, so its runs are "
                    "not averaged over seeds. Leave one of them out."
                )
    if not any(arm.is_seeds for arm in arms):
        yield (
            "One seed of each policy: confidence intervals are over questions and do not include "
            "the variation between seeds."
        )
