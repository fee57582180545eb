"""The layout of a FineSearch picture, in integers; `render` draws it.

A scene is a pure function of its random draws. Things come in clusters: one alone, two side by
side, or a block of four. The question is about one cluster, and the crop box is around it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, TypeVar

from bas_opd.data.finesearch.assets import (
    COLOURS,
    SIDE,
    Background,
    Picture,
    Split,
    catalogue,
    own_backgrounds,
)

Size = Literal["small", "large"]
SIZES: dict[Size, tuple[int, int]] = {"small": (24, 34), "large": (64, 92)}
"""Smallest and largest side of a thing in pixels."""

Shape = Literal["plate", "sign", "note"]
Box = tuple[int, int, int, int]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """A plate with an object, a sign with a number, or a note with a handwritten digit."""

    shape: Shape
    name: str
    """The category, the number or the digit."""
    picture: int
    """Index of the drawing, typeface or handwritten digit."""
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A thing and its square in the picture."""

    thing: Thing
    x: int
    y: int
    size: int

    @property
    def box(self) -> Box:
        return (self.x, self.y, self.x + self.size, self.y + self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A complete picture before it is drawn."""

    background: Background
    window: Box
    """The part of the photograph that fills the picture."""
    is_mirrored: bool
    gains: tuple[int, ...]
    """Brightness of the photograph by channel, in 256ths."""
    placed: tuple[Placed, ...]


class Draws:
    """Random draws at an address: the same on every machine and with every version of Python."""

    def __init__(self, *address: object) -> None:
        key = "/".join(map(str, address)).encode()
        # Only random() is guaranteed to give the same numbers in every version.
        self._next = random.Random(int.from_bytes(hashlib.sha256(key).digest())).random

    def below(self, limit: int) -> int:
        return int(self._next() * limit)

    def between(self, low: int, high: int) -> int:
        """Return an integer from low to high, both included."""
        return low + self.below(high - low + 1)

    def chance(self, share: float) -> bool:
        return self._next() < share

    def pick(self, options: Sequence[_T]) -> _T:
        return options[self.below(len(options))]

    def some(self, options: Sequence[_T], count: int) -> list[_T]:
        """Return `count` different options in random order."""
        pool = list(options)
        return [pool.pop(self.below(len(pool))) for _ in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """What the pictures of one split are made of."""

    pictures: dict[str, tuple[Picture, ...]]
    backgrounds: tuple[Background, ...]
    faces: tuple[int, ...]
    digits: dict[int, tuple[int, ...]]


@cache
def supply(split: Split, backgrounds: Path | None) -> Supply:
    """Return the supply of a split; `backgrounds` is a folder that replaces its photographs."""
    listed = catalogue()
    pictures = [picture for picture in listed.pictures if picture.split == split]
    return Supply(
        pictures={
            category: tuple(picture for picture in pictures if picture.category == category)
            for category in listed.categories
        },
        backgrounds=(
            tuple(b for b in listed.backgrounds if b.split == split)
            if backgrounds is None
            else own_backgrounds(backgrounds, split)
        ),
        faces=tuple(face for face, owner in enumerate(listed.faces) if owner == split),
        digits={
            value: tuple(
                index for index, entry in enumerate(listed.digits) if entry == (split, value)
            )
            for value in range(10)
        },
    )


def plate_colours(picture: Picture) -> tuple[str, ...]:
    """Return the plate colours that contrast with a picture."""
    return tuple(
        name
        for name, colour in COLOURS.items()
        if sum(abs(a - b) for a, b in zip(colour, picture.colour, strict=True)) >= _LEAST_CONTRAST
    )


_LEAST_CONTRAST = 120
"""Smallest difference between a plate and its object's mean colour, summed over channels."""


def draw_scene(
    draws: Draws,
    background: Background,
    clusters: Sequence[Sequence[Thing]],
    size: tuple[int, int],
    *,
    across: bool = True,
) -> Scene:
    """Place clusters without overlap, the first one first.

    `across` places a cluster of two side by side, otherwise one above the other. The first cluster
    always fits, since a block of the largest things is smaller than the picture; later ones that do
    not fit are left out.
    """
    side = draws.between(*size)
    gap = max(2, side // 8)
    apart = min(side, 28)  # Enough space that no thing seems to belong to another cluster.
    taken: list[Box] = []
    placed: list[Placed] = []
    for cluster in clusters:
        columns = {1: 1, 2: 2 if across else 1, 4: 2}[len(cluster)]
        rows = len(cluster) // columns
        width = columns * side + (columns - 1) * gap
        height = rows * side + (rows - 1) * gap
        corner = _free_corner(draws, width, height, apart, taken)
        if corner is None:
            continue
        x, y = corner
        taken.append((x, y, x + width, y + height))
        placed += [
            Placed(
                thing=thing,
                x=x + index % columns * (side + gap),
                y=y + index // columns * (side + gap),
                size=side,
            )
            for index, thing in enumerate(cluster)
        ]
    window = draws.between(SIDE * 5 // 8, SIDE)
    left, top = draws.between(0, SIDE - window), draws.between(0, SIDE - window)
    light = draws.between(150, 256)
    return Scene(
        background=background,
        window=(left, top, left + window, top + window),
        is_mirrored=draws.chance(0.5),
        gains=tuple(min(256, light + draws.between(-40, 40)) for _ in range(3)),
        placed=tuple(placed),
    )


def crop_box(draws: Draws, placed: Sequence[Placed]) -> Box:
    """Return a square around some things, with a margin, inside the picture."""
    left, top = min(p.x for p in placed), min(p.y for p in placed)
    right, bottom = max(p.x + p.size for p in placed), max(p.y + p.size for p in placed)
    widest = max(right - left, bottom - top)
    percent = draws.between(160, 190) if len(placed) == 1 else draws.between(112, 122)
    side = min(SIDE, widest * percent // 100)
    # The things need not be in the middle of the crop.
    spare_x, spare_y = side - (right - left), side - (bottom - top)
    x = left - spare_x // 4 - draws.between(0, spare_x // 2)
    y = top - spare_y // 4 - draws.between(0, spare_y // 2)
    x, y = min(max(0, x), SIDE - side), min(max(0, y), SIDE - side)
    return (x, y, x + side, y + side)


def _free_corner(
    draws: Draws, width: int, height: int, apart: int, taken: Sequence[Box]
) -> tuple[int, int] | None:
    for _ in range(40):
        x, y = draws.between(4, SIDE - 4 - width), draws.between(4, SIDE - 4 - height)
        if all(
            x + width + apart <= x0
            or x1 + apart <= x
            or y + height + apart <= y0
            or y1 + apart <= y
            for x0, y0, x1, y1 in taken
        ):
            return x, y
    return None
