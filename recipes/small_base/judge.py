"""Say how well a model answers FineSearch from whole pictures and from crops.

python -m recipes.small_base.judge runs/base/model --split val --n 1600
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import torch

from bas_opd.data.finesearch import Size, make_finesearch
from bas_opd.evaluate.runner import Graded, View, evaluate
from bas_opd.evaluate.score import accuracy
from bas_opd.model.base import LEARNT_KINDS
from bas_opd.model.loading import load_model, resolve_device
from bas_opd.model.processing import Processor
from bas_opd.model.vlm import VisionLanguageModel

SHOWN: dict[Size, tuple[View, ...]] = {"small": ("full", "crop"), "large": ("full",)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--split", choices=("train", "val", "test"), default="val")
    parser.add_argument("--n", type=int, default=1600)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device = resolve_device(options.device)
    precision = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = VisionLanguageModel(
        load_model(str(options.model), device=device),
        Processor.load(options.model),
        precision=precision,
    )
    with tempfile.TemporaryDirectory() as folder:
        for size, views in SHOWN.items():
            made = make_finesearch(
                Path(folder) / size,
                split=options.split,
                size=size,
                n=options.n,
                seed=1,
                workers=options.workers,
            )
            for view in views:
                seen = {"split": options.split, "size": size, "view": view}
                judged = verdict(evaluate(model, made.examples, view=view))
                print(json.dumps(seen | judged), flush=True)


def verdict(graded: Sequence[Graded]) -> dict[str, float]:
    """Return how many were judged, which for crops are not all, and what was right of each kind."""
    shares = {kind: share.accuracy for kind, share in accuracy(graded).kinds.items()}
    learnt = fmean(shares[kind] for kind in LEARNT_KINDS)
    rounded = {kind: round(share, 3) for kind, share in shares.items()}
    return {"n": len(graded), "mean of learnt kinds": round(learnt, 4), **rounded}


if __name__ == "__main__":
    main()
