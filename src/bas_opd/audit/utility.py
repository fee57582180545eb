"""Capture, rank bands, correlation and calibration of a utility audit (Figure 3).

Rankings are made within each batch, as a step makes them, and a budget gives each batch its own K.
A run that covers prompts does not take the highest predictions: its choice is a ranking of its own.
Pure functions of the record; needs no torch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from statistics import fmean
from typing import Literal, TypeVar

from bas_opd.audit.records import Candidate, UtilityAudit
from bas_opd.budget import query_budget
from bas_opd.errors import DataError
from bas_opd.select.covering import cover, mid_ranks
from bas_opd.select.rules import policy_rule
from bas_opd.stats.intervals import Interval, mean_interval
from bas_opd.stats.resampling import Estimate, bootstrap_interval, holm, sign_flip_p, spearman

Ranking = Literal["oracle", "covering", "learned", "entropy", "random"]
Batches = Sequence[Sequence[Candidate]]
Score = Callable[[Candidate], float | None]
"""Returns what a candidate is ranked by; none where that is not known."""
Item = TypeVar("Item")
PAPER_BUDGETS = ("0.1", "0.25", "0.5")
CURVE = tuple(Decimal(percent) / 100 for percent in range(101))
QUARTERS = ("top 25 %", "25-50 %", "50-75 %", "bottom 25 %")
"""Bands of ranks, from the highest."""
CALIBRATION_BINS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The rows of a batch in the order that a ranking selects them."""

    rows: Sequence[Candidate]
    """Covering leaves out repeated texts."""
    candidates: int
    """Of the batch; K is a share of them."""

    def budget(self, ratio: Decimal) -> int:
        """Return K."""
        return query_budget(ratio, self.candidates) if ratio else 0

    def selected(self, ratio: Decimal) -> Sequence[Candidate]:
        """Return the rows that K pays for."""
        return self.rows[: self.budget(ratio)]


