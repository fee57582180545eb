"""Shared by the benchmarks: their options, a small random model, and the table."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import torch
from torch.profiler import ProfilerActivity, profile
from transformers.utils import logging

from bas_opd import disk
from bas_opd.bench import numbers
from bas_opd.bench.sides import Comparison
from bas_opd.bench.subject import Size, Subject, endless, pictures
from bas_opd.errors import ConfigError
from bas_opd.model.family import Family
from bas_opd.model.loading import open_model

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.shapes import make_pictures as make_pictures
from tests.small_models import build_small_model as build_small_model


def parser(
    description: str | None, *, prompts: int, side: int, tokens: int
) -> argparse.ArgumentParser:
    """Return the options all phases share; `tokens` is the length of a response."""
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
    options.add_argument("--ratio", type=float, default=0.25, help="of the rows, selected")
    options.add_argument("--micro-batch", type=int, default=4096, help="tokens of a micro-batch")
    options.add_argument("--repeats", type=int, default=3, help="timings of each side")
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--device", default="cpu")
    options.add_argument("--json", type=Path, help="also write the numbers to this file")
    return options


def time_phase(phase: Callable[..., Comparison], options: argparse.Namespace) -> None:
    """Build the model and the pictures in a temporary folder, time the phase and print it."""
    check_output(options)
    torch.set_num_threads(options.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build_small_model(
            folder, family=options.family, hidden=options.hidden, layers=options.layers
        )
        size = Size(
            prompts=options.prompts,
            per_prompt=options.rollouts,
            side=options.side,
            tokens=options.tokens,
            ratio=options.ratio,
            micro_batch=options.micro_batch,
        )
        subject = Subject(
            model=endless(open_model(folder, device=options.device)),
            examples=pictures(folder, size.prompts, size.side),
            size=size,
        )
        print(f"{options.family}, hidden {options.hidden}, {options.layers} layers")
        show(options, [phase(subject, repeats=options.repeats)])


def show(options: argparse.Namespace, found: Sequence[Comparison]) -> None:
    """Print the tables, and write the numbers to a file if one is asked for."""
    print("\n".join(line for each in found for line in each.lines(judged=True)))
    write_numbers(options, {"comparisons": [each.content() for each in found]})


def check_output(options: argparse.Namespace) -> None:
    """Refuse a file for the numbers that cannot be written, before anything is measured."""
    if options.json:
        try:
            numbers.check_output(options.json)
        except ConfigError as error:
            sys.exit(str(error))


def write_numbers(options: argparse.Namespace, found: Mapping[str, Any]) -> None:
    """Write numbers to a file if one is asked for, with the settings and the machine."""
    if options.json:
        settings = {name: value for name, value in vars(options).items() if name != "json"}
        program = f"python benchmarks/{Path(sys.argv[0]).name}"
        command = numbers.command_line(program, sys.argv[1:])
        head = {"command": command, "settings": settings}
        numbers.save({**head, **numbers.machine(), **found}, options.json)


@contextmanager
def profiled(path: Path) -> Iterator[None]:
    """Write the kernels and operators that take longest to a file."""
    used = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=used, acc_events=True) as found:
        yield
    averages = found.key_averages()
    tables = [
        averages.table(sort_by=key, row_limit=40, max_name_column_width=90)
        for key in ("self_device_time_total", "self_cpu_time_total")
    ]
    disk.write_file(path, "\n".join(tables))
