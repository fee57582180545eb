"""The gated delta rule of Qwen3.5 in training: both of ours against transformers' reference or fla.

    python benchmarks/linear_attention.py                   # a small shape on a CPU
    python benchmarks/linear_attention.py --device cuda     # a layer of Qwen3.5-4B, on a GPU

Random inputs; forward and backward pass of one layer, without its projections. Peak memory is above
the inputs. Our Triton kernels are timed where Triton runs, which is on a GPU.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from bas_opd.model.delta import FUNCTION, chunked_delta_rule, register_delta_rule
from bas_opd.model.fused_delta import can_fuse, fused_delta_rule
from bas_opd.model.replacing import MODULES

SHAPES = {"cuda": (4, 1053, 32, 128), "cpu": (1, 150, 4, 32)}
"""Rows, tokens, heads and width."""


def inputs(device: str) -> dict[str, Tensor]:
    """Return random queries, keys, values, decays and strengths."""
    torch.manual_seed(0)
    rows, tokens, heads, width = SHAPES[device]
    wide = {
        name: torch.randn(rows, tokens, heads, width, device=device).bfloat16()
        for name in ("query", "key", "value")
    }
    g, beta = (torch.randn(rows, tokens, heads, device=device) for _ in range(2))
    return {**wide, "g": -g.abs(), "beta": beta.sigmoid().bfloat16()}


def timed(rule: Callable[..., Any], given: dict[str, Tensor], repeats: int) -> tuple[float, float]:
    """Return the median milliseconds of both passes, and the peak memory in GiB."""
    is_gpu = given["query"].is_cuda
    times, before = [], 0
    for _ in range(repeats + 1):
        leaves = {name: x.clone().requires_grad_() for name, x in given.items()}
        if is_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() if is_gpu else 0
        start = perf_counter()
        rule(**leaves, use_qk_l2norm_in_kernel=True)[0].float().sum().backward()
        if is_gpu:
            torch.cuda.synchronize()
        times.append(1000 * (perf_counter() - start))
    peak = (torch.cuda.max_memory_allocated() - before) / 2**30 if is_gpu else 0.0
    return statistics.median(times[1:]), peak


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options.add_argument("--repeats", type=int, default=5)
    chosen = options.parse_args()
    module = importlib.import_module(MODULES[0])
    register_delta_rule()
    installed = importlib.util.find_spec("fla") is not None
    theirs = "fla, through transformers" if installed else "transformers' reference"
    sides: dict[str, Callable[..., Any]] = {"ours": chunked_delta_rule}
    given = inputs(chosen.device)
    if can_fuse(given["query"], given["value"]):
        sides["ours, Triton kernels"] = fused_delta_rule
    sides[theirs] = getattr(module, FUNCTION).reference
    print("{} rows, {} tokens, {} heads, width {}".format(*SHAPES[chosen.device]))
    print(f"{'':<28}{'ms':>9}{'GiB':>7}{'ours takes of it':>19}")
    found = {name: timed(rule, given, chosen.repeats) for name, rule in sides.items()}
    for name, (ms, peak) in found.items():
        print(f"{name:<28}{ms:>9.1f}{peak:>7.2f}{found['ours'][0] / ms:>19.2f}")


if __name__ == "__main__":
    main()
