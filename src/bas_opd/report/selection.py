"""What the selector did, from the step records of a run alone."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, quantiles

from bas_opd.audit.utility import QUARTERS
from bas_opd.run.record import QueryRecord
from bas_opd.stats.intervals import Interval, mean_interval

BUCKETS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StepUtility:
    """Mean observed utility of the rows of one step, by how they were chosen."""

    step: int
    """Counted from 1."""
    mean: float
    ranked: float | None
    drawn: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Rows of one quarter of the ranking, over all steps that ranked."""

    name: str
    rows: int
    utility: Interval
    """Over the means of steps, which are independent; rows of one prompt are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How widely the teacher was asked."""

    prompts_seen: int
    prompts_asked: int
    """Of those with a candidate, how many had at least one row selected."""
    per_step: float
    """The same share, as the mean of steps."""
    repeated: float | None
    """Of the selected rows, the share whose text another selected row of the same prompt has;
    none where the records do not number the texts."""


def utility_by_step(steps: Iterable[QueryRecord]) -> list[StepUtility]:
    """Return, for each step with an observed utility, that of its ranked and of its drawn rows."""
    found = []
    for step in steps:
        drawn = drawn_rows(step)
        by_choice: dict[bool, list[float]] = {False: [], True: []}
        for row, utility in zip(step.selected, step.utility, strict=True):
            if utility is not None:
                by_choice[row in drawn].append(utility)
        if any(by_choice.values()):
            ranked, random = (fmean(each) if each else None for each in by_choice.values())
            every = fmean([*by_choice[False], *by_choice[True]])
            found.append(StepUtility(step=step.step + 1, mean=every, ranked=ranked, drawn=random))
    return found


def drawn_rows(step: QueryRecord) -> set[int]:
    """Return the rows drawn at random: all of them, as long as there are no scores."""
    return set(step.explored if step.is_ranked else step.selected)


def rank_bands(steps: Iterable[QueryRecord]) -> tuple[Band, ...]:
    """Return the utility that was observed in each quarter of the ranking of candidates.

    The rows that a step chose by score are all known; of those ranked below, only the explored
    ones, which were drawn from them uniformly. A quarter that holds rows of both leans to its
    upper part.
    """
    means: list[list[float]] = [[] for _ in QUARTERS]
    rows = [0] * len(QUARTERS)
    for step in steps:
        scores = step.score_of
        if not scores or not step.explored:
            continue
        order = sorted(scores, key=lambda row: (-scores[row], row))
        place = {row: number * len(QUARTERS) // len(order) for number, row in enumerate(order)}
        observed: list[list[float]] = [[] for _ in QUARTERS]
        for row, utility in zip(step.selected, step.utility, strict=True):
            if utility is not None and row in place:
                observed[place[row]].append(utility)
        for band, values in enumerate(observed):
            rows[band] += len(values)
            if values:
                means[band].append(fmean(values))
    return tuple(
        Band(name=name, rows=count, utility=mean_interval(values))
        for name, count, values in zip(QUARTERS, rows, means, strict=True)
        if len(values) > 1
    )


def shares_by_kind(
    steps: Iterable[QueryRecord], kinds: Mapping[str, str]
) -> dict[str, tuple[float, float]]:
    """Return each kind's share of the candidates and of the selected rows, largest first."""
    candidates: Counter[str] = Counter()
    selected: Counter[str] = Counter()
    for step in steps:
        for counts, rows in ((candidates, step.candidates), (selected, step.selected)):
            counts.update(kinds.get(step.examples[row // step.per_prompt], "") for row in rows)
    named = {kind or "no kind": count for kind, count in candidates.most_common()}
    return _paired(named, {kind or "no kind": count for kind, count in selected.items()})


def shares_by_length(steps: Sequence[QueryRecord]) -> dict[str, tuple[float, float]]:
    """Return the share of candidates and of selected rows in each quarter of response lengths."""
    lengths = [step.response_tokens[row] for step in steps for row in step.candidates]
    chosen = [step.response_tokens[row] for step in steps for row in step.selected]
    if len(lengths) < 2:
        return {}
    cuts = sorted({int(cut) for cut in quantiles(lengths, n=BUCKETS)} - {max(lengths)})
    starts = [min(lengths), *(cut + 1 for cut in cuts)]
    ends = [*cuts, max(lengths)]
    names = [
        f"{start}" if start == end else f"{start}-{end}"
        for start, end in zip(starts, ends, strict=True)
    ]
    counts = [
        Counter(names[bisect.bisect_left(cuts, length)] for length in each)
        for each in (lengths, chosen)
    ]
    return _paired(
        {f"{name} tokens": counts[0][name] for name in names},
        {f"{name} tokens": counts[1][name] for name in names},
    )


def reach(steps: Sequence[QueryRecord]) -> Reach:
    """Count the prompts that the teacher was asked about at least once."""
    seen: set[str] = set()
    asked: set[str] = set()
    by_step = []
    for step in steps:
        could = {row // step.per_prompt for row in step.candidates}
        did = {row // step.per_prompt for row in step.selected}
        seen |= {step.examples[place] for place in could}
        asked |= {step.examples[place] for place in did}
        if could:
            by_step.append(len(did) / len(could))
    return Reach(
        prompts_seen=len(seen),
        prompts_asked=len(asked),
        per_step=fmean(by_step) if by_step else 0.0,
        repeated=_repeated(steps),
    )


def _repeated(steps: Sequence[QueryRecord]) -> float | None:
    selected = different = 0
    for step in steps:
        if step.texts is None:
            return None
        text = dict(zip(step.candidates, step.texts, strict=True))
        selected += len(step.selected)
        different += len({(row // step.per_prompt, text[row]) for row in step.selected})
    return 1 - different / selected if selected else None


def _paired(
    of_all: Mapping[str, int], of_some: Mapping[str, int]
) -> dict[str, tuple[float, float]]:
    whole, part = sum(of_all.values()) or 1, sum(of_some.values()) or 1
    return {name: (count / whole, of_some.get(name, 0) / part) for name, count in of_all.items()}
