"""The drawings, digits and photographs that FineSearch is made of, each with its split."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from PIL import Image, ImageOps

from bas_opd.data.images import open_image
from bas_opd.errors import DataError

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

SIDE = 320
"""Side of an example's picture in pixels."""
CELL = 96
"""Side of a drawing in pixels."""
GLYPH = (40, 56)
"""Width and height of a printed digit."""
DIGIT = 28
"""Side of a handwritten digit."""

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (205, 35, 40),
    "orange": (245, 135, 25),
    "yellow": (245, 215, 40),
    "green": (40, 150, 60),
    "blue": (35, 85, 205),
    "purple": (125, 50, 165),
    "white": (245, 245, 242),
    "black": (30, 30, 34),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One drawing of a category."""

    index: int
    """Its cell in the sheet of objects."""
    category: str
    split: Split
    colour: Sequence[int]
    """Its mean colour; no plate of a similar colour is put behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Background:
    """One photograph."""

    index: int
    name: str
    split: Split
    shows: frozenset[str] = frozenset()
    """Categories that are not used with it, because it shows something similar."""
    file: Path | None = None
    """Its path, if it is the user's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """List of everything that can be drawn; the pixels are in the sheets."""

    pictures: tuple[Picture, ...]
    backgrounds: tuple[Background, ...]
    faces: tuple[Split, ...]
    """The split of each typeface, in row order of the glyph sheet."""
    digits: tuple[tuple[Split, int], ...]
    """Split and value of each handwritten digit, in the order of the sheet."""

    @property
    def categories(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(picture.category for picture in self.pictures))


@cache
def catalogue() -> Catalogue:
    """Load the catalogue that comes with the package."""
    listed: dict[str, Any] = json.loads(_file("catalogue.json").read_text("utf-8"))
    return Catalogue(
        pictures=tuple(
            Picture(index=i, category=one["category"], split=one["split"], colour=one["colour"])
            for i, one in enumerate(listed["objects"])
        ),
        backgrounds=tuple(
            Background(index=i, name=one["name"], split=one["split"], shows=frozenset(one["shows"]))
            for i, one in enumerate(listed["backgrounds"])
        ),
        faces=tuple(one["split"] for one in listed["faces"]),
        digits=tuple((split, value) for split in SPLITS for value in listed["digits"][split]),
    )


def object_cell(index: int) -> Image.Image:
    """Return the drawing of an object on a transparent background."""
    return _cell("objects.webp", 18, index, CELL, CELL)


def digit_cell(index: int) -> Image.Image:
    """Return the ink mask of a handwritten digit; 255 is darkest."""
    return _cell("digits.png", 80, index, DIGIT, DIGIT)


def glyph_cell(face: int, digit: int) -> Image.Image:
    """Return the ink mask of a printed digit."""
    return _cell("glyphs.png", 10, 10 * face + digit, *GLYPH)


@lru_cache(maxsize=64)
def photograph(background: Background) -> Image.Image:
    """Return a complete background, a square of `SIDE` pixels."""
    if background.file is None:
        return _open(f"backgrounds/{background.name}.webp").convert("RGB")
    photo = open_image(background.file)
    return ImageOps.fit(photo, (SIDE, SIDE), Image.Resampling.LANCZOS)


def own_backgrounds(folder: Path, split: Split) -> tuple[Background, ...]:
    """Return the pictures of a folder that belong to a split.

    The split depends on the contents of a picture only: three fifths go to train, one fifth each
    to val and test.
    """
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder} with backgrounds. Check the path.")
    found = []
    for file in sorted(folder.iterdir()):
        if file.suffix.lower() in (".png", ".jpg", ".jpeg", ".webp", ".bmp"):
            digest = hashlib.sha256(file.read_bytes()).digest()
            owner = ("train", "train", "train", "val", "test")[digest[0] % 5]
            if owner == split:
                found.append(Background(index=-1, name=file.name, split=split, file=file))
    if not found:
        raise DataError(
            f"None of the pictures in {folder} belongs to the {split} split. Add more pictures, or "
            "omit --backgrounds."
        )
    return tuple(found)


@cache
def disc() -> Image.Image:
    """Return the mask of a plate: a disc as wide as a cell, antialiased in sixteenths.

    Integer arithmetic, because drawing routines differ between versions.
    """
    fine = 4 * CELL
    odd = 2 * np.arange(fine) + 1 - fine
    inside = odd[:, None] ** 2 + odd[None, :] ** 2 <= fine**2
    parts = inside.reshape(CELL, 4, CELL, 4).sum((1, 3))
    return Image.fromarray((parts * 255 // 16).astype(np.uint8))


def _cell(sheet: str, columns: int, index: int, width: int, height: int) -> Image.Image:
    row, column = divmod(index, columns)
    left, top = column * width, row * height
    return _open(sheet).crop((left, top, left + width, top + height))


@cache
def _open(name: str) -> Image.Image:
    with _file(name).open("rb") as stream:
        picture = Image.open(stream)
        picture.load()
    return picture


def _file(name: str) -> Any:
    return files("bas_opd.data.finesearch") / "assets" / name
