"""Say how well a model answers FineSearch from whole pictures and from crops.

    python recipes/small_base/judge.py runs/base/model --split val --n 1600
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import defaultdict
from pathlib import Path

import torch

from bas_opd.data.finesearch import make_finesearch
from bas_opd.evaluate.runner import evaluate
from bas_opd.model.loading import load_model, resolve_device
from bas_opd.model.processing import Processor
from bas_opd.model.vlm import VisionLanguageModel


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
        for size, views in (("small", ("full", "crop")), ("large", ("full",))):
            made = make_finesearch(
                Path(folder) / size,
                split=options.split,
                size=size,
                n=options.n,
                seed=1,
                workers=options.workers,
            )
            for view in views:
                right: dict[str, list[bool]] = defaultdict(list)
                for one in evaluate(model, made.examples, view=view):
                    right[one.kind].append(one.is_correct)
                share = {kind: round(sum(v) / len(v), 3) for kind, v in right.items()}
                mean = round(sum(share.values()) / len(share), 4)
                line = {"split": options.split, "size": size, "view": view, "mean": mean, **share}
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
