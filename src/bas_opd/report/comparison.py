"""Several runs side by side: what each cost and reached, and what can be said of the differences.

Pages and texts show the same object, so that they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from bas_opd.errors import DataError
from bas_opd.evaluate.results import BenchmarkResult
from bas_opd.report.entries import Entry, entries_of
from bas_opd.report.families import seeds_of
from bas_opd.report.findings import stale_sentence
from bas_opd.report.numerals import counted, percent, plus_minus, points
from bas_opd.report.pairs import Paired, paired
from bas_opd.report.run import Run
from bas_opd.report.seeds import (
    Family,
    SeedContrast,
    SeedGroup,
    families_of,
    seed_contrasts,
    seed_groups,
)

FEW = 4
"""Runs that a heading names one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """What several runs say together."""

    entries: tuple[Entry, ...]
    pairs: tuple[Paired, ...]
    groups: tuple[SeedGroup, ...]
    contrasts: tuple[SeedContrast, ...]
    notes: tuple[str, ...]
    """What stands in the way of comparing them."""


def compare_runs(runs: Sequence[Run]) -> RunComparison:
    """Compare runs in the order given."""
    if len({run.path.resolve() for run in runs}) < len(runs):
        raise DataError("The same run was given twice. Name each run once.")
    entries = entries_of(runs)
    families = families_of(entries)
    return RunComparison(
        entries=entries,
        pairs=paired(families),
        groups=tuple(seed_groups(families)),
        contrasts=tuple(seed_contrasts(families)),
        notes=tuple(_notes(entries, families)),
    )


def findings(comparison: RunComparison) -> tuple[str, ...]:
    """Say of each difference over seeds, then of each pair, what it is worth."""
    return (
        *map(_over_seeds, comparison.contrasts),
        *(_of_pair(pair) for pair in comparison.pairs),
    )


def headline(comparison: RunComparison) -> str:
    """Return the comparison in one sentence: over seeds, or against full querying, or neutral."""
    if comparison.contrasts:
        return _over_seeds(comparison.contrasts[0])
    lead = next(iter(comparison.pairs), None)
    if lead is None or lead.b.run.policy != "full":
        return _neutral(comparison)
    same = [pair for pair in comparison.pairs if (pair.a, pair.b) == (lead.a, lead.b)]
    if len(same) == 1:
        return _of_pair(lead, with_p=False)
    gains = sum(pair.is_shown and pair.comparison.difference.mean > 0 for pair in same)
    losses = sum(pair.is_shown for pair in same) - gains
    return (
        f"{lead.a.label} against {lead.b.label} on {len(same)} benchmarks, for these two runs: a "
        f"gain on {gains}, a loss on {losses}, neither shown to be better on "
        f"{len(same) - gains - losses}."
    )


def _neutral(comparison: RunComparison) -> str:
    """Say what was reached, or else what was asked, and single nothing out."""
    if not comparison.pairs:
        return _unpaired(comparison)
    reached = {
        entry.label: accuracy.value
        for entry in comparison.entries
        if (accuracy := entry.accuracy) is not None and accuracy.value is not None
    }
    if len(reached) > FEW:
        ends = f"{100 * min(reached.values()):.1f} to {percent(max(reached.values()), 1)}"
        right = f"{len(reached)} runs have {ends} right"
    else:
        right = ", ".join(
            f"{label} has {percent(each, 1)} right" for label, each in reached.items()
        )
    shown = sum(pair.is_shown for pair in comparison.pairs)
    return (
        f"{right}; {shown} of {counted(len(comparison.pairs), 'difference')} between them "
        f"{'is' if shown == 1 else 'are'} shown, question by question."
    )


def _unpaired(comparison: RunComparison) -> str:
    means = [
        f"{group.name} over {len(group.labels)} seeds: {plus_minus(group.accuracy, '.1f', 100)} %"
        for group in comparison.groups
        if group.accuracy is not None
    ]
    if means:
        return f"{', '.join(means)} right."
    asked = [
        f"{entry.label} {counted(entry.run.totals['calls'], 'time')}"
        for entry in comparison.entries
    ]
    if len(asked) > FEW:
        asked = [*asked[:FEW], counted(len(asked) - FEW, "more run")]
    return (
        f"The teacher was asked by {', '.join(asked)}; no two of them can be paired on the same "
        "questions."
    )


def _over_seeds(contrast: SeedContrast) -> str:
    mean, interval = points(contrast.difference)
    verdict = "a gain" if contrast.difference.mean > 0 else "a loss"
    if contrast.difference.holds_zero:
        verdict = "a difference inside its interval, so neither is shown to be better"
    return (
        f"{contrast.a} against {contrast.b} over {contrast.difference.n} seeds: {mean} points of "
        f"accuracy (95 % interval {interval}), {verdict}."
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
        f"{pair.a.label} against {pair.b.label} on {pair.benchmark}: {mean} points over "
        f"{counted(result.n, 'question')} (95 % interval {interval}{p}), {pair.verdict}."
    )


def _notes(entries: Sequence[Entry], families: Sequence[Family]) -> Iterator[str]:
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
    yield from _judge_notes(entries)
    yield from _seed_notes(families)


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
            "answers were not judged alike are not compared there."
        )


def _seed_notes(families: Sequence[Family]) -> Iterator[str]:
    for family in families:
        for a, b in combinations(family.members, 2):
            if seeds_of(a.run) == seeds_of(b.run):
                yield (
                    f"{a.label} and {b.label} are the same seed of {family.name}, so its runs are "
                    "not summed up as seeds. Leave one of them out."
                )
    if not any(family.is_seeds for family in families):
        yield (
            "One seed of each policy: intervals are over questions and leave out how much another "
            "seed would change."
        )
