"""Draw a FineSearch scene with identical pixels on every machine.

Only resampling of 8-bit channels (integer arithmetic in Pillow), pasting and table look-ups are
used; shapes are masks that come with the package or are computed in integers.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from PIL import Image

from bas_opd.data.finesearch.assets import (
    CELL,
    COLOURS,
    DIGIT,
    GLYPH,
    SIDE,
    digit_cell,
    disc,
    glyph_cell,
    object_cell,
    photograph,
)
from bas_opd.data.finesearch.scenes import Scene, Shape, Thing

INK = (24, 24, 32)
RIM = (70, 70, 78)
_OBJECT = 70
"""Side of an object on its plate in pixels."""


def render(scene: Scene) -> Image.Image:
    """Return the picture of a scene."""
    image = _backdrop(scene)
    for placed in scene.placed:
        tile = tile_of(placed.thing)
        size = (placed.size, placed.size)
        # Premultiplied alpha (RGBa) while resizing avoids a dark fringe.
        small = tile.convert("RGBa").resize(size, Image.Resampling.BOX).convert("RGBA")
        image.paste(small.convert("RGB"), (placed.x, placed.y), small.getchannel("A"))
    return image


def tile_of(thing: Thing) -> Image.Image:
    """Return a thing at the size of a cell, on a transparent background."""
    tile = backing(thing.shape, thing.colour).copy()
    tile.alpha_composite(overlay(thing))
    return tile


@lru_cache(maxsize=64)
def backing(shape: Shape, colour: str) -> Image.Image:
    """Return the plate, sign or note without its content."""
    fill = COLOURS[colour]
    if shape == "plate":
        tile = Image.new("RGBA", (CELL, CELL), (*RIM, 0))
        tile.putalpha(disc())
        tile.paste((*fill, 255), (3, 3), disc().resize((CELL - 6, CELL - 6), Image.Resampling.BOX))
        return tile
    top = CELL // 8 if shape == "sign" else 0
    tile = Image.new("RGBA", (CELL, CELL))
    tile.paste((*RIM, 255), (0, top, CELL, CELL - top))
    tile.paste((*fill, 255), (2, top + 2, CELL - 2, CELL - top - 2))
    if shape == "sign":
        tile.paste((252, 252, 250, 255), (12, top + 10, CELL - 12, CELL - top - 10))
    else:
        tile.paste((252, 252, 250, 255), (14, 14, CELL - 14, CELL - 14))
    return tile


def overlay(thing: Thing) -> Image.Image:
    """Return the object, number or digit without its plate, sign or note, in its position."""
    cell = Image.new("RGBA", (CELL, CELL))
    if thing.shape == "plate":
        picture = object_cell(thing.picture).convert("RGBa")
        picture = picture.resize((_OBJECT, _OBJECT), Image.Resampling.BOX).convert("RGBA")
        corner = (CELL - _OBJECT) // 2
        cell.alpha_composite(picture, (corner, corner))
        return cell
    ink = Image.new("L", (CELL, CELL))
    if thing.shape == "sign":
        width, height = 32, GLYPH[1] * 32 // GLYPH[0]
        for place, digit in enumerate(thing.name):
            glyph = glyph_cell(thing.picture, int(digit))
            glyph = glyph.resize((width, height), Image.Resampling.BOX)
            ink.paste(glyph, (CELL // 2 + (place - 1) * width, (CELL - height) // 2))
    else:
        side = 2 * DIGIT
        handwriting = digit_cell(thing.picture).resize((side, side), Image.Resampling.BILINEAR)
        ink.paste(handwriting, ((CELL - side) // 2, (CELL - side) // 2))
    cell.paste((*INK, 255), (0, 0), ink)
    cell.putalpha(ink)
    return cell


def _backdrop(scene: Scene) -> Image.Image:
    photo = photograph(scene.background).crop(scene.window)
    photo = photo.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    if scene.is_mirrored:
        photo = photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    shades = np.arange(256)
    table = [value for gain in scene.gains for value in (shades * gain // 256).tolist()]
    return photo.point(table)
