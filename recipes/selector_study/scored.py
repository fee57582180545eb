"""Fully scored batches on disk: what a selector could have known, and what each query was worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from bas_opd.errors import DataError
from bas_opd.types import Features

PER_CANDIDATE = {
    "row": numpy.int32,
    "prompt": numpy.int32,
    "example": numpy.int32,
    "kind": numpy.int16,
    "length": numpy.int16,
    "features": numpy.float64,
    "utility": numpy.float64,
    "tokens": numpy.int32,
    "logprobs": numpy.float16,
    "entropies": numpy.float16,
    "token_utility": numpy.float16,
}
"""The arrays with one entry a candidate, in the order of the steps. Features and utility keep every
digit, because a replay must see what the selector would have seen; the tokens need not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """C of one step with all that is known before the teacher is asked: no utility is in here."""

    step: int
    features: Features  # Eq. 5, raw
    prompts: Tensor  # [candidate] place of its prompt in the batch
    kinds: Tensor  # [candidate] place of its kind in `kind_names`
    lengths: Tensor  # [candidate]
    tokens: Tensor  # [candidate, token] int64
    logprobs: Tensor  # [candidate, token] float64
    entropies: Tensor  # [candidate, token] float64
    end_ids: tuple[int, ...]
    kind_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.features)

    @property
    def mask(self) -> Tensor:
        """[candidate, token], from lengths alone."""
        return torch.arange(self.tokens.shape[1]) < self.lengths[:, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredStep:
    """One step of full querying."""

    candidates: Candidates
    utility: Tensor  # [candidate] float64, Eq. 9; NaN where it was not finite
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredLog:
    """The steps of one training run with full querying."""

    name: str
    steps: tuple[ScoredStep, ...]

    @classmethod
    def load(cls, path: Path) -> ScoredLog:
        """Read what `save_log` wrote."""
        try:
            with numpy.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            bounds = numpy.cumsum(arrays["candidates"])[:-1]
            parts = {name: numpy.split(arrays[name], bounds) for name in PER_CANDIDATE}
        except (OSError, ValueError, KeyError) as error:
            raise DataError(
                f"{path} is not a log of scored batches: {error}. Make one with "
                "`python -m recipes.selector_study.log`."
            ) from error
        return cls(
            name=path.stem,
            steps=tuple(
                _step(step, {name: part[step] for name, part in parts.items()}, arrays)
                for step in range(len(arrays["candidates"]))
            ),
        )


def save_log(
    path: Path,
    steps: Sequence[dict[str, Any]],
    *,
    losses: Sequence[float],
    kind_names: Sequence[str],
    end_ids: Sequence[int],
    settings: str,
) -> None:
    """Write the steps, each a table of the arrays in `PER_CANDIDATE`; tokens are padded to fit."""
    width = max(step["tokens"].shape[1] for step in steps)
    arrays: dict[str, Any] = {
        name: numpy.concatenate(
            [_padded(numpy.asarray(step[name], dtype), name, width) for step in steps]
        )
        for name, dtype in PER_CANDIDATE.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:  # a name, and numpy would add an ending of its own
        numpy.savez_compressed(
            file,
            candidates=numpy.array([len(step["row"]) for step in steps]),
            loss=numpy.array(losses),
            kind_names=numpy.array(kind_names),
            end_ids=numpy.array(end_ids),
            settings=numpy.array(settings),
            **arrays,
        )


def _padded(values: numpy.ndarray, name: str, width: int) -> numpy.ndarray:
    if name not in ("tokens", "logprobs", "entropies", "token_utility"):
        return values
    return numpy.pad(values, ((0, 0), (0, width - values.shape[1])))


def _step(
    step: int, part: dict[str, numpy.ndarray], arrays: dict[str, numpy.ndarray]
) -> ScoredStep:
    def tensor(name: str, dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(part[name]).to(dtype)

    return ScoredStep(
        candidates=Candidates(
            step=step,
            features=Features(
                rows=tuple(part["row"].tolist()), values=tensor("features", torch.float64)
            ),
            prompts=tensor("prompt", torch.int64),
            kinds=tensor("kind", torch.int64),
            lengths=tensor("length", torch.int64),
            tokens=tensor("tokens", torch.int64),
            logprobs=tensor("logprobs", torch.float64),
            entropies=tensor("entropies", torch.float64),
            end_ids=tuple(arrays["end_ids"].tolist()),
            kind_names=tuple(arrays["kind_names"].tolist()),
        ),
        utility=tensor("utility", torch.float64),
        loss=float(arrays["loss"][step]),
    )
