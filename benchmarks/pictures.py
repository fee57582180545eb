"""A step's pictures opened in the loop, against opened by threads while the device works.

    python benchmarks/pictures.py
    python benchmarks/pictures.py --workers 8 --prompts 28 --device-seconds 10

Large JPEG files are decoded and encoded as training does. The device's time is a stand-in: the
loop sleeps for --device-seconds a step, as it does while a GPU computes. Beside the ratio stands
how much slower the loop launches small operations while threads open pictures: they share the
interpreter with it, and the cores if there are too few.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy
import torch
from _sides import build_small_model, check_output, write_numbers
from PIL import Image

from bas_opd.data.views import full_view
from bas_opd.model.encoding import ViewEncoder
from bas_opd.model.processing import Processor
from bas_opd.types import Example

LAUNCHES = 20_000


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--width", type=int, default=4000)
    options.add_argument("--height", type=int, default=3000)
    options.add_argument("--max-pixels", type=int, default=1024 * 1024, help="that the model sees")
    options.add_argument("--prompts", type=int, default=8, help="pictures of a step")
    options.add_argument("--steps", type=int, default=3)
    options.add_argument("--workers", type=int, default=1)
    options.add_argument("--device-seconds", type=float, default=5.0, help="stand-in, a step")
    options.add_argument("--json", type=Path, help="also write the numbers to this file")
    chosen = options.parse_args()
    check_output(chosen)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build_small_model(folder)
        processor = Processor.load(folder, max_pixels=chosen.max_pixels)
        examples = photographs(folder, chosen.prompts, (chosen.width, chosen.height))
        processor.encode(*full_view(examples[0]))
        found = {
            "opening a picture": opening(processor, examples),
            "step, in the loop": step(processor, examples, chosen, workers=0),
            "step, by threads": step(processor, examples, chosen, workers=chosen.workers),
            "launches": launching(processor, examples, workers=0),
            "launches beside threads": launching(processor, examples, workers=chosen.workers),
        }
    share = found["step, by threads"] / found["step, in the loop"]
    print(
        f"{chosen.prompts} pictures of {chosen.width} x {chosen.height} a step, "
        f"{chosen.device_seconds:g} s of a device (a stand-in), {chosen.workers} threads, "
        f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}"
    )
    for name, seconds in found.items():
        print(f"{name:<26}{seconds:>9.3f} s")
    print(f"by threads a step takes {share:.2f} of the time: {1 / share:.2f} times as fast")
    slower = found["launches beside threads"] / found["launches"]
    print(f"launching takes {slower:.2f} times as long while threads open pictures")
    write_numbers(chosen, {"seconds": found})


def photographs(folder: Path, count: int, size: tuple[int, int]) -> tuple[Example, ...]:
    """Write JPEG files with soft shapes and fine noise, which compress as photographs do."""
    examples = []
    for number in range(count):
        draw = numpy.random.default_rng(number)
        coarse = Image.fromarray(draw.integers(0, 256, (75, 100, 3), numpy.uint8))
        soft = numpy.asarray(coarse.resize(size, Image.Resampling.BICUBIC))
        noisy = soft + draw.normal(0, 6, soft.shape)
        path = folder / f"{number}.jpg"
        Image.fromarray(noisy.clip(0, 255).astype(numpy.uint8)).save(path, quality=90)
        examples.append(Example(id=path.name, image=path, question="What is shown?"))
    return tuple(examples)


def opening(processor: Processor, examples: Sequence[Example]) -> float:
    """Return the mean seconds of one picture in the loop."""
    start = time.perf_counter()
    for example in examples:
        processor.encode(*full_view(example))
    return (time.perf_counter() - start) / len(examples)


def step(
    processor: Processor, examples: Sequence[Example], chosen: argparse.Namespace, *, workers: int
) -> float:
    """Return the median seconds of a step after the first, which nothing prepares."""
    encoder = ViewEncoder(processor, full_view, threads=workers)
    taken = []
    for number in range(chosen.steps + 1):
        start = time.perf_counter()
        encoder.expect(examples)
        prompts = [encoder(example) for example in examples]
        encoder.expect(examples if number < chosen.steps else ())
        time.sleep(chosen.device_seconds)
        taken.append(time.perf_counter() - start)
        assert len(prompts) == len(examples)
    return statistics.median(taken[1:])


def launching(processor: Processor, examples: Sequence[Example], *, workers: int) -> float:
    """Return the median seconds of many small operations beside threads that open pictures."""
    encoder = ViewEncoder(processor, full_view, threads=workers)
    few, taken = torch.zeros(8), []
    for _ in range(5):
        encoder.expect()
        encoder.expect(examples)
        start = time.perf_counter()
        for _ in range(LAUNCHES):
            few = few + 1
        taken.append(time.perf_counter() - start)
    encoder.close()
    return statistics.median(taken)


if __name__ == "__main__":
    main()
