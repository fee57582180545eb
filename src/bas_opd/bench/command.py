"""`bas-opd bench`: every phase of a step on this machine, beside what one would use instead."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bas_opd.bench.losses import losses
from bas_opd.bench.numbers import machine
from bas_opd.bench.phases import teaching, updating
from bas_opd.bench.sampling import decoding, prefilling, sampling
from bas_opd.bench.shapes import LARGE, random_model
from bas_opd.bench.sides import Comparison, Timed, lacks_memory
from bas_opd.bench.subject import Size, Subject, endless, pictures
from bas_opd.compute.memory import clear_frames, release
from bas_opd.errors import ConfigError, OutOfMemory
from bas_opd.model.base import model_folder
from bas_opd.model.loading import open_model, resolve_device
from bas_opd.model.vlm import VisionLanguageModel

PHASES: dict[str, Callable[..., Comparison]] = {
    "sampling": sampling,
    "prefill": prefilling,
    "decoding": decoding,
    "teacher": teaching,
    "student": updating,
}
STEP = ("sampling", "teacher", "student")
"""The phases that are a step; sampling has prefill and decoding."""
PARTS = (*PHASES, "loss")
LOSS_TOKENS = {"cuda": 8192, "cpu": 256}
CHUNK = 1024
SMALLER = "Choose a smaller model, or less of --prompts, --side, --tokens or --micro-batch."


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """What to time."""

    model: str
    """A folder, a hub id, a model of the package by its name, or `qwen3.5-4b` for its shape."""
    device: str
    size: Size
    parts: Sequence[str]
    repeats: int


def measure(
    request: BenchRequest,
    say: Callable[[str], None],
    keep: Callable[[dict[str, Any]], None] = lambda _: None,
) -> None:
    """Time the parts one after another; print each when it is done, and keep the numbers so far."""
    unknown = [name for name in request.parts if name not in PARTS]
    if unknown:
        raise ConfigError(f"There is no part {unknown[0]!r}. Choose from {', '.join(PARTS)}.")
    device = resolve_device(request.device)
    torch.set_num_threads(1)
    here = machine()
    gpu, cpu = (here["machine"][name] for name in ("gpu", "cpu"))
    where = gpu if device.type == "cuda" else f"{cpu}, one thread"
    say(f"{request.model} on {where}; torch {torch.__version__}, {here['date']}.")
    say(f"Medians of {request.repeats}, sides in turn. The floor is our matrix products alone.")

    def keep_all() -> None:
        keep(
            {
                **here,
                "device": str(device),
                "model": request.model,
                "size": asdict(request.size),
                "repeats": request.repeats,
                "comparisons": [each.content() for each in timings.found],
                "failed": timings.failed,
            }
        )

    timings = _Timings(say, keep_all)
    _time_parts(request, device, timings)
    if not timings.found:
        raise OutOfMemory("Nothing could be timed: there is not enough memory.")
    timings.show(_whole_step(timings.found))


class _Timings:
    """Times one part after another; one that does not fit into memory does not end the others."""

    def __init__(self, say: Callable[[str], None], keep: Callable[[], None]) -> None:
        self.found: list[Comparison] = []
        self.failed: list[str] = []
        self._say, self._keep = say, keep

    def add(self, name: str, run: Callable[[], Sequence[Comparison]], *, advice: str) -> None:
        """Time a part and print its tables, or what to do where memory ran out."""
        self._say(f"Timing {name} …")
        try:
            found = run()
        except Exception as error:
            if not lacks_memory(error):
                raise
            clear_frames(error)
            self.failed.append(f"{name} was not timed: there is not enough memory. {advice}")
            self._say(self.failed[-1])
        else:
            self.show(found)
        release()

    def show(self, found: Sequence[Comparison]) -> None:
        """Print and keep comparisons."""
        self.found += found
        for line in (line for each in found for line in each.lines()):
            self._say(line)
        self._keep()


def _time_parts(request: BenchRequest, device: torch.device, timings: _Timings) -> None:
    vocabulary, width = _time_phases(request, device, timings)
    if "loss" in request.parts:
        tokens = LOSS_TOKENS[device.type]
        run = partial(
            losses,
            device,
            tokens=tokens,
            width=width,
            vocabulary=vocabulary,
            chunks=[min(CHUNK, tokens)],
            repeats=request.repeats,
        )
        timings.add("loss", run, advice="Name a model with a smaller vocabulary.")


def _time_phases(request: BenchRequest, device: torch.device, timings: _Timings) -> tuple[int, int]:
    """Time what needs the model; return its vocabulary and width when it is gone."""
    model = _model(request.model, device)
    with tempfile.TemporaryDirectory() as folder:
        size = request.size
        examples = pictures(Path(folder), size.prompts, size.side)
        subject = Subject(model=endless(model), examples=examples, size=size)
        for name, phase in PHASES.items():
            if name in request.parts:
                run = partial(phase, subject, repeats=request.repeats)
                timings.add(name, lambda run=run: [run()], advice=SMALLER)
    vocabulary, width = model.head.weight.shape  # type: ignore[union-attr]
    return int(vocabulary), int(width)  # type: ignore[arg-type]


def _model(name: str, device: torch.device) -> VisionLanguageModel:
    try:
        if name == LARGE:
            return random_model(device)
        return open_model(model_folder(name), device=str(device), max_pixels=2**24)
    except Exception as error:
        if not lacks_memory(error):
            raise
        raise OutOfMemory(
            f"There is not enough memory for the model {name}. Name a smaller one, or end what "
            "else takes memory."
        ) from error


def _whole_step(found: Sequence[Comparison]) -> list[Comparison]:
    """Return what the phases take together, ours and the released way."""
    phases = [each for each in found if each.name in STEP]
    released = [
        [side for side in each.sides[1:] if side.required_share is not None] for each in phases
    ]
    if {each.name for each in phases} != set(STEP) or not all(released):  # or one failed
        return []
    fastest = [min(sides, key=lambda side: side.median) for sides in released]
    return [
        Comparison(
            name="step",
            shape="sampling, teacher and student, without selection, predictor and EMA. Released: "
            + "; ".join(side.name.removesuffix(" (released)") for side in fastest),
            sides=(
                Timed.together("all phases (ours)", [each.sides[0] for each in phases]),
                Timed.together("all phases (released)", fastest),
            ),
        )
    ]