Orders = Sequence[Order]
"""A ranking of each batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """The share of all utility that each ranking captures within one budget (Figure 3a)."""

    ratio: str
    shares: Mapping[Ranking, Estimate]
    """A ranking that the audit has no scores for is absent."""
    prompts: Mapping[Ranking, float]
    """The share of a batch's prompts that each ranking asks about at least once."""
    repeated: Mapping[Ranking, float]
    """The share of its rows whose text it has already selected; empty where texts are unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A quarter of the predicted ranks of each batch, from the highest (Figure 3b)."""

    utility: Estimate
    p_above_next: float | None
    """Of its mean being above the next: one-sided, Holm-adjusted; none for the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correlation:
    """Spearman's, of predicted with observed utility; none where one of them is constant."""

    within: Interval | None
    """Mean over the batches, each by itself."""
    pooled: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationBin:
    """Candidates of similar predicted utility, of all batches."""

    predicted: float
    observed: float
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """How good the selector's predictions are."""

    bands: tuple[Band, ...] | None
    """None where a batch has fewer candidates than there are bands."""
    correlation: Correlation
    calibration: tuple[CalibrationBin, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The candidates of one kind of question."""

    kind: str
    n: int
    utility: float
    captured: float | None
    """The share of this kind's utility that the selector captures at the run's ratio; none where
    its choice is not known, or where the kind has no utility."""
    selected_share: float | None
    """The share of this kind among the rows that it selects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UtilityDiagnostics:
    """Everything that follows from a utility audit."""

    batches: int
    candidates: int
    utility: Estimate
    """Mean over the candidates."""
    captures: tuple[Capture, ...]
    """At the paper's budgets and the run's own, rising."""
    curve: Mapping[Ranking, tuple[float, ...]]
    """Share captured at each ratio of `CURVE`."""
    prediction: Prediction | None
    """None where the policy of the run makes no predictions."""
    kinds: tuple[Kind, ...]


def diagnose(audit: UtilityAudit) -> UtilityDiagnostics:
    """Compute the diagnostics of an audit."""
    batches = _batches(audit)
    totals = [_total(batch) for batch in batches]
    if math.fsum(totals) <= 0:
        raise DataError(
            f"None of the {len(audit.candidates):,} candidates of the audit has any utility, so "
            "there is nothing to capture. Is the teacher the student itself, on the same picture?"
        )
    orders = _orders(batches, _covered_by(audit))
    ratios = sorted({Decimal(ratio).normalize() for ratio in (*PAPER_BUDGETS, audit.query_ratio)})
    learned = orders.get("learned")
    return UtilityDiagnostics(
        batches=len(batches),
        candidates=len(audit.candidates),
        utility=bootstrap_interval(totals, [len(batch) for batch in batches]),
        captures=tuple(
            Capture(
                ratio=str(ratio),
                shares={
                    ranking: bootstrap_interval(_captured(ranking, order, ratio), totals)
                    for ranking, order in orders.items()
                },
                prompts={
                    ranking: _prompts(ranking, order, ratio, batches)
                    for ranking, order in orders.items()
                },
                repeated={
                    ranking: _repeated(ranking, order, ratio)
                    for ranking, order in orders.items()
                    if all(each.text is not None for each in audit.candidates)
                },
            )
            for ratio in ratios
        ),
        curve={
            ranking: tuple(
                math.fsum(_captured(ranking, order, ratio)) / math.fsum(totals) for ratio in CURVE
            )
            for ranking, order in orders.items()
        },
        prediction=None if learned is None else _prediction([each.rows for each in learned]),
        kinds=_kinds(audit.candidates, orders.get("covering", learned), Decimal(audit.query_ratio)),
    )


def _batches(audit: UtilityAudit) -> Batches:
    batches: dict[int, list[Candidate]] = {}
    for candidate in sorted(audit.candidates, key=lambda each: (each.batch, each.row)):
        batches.setdefault(candidate.batch, []).append(candidate)
    return list(batches.values())


def _orders(batches: Batches, covered_by: Score) -> dict[Ranking, Orders]:
    """Return the batches in the order of each ranking that there are scores for."""
    scores: dict[Ranking, Score] = {
        "oracle": lambda each: each.utility,
        "covering": covered_by,
        "learned": lambda each: each.predicted,
        "entropy": lambda each: each.entropy,
    }
    found: dict[Ranking, Orders] = {}
    for ranking, score in scores.items():
        if all(score(each) is None for batch in batches for each in batch):
            continue
        choose = _covering if ranking == "covering" else _ranked
        found[ranking] = [
            Order(rows=choose(batch, score), candidates=len(batch)) for batch in batches
        ]
    found["random"] = [Order(rows=batch, candidates=len(batch)) for batch in batches]
    return found


def _covered_by(audit: UtilityAudit) -> Score:
    """Return the score by which the run covers prompts, as its selector has it.

    There is none if it does not cover them, or draws at random among them.
    """
    rule = policy_rule(audit.policy)
    if rule.covers:
        # A prediction below 0 is raised to 0, so that such rows tie.
        return lambda each: (
            None if each.predicted is None else max(0.0, each.predicted) * each.tokens
        )
    if audit.coverage and rule.learns:
        return lambda each: each.predicted
    if audit.coverage and rule.ranks_by:
        return lambda each: None if each.entropy is None else each.entropy * each.tokens
    return lambda _: None


def _ranked(batch: Sequence[Candidate], score: Score) -> Sequence[Candidate]:
    return sorted(batch, key=lambda each: _falling(score(each)))


def _covering(batch: Sequence[Candidate], score: Score) -> Sequence[Candidate]:
    """Return what a policy chooses that covers the prompts, in calls and without exploration.

    Each choice depends on those before it alone, so the choice of any K is the start of one order.
    Audits of version 0.1 have no texts; then all count as different.
    """
    gains = mid_ranks([-_falling(score(each)) for each in batch])
    texts = [place if each.text is None else each.text for place, each in enumerate(batch)]
    chosen = cover(gains, [each.example for each in batch], texts, limit=len(batch))
    return [batch[place] for place in chosen]


def _falling(score: float | None) -> float:
    """Sort by falling score as a step does: ties keep their rows' order, the unscored come last."""
    return math.inf if score is None else -score


def _captured(ranking: Ranking, orders: Orders, ratio: Decimal) -> list[float]:
    """Return what a ranking captures of each batch; at random, what it captures on average."""
    if ranking == "random":
        return [each.budget(ratio) / each.candidates * _total(each.rows) for each in orders]
    return [_total(each.selected(ratio)) for each in orders]


def _prompts(ranking: Ranking, orders: Orders, ratio: Decimal, batches: Batches) -> float:
    touched = _touched(ranking, orders, ratio, lambda each: each.example)
    return fmean(
        count / len({each.example for each in batch})
        for count, batch in zip(touched, batches, strict=True)
    )


def _repeated(ranking: Ranking, orders: Orders, ratio: Decimal) -> float:
    different = _touched(ranking, orders, ratio, lambda each: (each.example, each.text))
    selected = sum(len(each.selected(ratio)) for each in orders)
    return 1 - math.fsum(different) / selected if selected else 0.0


def _touched(
    ranking: Ranking, orders: Orders, ratio: Decimal, group: Callable[[Candidate], Hashable]
) -> list[float]:
    """Return how many groups of each batch a ranking selects from; at random, on average."""
    found = []
    for order in orders:
        if ranking != "random":
            found.append(float(len(set(map(group, order.selected(ratio))))))
            continue
        k, n = order.budget(ratio), order.candidates
        sizes = Counter(map(group, order.rows)).values()
        ways = math.comb(n, k)
        found.append(math.fsum(1 - math.comb(n - size, k) / ways for size in sizes))
    return found


def _prediction(ranked: Batches) -> Prediction:
    pairs = [
        [(each.predicted, each.utility) for each in batch if each.predicted is not None]
        for batch in ranked
    ]
    within = [rho for batch in pairs if (rho := _spearman(batch)) is not None]
    everyone = sorted(pair for batch in pairs for pair in batch)
    return Prediction(
        bands=_bands(ranked),
        correlation=Correlation(
            within=mean_interval(within) if within else None, pooled=_spearman(everyone)
        ),
        calibration=tuple(
            CalibrationBin(
                predicted=fmean(predicted for predicted, _ in part),
                observed=fmean(observed for _, observed in part),
                n=len(part),
            )
            for part in _cut(everyone, CALIBRATION_BINS)
            if part
        ),
    )


def _spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    return spearman(*zip(*pairs, strict=True)) if pairs else None


def _bands(ranked: Batches) -> tuple[Band, ...] | None:
    if min(map(len, ranked)) < len(QUARTERS):
        return None
    by_batch = [
        [_total(part) / len(part) for part in _cut(batch, len(QUARTERS))] for batch in ranked
    ]
    means = list(zip(*by_batch, strict=True))
    tests = [
        sign_flip_p([a - b for a, b in zip(upper, lower, strict=True)])
        for upper, lower in pairwise(means)
    ]
    return tuple(
        Band(utility=bootstrap_interval(mean), p_above_next=p)
        for mean, p in zip(means, (*holm(tests), None), strict=True)
    )


def _kinds(candidates: Sequence[Candidate], own: Orders | None, ratio: Decimal) -> tuple[Kind, ...]:
    chosen = None
    if own is not None:
        chosen = [each for order in own for each in order.selected(ratio)]
    found = []
    for kind in sorted({each.kind for each in candidates}):
        members = [each for each in candidates if each.kind == kind]
        mine = None if chosen is None else [each for each in chosen if each.kind == kind]
        total = _total(members)
        found.append(
            Kind(
                kind=kind,
                n=len(members),
                utility=total / len(members),
                captured=None if mine is None or total <= 0 else _total(mine) / total,
                selected_share=len(mine) / len(chosen) if mine is not None and chosen else None,
            )
        )
    return tuple(found)


def _cut(items: Sequence[Item], parts: int) -> list[Sequence[Item]]:
    """Cut a sequence into so many parts whose sizes differ by at most one."""
    ends = [len(items) * part // parts for part in range(parts + 1)]
    return [items[start:end] for start, end in pairwise(ends)]


def _total(candidates: Sequence[Candidate]) -> float:
    return math.fsum(each.utility for each in candidates)
