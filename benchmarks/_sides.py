"""Shared by the benchmarks: a small model, noisy pictures, alternating timings, a table."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, get_args

import torch
from PIL import Image
from transformers.utils import logging

from bas_opd.data.images import open_image
from bas_opd.model.family import Family
from bas_opd.model.loading import load_model
from bas_opd.model.processing import Processor
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.types import Crop, Example, Rollouts

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.shapes import make_pictures as make_pictures
from tests.small_models import build_small_model as build_small_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One way to do the work; `run` returns the number of tokens it processed."""

    name: str
    run: Callable[[], int]
    required_share: float | None = None
    """Largest share of this side's time that ours may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A small model with the examples it is measured on."""

    model: VisionLanguageModel
    examples: tuple[Example, ...]


def parser(
    description: str | None, *, prompts: int, side: int, tokens: int
) -> argparse.ArgumentParser:
    """Return the options all benchmarks share; `tokens` is the length of a response."""
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--family", choices=get_args(Family), default="qwen3_5")
    options.add_argument("--hidden", type=int, default=128)
    options.add_argument("--layers", type=int, default=4)
    options.add_argument("--prompts", type=int, default=prompts)
    options.add_argument("--rollouts", type=int, default=8, help="rollouts of each prompt")
    options.add_argument("--side", type=int, default=side, help="of a picture, in pixels")
    options.add_argument("--tokens", type=int, default=tokens, help="tokens of a response")
    options.add_argument("--repeats", type=int, default=3, help="timings of each side")
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--device", default="cpu")
    options.add_argument("--json", type=Path, help="also write the numbers to this file")
    return options


@contextmanager
def bench(options: argparse.Namespace) -> Iterator[Bench]:
    """Build the model and the pictures in a temporary folder."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build_small_model(
            folder, family=options.family, hidden=options.hidden, layers=options.layers
        )
        processor = Processor.load(folder)
        # Responses must all reach the limit, so that every side draws the same number of tokens.
        endless = (*processor.suppressed_ids, *processor.eos_ids)
        yield Bench(
            model=VisionLanguageModel(
                load_model(folder, device=torch.device(options.device)),
                replace(processor, suppressed_ids=endless),
                precision=torch.float32 if options.device == "cpu" else torch.bfloat16,
            ),
            examples=_pictures(folder, options.prompts, options.side),
        )


def rollouts_of(bench: Bench, *, per_prompt: int, tokens: int) -> Rollouts:
    """Return responses of random bytes, from half to one and a half times `tokens`, its mean."""
    encode = bench.model.processor.encode
    rows = len(bench.examples) * per_prompt
    lengths = torch.linspace(tokens / 2, tokens * 3 / 2, rows).round().long()[torch.randperm(rows)]
    shape = (rows, int(lengths.max()))
    return Rollouts(
        step=0,
        examples=bench.examples,
        prompts=tuple(encode(open_image(e.image), e.question) for e in bench.examples),
        per_prompt=per_prompt,
        tokens=torch.randint(256, shape),
        lengths=lengths,
        logprobs=torch.zeros(shape),
        entropies=None,
    )


def random_rows(rollouts: Rollouts, ratio: float) -> list[int]:
    """Return rows drawn uniformly; they cover many prompts, so sharing saves least."""
    order = torch.randperm(len(rollouts), generator=torch.Generator().manual_seed(0))
    return sorted(order[: int(ratio * len(rollouts))].tolist())


def compare(options: argparse.Namespace, ours: Side, others: Sequence[Side], *, shape: str) -> None:
    """Time the sides alternately, each after one warm-up, and print the medians."""
    sides = [ours, *others]
    tokens = [side.run() for side in sides]
    times: list[list[float]] = [[] for _ in sides]
    for _ in range(options.repeats):
        for side, seconds in zip(sides, times, strict=True):
            start = perf_counter()
            side.run()
            if options.device != "cpu":
                torch.cuda.synchronize()
            seconds.append(perf_counter() - start)
    medians = [statistics.median(seconds) for seconds in times]
    print(f"{options.family}, hidden {options.hidden}, {options.layers} layers; {shape}")
    print(f"{'':<34}{'seconds':>8}{'tokens':>9}   ours takes of its time (of its tokens)")
    rows: list[dict[str, Any]] = []
    for side, seconds, median, count in zip(sides, times, medians, tokens, strict=True):
        share, floor = medians[0] / median, tokens[0] / count
        verdict = "" if side is ours else _verdict(share, floor, side.required_share)
        print(f"{side.name:<34}{median:>8.3f}{count:>9,}{verdict}")
        rows.append(
            {
                "side": side.name,
                "median_seconds": median,
                "seconds": seconds,
                "processed_tokens": count,
                "share_of_its_time": share,
                "share_of_its_tokens": floor,
                "required_share": side.required_share,
            }
        )
    if options.json:
        settings = {name: value for name, value in vars(options).items() if name != "json"}
        report = {"settings": settings, "load": os.getloadavg()[0], "sides": rows}
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def _verdict(share: float, floor: float, required: float | None) -> str:
    text = f"   {share:.2f} ({floor:.2f}): {1 / share:.1f} times as fast"
    if required is None:
        return text
    met = "met" if share <= required else "NOT MET"
    return f"{text}; at most {required:.2f} required: {met}"


def _pictures(folder: Path, n: int, side: int) -> tuple[Example, ...]:
    """Return noisy pictures with crops of half their side, and questions of unequal length."""
    examples = []
    for i in range(n):
        path = folder / f"{i}.png"
        Image.effect_noise((side, side), 60 + i).convert("RGB").save(path)
        box = (side / 4, side / 4, side * 3 / 4, side * 3 / 4)
        question = "What is the color of the sign?" + " Look twice." * (i % 3)
        examples.append(
            Example(id=str(i), image=path, question=question, crop=Crop(area=1 / 4, box=box))
        )
    return tuple(examples)
