"""`bas-opd bench`: every phase of a step on this machine, beside what one would use instead."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bas_opd.bench.losses import losses
from bas_opd.bench.numbers import machine
from bas_opd.bench.phases import sampling, teaching, updating
from bas_opd.bench.shapes import LARGE, random_model
from bas_opd.bench.sides import Comparison
from bas_opd.bench.subject import Size, Subject, endless, pictures
from bas_opd.errors import ConfigError
from bas_opd.model.base import model_folder
from bas_opd.model.loading import open_model, resolve_device
from bas_opd.model.vlm import VisionLanguageModel

PHASES: dict[str, Callable[..., Comparison]] = {
    "sampling": sampling,
    "teacher": teaching,
    "student": updating,
}
PARTS = (*PHASES, "loss")
LOSS_TOKENS = {"cuda": 8192, "cpu": 256}
CHUNK = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """What to time."""

    model: str
    """A folder, a hub id, a model of the package by its name, or `qwen3.5-4b` for its shape."""
    device: str
    size: Size
    parts: Sequence[str]
    repeats: int


def measure(request: BenchRequest, say: Callable[[str], None]) -> dict[str, Any]:
    """Time the parts one after another, print each when it is done, and return the numbers."""
    unknown = [name for name in request.parts if name not in PARTS]
    if unknown:
        raise ConfigError(f"There is no part {unknown[0]!r}. Choose from {', '.join(PARTS)}.")
    device = resolve_device(request.device)
    torch.set_num_threads(1)
    here = machine()
    gpu, cpu = (here["machine"][name] for name in ("gpu", "cpu"))
    where = gpu if device.type == "cuda" else f"{cpu}, one thread"
    say(f"{request.model} on {where}; torch {torch.__version__}, {here['date']}.")
    found = []
    for comparison in _comparisons(request, device, say):
        found.append(comparison)
        for line in comparison.lines():
            say(line)
    for line in _whole_step(found):
        say(line)
    return {
        **here,
        "device": str(device),
        "model": request.model,
        "size": asdict(request.size),
        "repeats": request.repeats,
        "comparisons": [each.content() for each in found],
    }


def _comparisons(
    request: BenchRequest, device: torch.device, say: Callable[[str], None]
) -> Iterator[Comparison]:
    model = _model(request.model, device)
    with tempfile.TemporaryDirectory() as folder:
        size = request.size
        examples = pictures(Path(folder), size.prompts, size.side)
        subject = Subject(model=endless(model), examples=examples, size=size)
        for name, run in PHASES.items():
            if name in request.parts:
                say(f"Timing {name} …")
                yield run(subject, repeats=request.repeats)
    if "loss" in request.parts:
        say("Timing loss …")
        vocabulary, width = model.head.weight.shape  # type: ignore[union-attr]
        del model, subject
        yield from losses(
            device,
            tokens=LOSS_TOKENS[device.type],
            width=int(width),  # type: ignore[arg-type]
            vocabulary=int(vocabulary),  # type: ignore[arg-type]
            chunks=[min(CHUNK, LOSS_TOKENS[device.type])],
            repeats=request.repeats,
        )


def _model(name: str, device: torch.device) -> VisionLanguageModel:
    if name == LARGE:
        return random_model(device)
    return open_model(model_folder(name), device=str(device), max_pixels=2**24)


def _whole_step(found: Sequence[Comparison]) -> list[str]:
    """Return what the phases take together, ours and the released way."""
    phases = [each for each in found if each.name in PHASES]
    if {each.name for each in phases} != set(PHASES):
        return []
    ours = sum(each.sides[0].median for each in phases)
    released = [
        [side.median for side in each.sides[1:] if side.required_share is not None]
        for each in phases
    ]
    if not all(released):  # One failed and was left out.
        return []
    theirs = sum(medians[0] for medians in released)
    return [
        f"the three phases together: {ours:.3f} s; by generate, all rows and own prompts "
        f"{theirs:.3f} s: {theirs / ours:.1f} times as fast"
    ]
