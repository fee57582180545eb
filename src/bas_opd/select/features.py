"""What the selector knows about a rollout before any teacher has seen it (Eq. 5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

import torch
from torch import Tensor

from bas_opd.types import FEATURES, Candidates, Grade, Rollouts

GradeRows = Callable[[Rollouts, Sequence[int]], tuple[Grade, ...]]
"""Says whether rows are right."""
ROWS_AT_ONCE = 128


def rollout_features(
    rollouts: Rollouts, candidates: Sequence[int], grade: GradeRows | None = None
) -> Candidates:
    """Return C with phi of every row, from what the sampler measured (Eq. 5; Alg. 1, line 4).

    With `grade`, it also says which rows are right; the paper uses no answers.
    """
    rows = list(candidates)
    lengths = rollouts.lengths[rows].tolist()
    crops = [rollouts.example_of(row).crop for row in rows]
    values = features_from(
        rollouts.logprobs[rows],
        rollouts.lengths[rows],
        entropies=None if rollouts.entropies is None else rollouts.entropies[rows],
        prompt_lengths=[rollouts.prompts[rollouts.prompt_of(row)].length for row in rows],
        crop_areas=[crop.area if crop else 0.0 for crop in crops],
    )
    return Candidates(
        rows=tuple(rows),
        values=values,
        has_entropy=rollouts.entropies is not None,
        prompts=tuple(rollouts.prompt_of(row) for row in rows),
        tokens=tuple(lengths),
        texts=_texts(rollouts.tokens[rows], rollouts.lengths[rows]),
        grades=grade(rollouts, rows) if grade else None,
    )


@torch.no_grad()
def features_from(
    logprobs: Tensor,
    lengths: Tensor | Sequence[int],
    *,
    entropies: Tensor | None = None,
    prompt_lengths: Tensor | Sequence[int] | None = None,
    crop_areas: Tensor | Sequence[float] | None = None,
) -> Tensor:
    """phi [row, feature] in float64 on the CPU, in the order of `types.FEATURES` (Eq. 5).

    `logprobs` and `entropies` are [row, token] under the distribution that sampled, entropies in
    nats over the full vocabulary; positions at or beyond `lengths` are never read. What is not
    given is 0, and a row without a valid token has zeros for its token statistics.
    """
    lengths = torch.as_tensor(lengths, dtype=torch.int64, device="cpu")
    _check(logprobs, lengths, entropies)
    width = int(lengths.max()) if len(lengths) else 0
    found = torch.zeros((len(lengths), len(FEATURES)), dtype=torch.float64, device="cpu")
    # Some rows at a time, in the cache of a core. All have the width of the longest: sums over
    # another width may round otherwise.
    for start in range(0, len(lengths), ROWS_AT_ONCE):
        some = slice(start, start + ROWS_AT_ONCE)
        mask = torch.arange(width, device="cpu") < lengths[some, None]
        nll = -_float64(logprobs[some, :width])
        found[some, 0] = _masked_mean(nll, mask)
        found[some, 1] = _masked_quantile(nll, mask, 0.9)
        if entropies is not None:
            found[some, 2] = _masked_mean(_float64(entropies[some, :width]), mask)
    found[:, 3] = lengths.double()
    found[:, 4] = _per_row(prompt_lengths, len(lengths), "prompt_lengths")
    found[:, 5] = _per_row(crop_areas, len(lengths), "crop_areas")
    return found


def _texts(tokens: Tensor, lengths: Tensor) -> tuple[tuple[int, ...], ...]:
    """Return the valid tokens of each row."""
    valid = torch.arange(tokens.shape[1]) < lengths[:, None]
    ids = iter(tokens[valid].tolist())
    return tuple(tuple(islice(ids, length)) for length in lengths.tolist())


def _check(logprobs: Tensor, lengths: Tensor, entropies: Tensor | None) -> None:
    if logprobs.dim() != 2 or lengths.shape != logprobs.shape[:1]:
        raise ValueError(
            f"logprobs must be [row, token] and lengths [row]; "
            f"they are {list(logprobs.shape)} and {list(lengths.shape)}."
        )
    if entropies is not None and entropies.shape != logprobs.shape:
        raise ValueError(
            f"entropies must have the shape of logprobs, {list(logprobs.shape)}; "
            f"they have {list(entropies.shape)}."
        )
    for row in ((lengths < 0) | (lengths > logprobs.shape[1])).nonzero()[:1, 0].tolist():
        raise ValueError(
            f"Row {row} has a length of {int(lengths[row])}, "
            f"but logprobs hold {logprobs.shape[1]} tokens a row."
        )


def _float64(values: Tensor) -> Tensor:
    return values.to("cpu", torch.float64)


def _per_row(values: Tensor | Sequence[float] | None, rows: int, name: str) -> Tensor:
    column = torch.as_tensor(
        [0.0] * rows if values is None else values, dtype=torch.float64, device="cpu"
    )
    if column.shape != (rows,):
        raise ValueError(f"{name} must hold one value for each of {rows} rows.")
    return column


def _masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    # Selecting, not multiplying: a NaN in the padding times zero would still be a NaN.
    total = torch.where(mask, values, 0.0).sum(1)
    return total / mask.sum(1).clamp_min(1)


def _masked_quantile(values: Tensor, mask: Tensor, q: float) -> Tensor:
    """Quantile of each row's valid values, with linear interpolation."""
    if not mask.any():
        return values.new_zeros(len(values))
    last = (mask.sum(1) - 1).clamp_min(0).double()
    position = q * last
    below = position.floor()
    # Only the tail above the quantile is sorted: four times faster than sorting whole rows.
    rank = (last - below).long()
    tail = torch.where(mask, values, -torch.inf).topk(int(rank.max()) + 1).values
    lower = tail.gather(1, rank[:, None])[:, 0]
    upper = tail.gather(1, (rank - 1).clamp_min(0)[:, None])[:, 0]
    return torch.where(mask.any(1), torch.lerp(lower, upper, position - below), 0.0)
