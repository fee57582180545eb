"""Loss, utility and gradients from hidden states, against the losses of others and the floor.

    python benchmarks/loss.py                     # a small shape on a CPU
    python benchmarks/loss.py --device cuda       # the head of Qwen3.5-4B, on a GPU

Hidden states and weights are random. The floor is the time of the matrix products alone: two
projections and, with the tail, two products of the backward pass. Peak memory is above the inputs
and both rounded heads.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from _sides import check_output, profiled, show

from bas_opd.bench.losses import PRODUCTS, losses, ours

SHAPES = {"cuda": (8192, 2560, 248_320), "cpu": (128, 64, 4000)}
"""Tokens, width and vocabulary."""


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options.add_argument("--chunks", type=int, nargs="+", default=[512, 1024])
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--json", type=Path, help="also write the numbers to this file")
    options.add_argument(
        "--profile", type=Path, help="instead, write what ours spends time on to this folder"
    )
    chosen = options.parse_args()
    check_output(chosen)
    tokens, width, vocabulary = SHAPES[chosen.device]
    if chosen.profile:
        if chosen.json:
            options.error("--profile measures no numbers for --json")
        chosen.profile.mkdir(parents=True, exist_ok=True)
        for support in PRODUCTS:
            run = ours(
                torch.device(chosen.device),
                tokens=tokens,
                width=width,
                vocabulary=vocabulary,
                chunk=chosen.chunks[-1],
                support=support,
            )
            run()  # The first compiles kernels.
            with profiled(chosen.profile / f"{support}.txt"):
                run()
        return
    found = losses(
        torch.device(chosen.device),
        tokens=tokens,
        width=width,
        vocabulary=vocabulary,
        chunks=chosen.chunks,
        repeats=chosen.repeats,
    )
    show(chosen, found)


if __name__ == "__main__":
    main()
