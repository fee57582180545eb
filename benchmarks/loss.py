"""Loss, utility and gradients from hidden states, against autograd, Liger and the floor.

    python benchmarks/loss.py                     # a small shape on a CPU
    python benchmarks/loss.py --device cuda       # the head of Qwen3.5-4B, on a GPU

Hidden states and weights are random. The floor is the time of the matrix products alone: two
projections and, with the tail, two products of the backward pass. Peak memory is above the inputs,
both rounded heads and the gradient of the weights.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from bas_opd.distill.loss import DistillSettings
from bas_opd.learn import Distillation
from bas_opd.learn.objective import PackedRows
from bas_opd.model.head import Head, product
from bas_opd.types import FullLogits

SHAPES = {"cuda": (8192, 2560, 248_320), "cpu": (128, 64, 4000)}
"""Tokens, width and vocabulary."""


@dataclass(frozen=True, slots=True)
class Scores:
    """A teacher whose hidden states are given."""

    hidden: Tensor
    logits: Callable[[Tensor], Tensor]
    rows = (0,)
    processed_tokens = prefilled_prompts = 0

    @property
    def scored_tokens(self) -> int:
        return len(self.hidden)

    def chunks(self, rows: Sequence[int], size: int) -> Iterator[FullLogits]:
        for states in self.hidden.split(size):
            yield FullLogits(self.logits(states))


class Setup:
    """Student and teacher: hidden states and heads."""

    def __init__(self, device: str, tokens: int, width: int, vocabulary: int) -> None:
        torch.manual_seed(0)
        weight = torch.randn(vocabulary, width, device=device) * 0.02
        self.student = Head(nn.Parameter(weight), torch.bfloat16)
        self.teacher = Head(weight + 0.001 * torch.randn_like(weight), torch.bfloat16)
        self.hidden = torch.randn(tokens, width, device=device).bfloat16()
        self.crop = self.hidden + 0.1 * torch.randn_like(self.hidden)
        self.packed = PackedRows(
            rows=(0,), lengths=(tokens,), tokens=torch.zeros(tokens, dtype=torch.long)
        )

    def ours(self, settings: DistillSettings, *, explicit: bool) -> Callable[[], float]:
        """Return our loss: explicit gradients, or autograd through the same products."""
        scores = Scores(self.crop, self.teacher.logits)
        fast = self.student if explicit else None
        objective = Distillation(scores, self.student.logits, settings, fast)
        return lambda: self._backward(objective)

    def in_fp32(self, settings: DistillSettings) -> Callable[[], float]:
        """Return the loss with autograd and heads in fp32."""
        student, teacher = self.student.weight, self.teacher.weight
        scores = Scores(self.crop, lambda states: states.float() @ teacher.T)
        objective = Distillation(scores, lambda states: states.float() @ student.T, settings)
        return lambda: self._backward(objective)

    def liger(self) -> Callable[[], float]:
        """Return Liger's JSD over the whole vocabulary."""
        chunked: Any = importlib.import_module("liger_kernel.chunked_loss")
        loss = chunked.LigerFusedLinearJSDLoss(
            weight_hard_loss=0.0, weight_soft_loss=1.0, beta=0.5, compiled=True, chunk_size=1024
        )
        weight = self.student.rounded().clone().requires_grad_()
        target = torch.zeros(len(self.hidden), dtype=torch.long, device=self.hidden.device)

        def run() -> float:
            weight.grad = None
            leaf = self.hidden.clone().requires_grad_()
            found = loss(leaf, weight, self.crop, self.teacher.rounded(), target)
            value = found[0] if isinstance(found, tuple) else found
            value.backward()
            return float(value)

        return run

    def products(self, count: int, tokens: int) -> Callable[[], float]:
        """Return the matrix products alone, a chunk at a time."""
        student, teacher = self.student.rounded(), self.teacher.rounded()
        gradient = torch.zeros(tokens, len(student), dtype=torch.bfloat16, device=student.device)

        def run() -> float:
            for states, crop in zip(
                self.hidden.split(tokens), self.crop.split(tokens), strict=True
            ):
                product(states, student.T)
                product(crop, teacher.T)
                if count == 4:
                    product(gradient[: len(states)], student)
                    product(gradient[: len(states)].T, states)
            return 0.0

        return run

    def _backward(self, objective: Distillation) -> float:
        self.student.weight.grad = None
        leaf = self.hidden.clone().requires_grad_()
        return float(objective(leaf * 1.0, self.packed).loss)


def timed(run: Callable[[], float], device: str, repeats: int) -> dict[str, float]:
    """Return the median milliseconds, the peak memory in GiB above the start, and the loss."""
    is_gpu = device == "cuda"
    value = run()
    if is_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if is_gpu else 0
    times = []
    for _ in range(repeats):
        start = perf_counter()
        run()
        if is_gpu:
            torch.cuda.synchronize()
        times.append(1000 * (perf_counter() - start))
    peak = (torch.cuda.max_memory_allocated() - before) / 2**30 if is_gpu else 0.0
    return {"ms": statistics.median(times), "gib": peak, "loss": value}


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options.add_argument("--chunks", type=int, nargs="+", default=[512, 1024])
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--json", type=Path, help="also write the numbers to this file")
    chosen = options.parse_args()
    tokens, width, vocabulary = SHAPES[chosen.device]
    setup = Setup(chosen.device, tokens, width, vocabulary)
    sides: dict[str, Callable[[], float]] = {}
    for size in chosen.chunks:
        for support, products in (("tail", 4), ("renormalise", 2)):
            settings = DistillSettings(support=support, tokens_per_chunk=size)  # type: ignore[arg-type]
            name = f"{support}, chunks of {size}"
            sides[f"ours, {name}"] = setup.ours(settings, explicit=True)
            sides[f"products alone, {name}"] = setup.products(products, size)
            sides[f"autograd, bf16 head, {name}"] = setup.ours(settings, explicit=False)
    sides["autograd, fp32 head, tail, chunks of 512"] = setup.in_fp32(DistillSettings())
    if importlib.util.find_spec("liger_kernel") is not None and chosen.device == "cuda":
        sides["Liger, whole vocabulary"] = setup.liger()
    else:
        print("Liger is not installed or needs a GPU; it is left out.")
    print(f"{tokens:,} tokens, width {width:,}, vocabulary {vocabulary:,}, {chosen.device}")
    print(f"{'':<46}{'ms':>9}{'GiB':>7}   loss")
    rows: dict[str, dict[str, float]] = {}
    for name, run in sides.items():
        rows[name] = found = timed(run, chosen.device, chosen.repeats)
        setup.student.weight.grad = None
        print(
            f"{name:<46}{found['ms']:>9.1f}{found['gib']:>7.2f}   {found['loss']:.6f}", flush=True
        )
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
