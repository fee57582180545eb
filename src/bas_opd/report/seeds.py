"""Runs over several seeds: means of a policy, and differences between policies seed by seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from bas_opd.report.entries import Entry
from bas_opd.report.families import family_names, family_of, seeds_of
from bas_opd.report.run import Run
from bas_opd.stats.intervals import Interval, mean_interval, paired_difference


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedGroup:
    """Runs that differ in their seeds alone."""

    name: str
    """The policy, and what else tells it from other groups of that policy."""
    labels: tuple[str, ...]
    accuracy: Interval | None
    """Over the runs; none unless all were evaluated on the same questions."""
    scored_tokens: Interval
    processed_tokens: Interval
    seconds: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedContrast:
    """Two policies over the seeds that both were run with."""

    a: str
    b: str
    difference: Interval
    """Headline accuracy of a less that of b, paired by seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """All runs of one experiment that were given."""

    name: str
    members: tuple[Entry, ...]

    @property
    def is_seeds(self) -> bool:
        """Whether these are several runs, and no two of them the same seed."""
        return len(self.members) > 1 and len(self.by_seed) == len(self.members)

    @property
    def by_seed(self) -> dict[tuple[int, int], Entry]:
        return {seeds_of(entry.run): entry for entry in self.members}

    @property
    def first(self) -> Run:
        return self.members[0].run

    @property
    def task(self) -> tuple[tuple[str, str], ...]:
        """Everything but how rows were selected."""
        return tuple(pair for pair in family_of(self.first) if not pair[0].startswith("select."))


def families_of(entries: Sequence[Entry]) -> tuple[Family, ...]:
    """Sort runs into families, in the order in which these appear."""
    names = family_names([entry.run for entry in entries])
    members: dict[str, list[Entry]] = {name: [] for name in names.values()}
    for entry in entries:
        members[names[family_of(entry.run)]].append(entry)
    return tuple(Family(name=name, members=tuple(those)) for name, those in members.items())


def seed_groups(families: Sequence[Family]) -> Iterator[SeedGroup]:
    """Sum up every family of several seeds."""
    for family in families:
        if family.is_seeds:
            runs = [entry.run for entry in family.members]
            yield SeedGroup(
                name=family.name,
                labels=tuple(entry.label for entry in family.members),
                accuracy=_mean_accuracy(family.members),
                scored_tokens=_mean_total(runs, "scored_tokens"),
                processed_tokens=_mean_total(runs, "processed_tokens"),
                seconds=mean_interval([run.seconds for run in runs]),
            )


def seed_contrasts(families: Sequence[Family]) -> Iterator[SeedContrast]:
    """Compare every policy with full querying, then with a random choice of as many rows.

    Only seeds that both were run with count, and at least two of them.
    """
    grouped = [family for family in families if family.is_seeds]
    grouped.sort(key=lambda family: family.members[0].place)
    for reference in ("full", "random"):
        for family in grouped:
            for other in grouped:
                if other.first.config.select.policy == reference and _is_measured_by(family, other):
                    yield from _contrast(family, other)


def _is_measured_by(family: Family, reference: Family) -> bool:
    mine, other = family.first.config.select, reference.first.config.select
    if mine.policy in ("full", other.policy) or family.task != reference.task:
        return False
    return other.policy == "full" or mine.query_ratio == other.query_ratio


def _contrast(family: Family, reference: Family) -> Iterator[SeedContrast]:
    both = [seeds for seeds in family.by_seed if seeds in reference.by_seed]
    mine, theirs = ([each.by_seed[seeds] for seeds in both] for each in (family, reference))
    if len(both) > 1 and _are_comparable([*mine, *theirs]):
        yield SeedContrast(
            a=family.name,
            b=reference.name,
            difference=paired_difference(_accuracies(mine), _accuracies(theirs)),
        )


def _mean_accuracy(members: Sequence[Entry]) -> Interval | None:
    return mean_interval(_accuracies(members)) if _are_comparable(members) else None


def _mean_total(runs: Sequence[Run], name: str) -> Interval:
    return mean_interval([float(run.totals[name]) for run in runs])


def _accuracies(entries: Sequence[Entry]) -> list[float]:
    found = [entry.accuracy for entry in entries]
    return [each.value for each in found if each is not None and each.value is not None]


def _are_comparable(entries: Sequence[Entry]) -> bool:
    """Whether all were evaluated on the same questions, read alike."""
    evaluations = [entry.run.own_evaluation for entry in entries]
    known = [each for each in evaluations if each is not None]
    return len(_accuracies(entries)) == len(entries) and all(
        a.is_comparable(b) for a, b in combinations(known, 2)
    )
