"""Generated pictures for tests: large shapes, and one small shape to find.

A sample is a pure function of (seed, index, size). The picture is a pale texture with large
shapes; the question is about the one small shape, and the crop box lies around it. A few questions
need the whole picture and have no crop.
"""

from __future__ import annotations

import hashlib
import io
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from PIL import Image, ImageDraw

from bas_opd.data.images import Box, Size
from bas_opd.data.records import CropRow, PreparedSet, Row, crop_area
from bas_opd.data.writing import staged_set
from bas_opd.errors import DataError

COLOURS = {
    "red": (214, 39, 40),
    "green": (34, 139, 34),
    "blue": (31, 90, 200),
    "yellow": (240, 200, 20),
    "purple": (128, 50, 160),
    "orange": (245, 130, 20),
}
SHAPES = ("circle", "square", "triangle", "star")
KINDS = ("colour", "shape", "exists", "colour", "shape", "count")
"""Kinds by turn; `count`, and every other `exists`, has no crop."""

_MIN_SIDE = 96
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One generated example, its picture still in memory."""

    image: Image.Image
    box: Box | None
    question: str
    answer: str
    kind: str


def make_pictures(folder: Path, *, n: int, seed: int, size: Size = (256, 192)) -> PreparedSet:
    """Write a prepared set of n generated examples."""
    if n < 1:
        raise DataError(f"A set needs at least one picture, but {n} were asked for.")
    with staged_set(folder) as writer:
        for index in range(n):
            sample = draw_sample(seed, index, size)
            png = io.BytesIO()
            sample.image.save(png, "PNG", compress_level=1)  # a fifth of the time
            image = writer.store(png.getvalue(), name="generated.png", place="images")
            crop = None
            if sample.box is not None:
                crop = CropRow(box=sample.box, area=crop_area(size, sample.box))
            writer.add(
                Row(
                    id=f"picture-{seed}-{index:05d}",
                    image=image.name,
                    crop=crop,
                    question=sample.question,
                    answer=sample.answer,
                    kind=sample.kind,
                )
            )
        writer.finish(source=f"generated pictures, seed {seed}")
    return PreparedSet.load(folder)


def rewritten(source: Path, target: Path, *, spared: int = 0, **fields: Any) -> Path:
    """Copy a prepared set with other fields in every row, but for the first few."""
    examples = PreparedSet.load(source).examples
    with staged_set(target) as writer:
        for place, example in enumerate(examples):
            image = writer.store(example.image.read_bytes(), name="p.png", place="images")
            row = {"id": example.id, "image": image.name, "question": example.question}
            box = example.crop.box if example.crop else None
            crop = CropRow(box=box, area=0.1) if box else None
            changed = fields if place >= spared else {}
            writer.add(Row(**{**row, "answer": example.answer, "crop": crop, **changed}))
        writer.finish(source="a copy")
    return target


def draw_sample(seed: int, index: int, size: Size) -> Sample:
    """Return the sample at an index, always the same."""
    width, height = size
    if min(size) < _MIN_SIDE:
        raise DataError(
            f"Pictures of {width} x {height} pixels have no room for their shapes. Make both "
            f"sides at least {_MIN_SIDE} pixels."
        )
    key = f"pictures/{seed}/{index}".encode()
    draws = random.Random(int.from_bytes(hashlib.sha256(key).digest()))
    image = _texture(key, size)
    canvas = ImageDraw.Draw(image)

    # Shapes stand in the cells of a grid, so that none can hide another.
    cell = min(size) // 3
    cells = [(column, row) for column in range(width // cell) for row in range(height // cell)]
    large = 2 + int(draws.random() * 3)
    places = [cells.pop(int(draws.random() * len(cells))) for _ in range(large + 1)]
    colour, shape = _pick(draws, list(COLOURS)), _pick(draws, SHAPES)
    for column, row in places[1:]:
        centre = ((column + 0.5) * cell, (row + 0.5) * cell)
        radius = cell * (0.30 + 0.12 * draws.random())
        _draw_shape(canvas, _pick(draws, SHAPES), _pick(draws, list(COLOURS)), centre, radius)

    radius = cell * (0.09 + 0.04 * draws.random())
    column, row = places[0]
    x = (column + 0.3 + 0.4 * draws.random()) * cell
    y = (row + 0.3 + 0.4 * draws.random()) * cell
    _draw_shape(canvas, shape, colour, (x, y), radius)
    margin = cell * (0.22 + 0.08 * draws.random())
    box = (
        float(max(0, math.floor(x - margin))),
        float(max(0, math.floor(y - margin))),
        float(min(width, math.ceil(x + margin))),
        float(min(height, math.ceil(y + margin))),
    )

    kind = KINDS[index % len(KINDS)]
    if kind == "colour":
        question, answer = f"What colour is the small {shape}?", colour
    elif kind == "shape":
        question, answer = f"What shape is the small {colour} figure?", shape
    elif kind == "count":
        question, answer, box = "How many large shapes are there?", str(large), None
    elif index // len(KINDS) % 2 == 0:
        question, answer = f"Is there a small {shape}?", "yes"
    else:
        absent = _pick(draws, [other for other in SHAPES if other != shape])
        question, answer, box = f"Is there a small {absent}?", "no", None
    return Sample(image=image, box=box, question=question, answer=answer, kind=kind)


def _pick(draws: random.Random, options: Sequence[_T]) -> _T:
    """Pick an option by `random()`, the only method whose numbers never change."""
    return options[int(draws.random() * len(options))]


def _texture(key: bytes, size: Size) -> Image.Image:
    """A pale, cloudy background."""
    coarse = (max(2, size[0] // 16), max(2, size[1] // 16))
    noise = hashlib.shake_256(key).digest(3 * coarse[0] * coarse[1])
    cloud = Image.frombytes("RGB", coarse, noise).resize(size, Image.Resampling.BICUBIC)
    return Image.blend(Image.new("RGB", size, (225, 222, 214)), cloud, 0.22)


def _draw_shape(
    canvas: ImageDraw.ImageDraw,
    shape: str,
    colour: str,
    centre: tuple[float, float],
    radius: float,
) -> None:
    x, y = centre
    fill, outline = COLOURS[colour], (40, 40, 40)
    if shape == "circle":
        canvas.ellipse((x - radius, y - radius, x + radius, y + radius), fill, outline)
    elif shape == "square":
        side = radius * 0.9
        canvas.rectangle((x - side, y - side, x + side, y + side), fill, outline)
    else:
        points, inner = (3, 1.0) if shape == "triangle" else (10, 0.45)
        corners = []
        for corner in range(points):
            reach = radius * (inner if corner % 2 and points == 10 else 1.0)
            angle = 2 * math.pi * corner / points - math.pi / 2
            corners.append((x + reach * math.cos(angle), y + reach * math.sin(angle)))
        canvas.polygon(corners, fill, outline)
