"""The log of a run with full querying: every candidate, and the utility the teacher gave it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from bas_opd import types
from bas_opd.errors import DataError

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
}
"""The arrays with one entry per candidate, in the order of the steps. Features and utility keep
every digit, because a replay must see what the selector would have seen; tokens need not."""
PER_TOKEN = ("tokens", "logprobs", "entropies")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates(types.Candidates):
    """C of one step with all that is known before the teacher is queried: no utility."""

    step: int
    prompt: Tensor  # [candidate] index of its prompt in the batch
    kind: Tensor  # [candidate] index of its kind in `kind_names`
    length: Tensor  # [candidate] response tokens with the end token
    responses: Tensor  # [candidate, token] ids, int64
    logprobs: Tensor  # [candidate, token] float64
    entropies: Tensor  # [candidate, token] float64
    end_ids: tuple[int, ...]
    kind_names: tuple[str, ...]

    @property
    def mask(self) -> Tensor:
        """[candidate, token], from lengths alone."""
        return torch.arange(self.responses.shape[1]) < self.length[:, None]

    def among(self, rows: Sequence[int]) -> Tensor:
        """Return which candidates are in `rows` [candidate]."""
        return torch.isin(torch.tensor(self.rows), torch.tensor(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredStep:
    """One step of full querying."""

    candidates: Candidates
    utility: Tensor  # [candidate] float64, Eq. 9; NaN where it was not finite


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
            sizes = arrays["candidates"].tolist()
            columns = {
                name: torch.from_numpy(arrays[name]).to(
                    torch.float64 if numpy.issubdtype(dtype, numpy.floating) else torch.int64
                )
                for name, dtype in PER_CANDIDATE.items()
            }
        except (OSError, ValueError, KeyError) as error:
            raise DataError(
                f"{path} is not a log of scored batches: {error}. Make one with "
                "`python -m recipes.selector_study.log`."
            ) from error
        parts = zip(*(column.split(sizes) for column in columns.values()), strict=True)
        end_ids, kind_names = arrays["end_ids"].tolist(), arrays["kind_names"].tolist()
        steps = []
        for step, part in enumerate(parts):
            of = dict(zip(columns, part, strict=True))
            candidates = Candidates(
                step=step,
                rows=tuple(of["row"].tolist()),
                values=of["features"],
                prompt=of["prompt"],
                kind=of["kind"],
                length=of["length"],
                responses=of["tokens"],
                logprobs=of["logprobs"],
                entropies=of["entropies"],
                end_ids=tuple(end_ids),
                kind_names=tuple(kind_names),
            )
            steps.append(ScoredStep(candidates=candidates, utility=of["utility"]))
        return cls(name=path.stem, steps=tuple(steps))


def save_log(path: Path, steps: Sequence[dict[str, Any]], **whole: Any) -> None:
    """Write the steps, each a table of the arrays in `PER_CANDIDATE`; tokens are padded.

    `whole` has what is of the whole run: loss, kind_names, end_ids, settings.
    """
    width = max(step["tokens"].shape[1] for step in steps)

    def joined(name: str) -> numpy.ndarray:
        parts = [numpy.asarray(step[name], PER_CANDIDATE[name]) for step in steps]
        if name in PER_TOKEN:
            parts = [numpy.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in parts]
        return numpy.concatenate(parts)

    arrays: dict[str, Any] = {name: joined(name) for name in PER_CANDIDATE}
    sizes = [len(step["row"]) for step in steps]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:  # given a name, numpy would add a suffix of its own
        numpy.savez_compressed(file, candidates=sizes, **whole, **arrays)
