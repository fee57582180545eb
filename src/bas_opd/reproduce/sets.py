"""The splits of FineSearch that a reproduction needs; each is drawn once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bas_opd.data.records import PreparedSet, read_manifest
from bas_opd.errors import DataError
from bas_opd.model.base import LEARNT_KINDS
from bas_opd.reproduce.runner import Questions

Split = Literal["train", "val", "test"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Number of examples of each split: the paper's 3,120 to train on, 4,200 to evaluate on."""

    train: int = 3120
    val: int = 1000
    test: int = 4200


def training_set(folder: Path, sizes: Sizes) -> PreparedSet:
    """Return the small-object training split under a folder."""
    return _split(folder, "train", sizes.train)


def questions(folder: Path, split: Literal["val", "test"], sizes: Sizes) -> Questions:
    """Return a split under a folder to evaluate on."""
    prepared = _split(folder, split, {"val": sizes.val, "test": sizes.test}[split])
    source = read_manifest(prepared.folder).source
    is_finesearch = source.startswith(f"FineSearch, split {split}, size small")
    return Questions(
        folder=prepared.folder,
        split=split,
        fingerprint=prepared.fingerprint,
        task="FineSearch" if is_finesearch else "Own data",
    )


def _split(folder: Path, split: Split, n: int) -> PreparedSet:
    """Load a split, or draw it if there is none."""
    place = folder / split
    if not place.exists():
        from bas_opd.data.finesearch import make_finesearch

        return make_finesearch(
            place,
            split=split,
            size="small",
            n=n,
            kinds=LEARNT_KINDS,
            workers=os.cpu_count() or 1,
        )
    prepared = PreparedSet.load(place)
    if len(prepared) != n:
        raise DataError(
            f"{place} has {len(prepared):,} examples, but {n:,} were asked for. Ask for as many as "
            "it has, give another folder, or remove this one."
        )
    return prepared
