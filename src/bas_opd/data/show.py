"""Draw examples: the full picture with its crop box, and the crop beside it."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from PIL import Image, ImageDraw, ImageFont

from bas_opd.data.images import open_crop, open_image
from bas_opd.data.records import PreparedSet
from bas_opd.errors import DataError
from bas_opd.types import Example

_HEIGHT = 640
_MAX_WIDTH = 1280
_GAP = 16
_CELL = 360
_LINE = 20


def find_example(prepared: PreparedSet, row: str) -> tuple[int, Example]:
    """Return an example and its row number, by id or else by row number from 1."""
    for number, example in enumerate(prepared.examples, 1):
        if example.id == row:
            return number, example
    if row.isdecimal() and 1 <= int(row) <= len(prepared):
        return int(row), prepared.examples[int(row) - 1]
    raise DataError(
        f"{prepared.folder} has no row {row!r}. Give a number from 1 to {len(prepared)}, or an id."
    )


def side_by_side(example: Example) -> Image.Image:
    """Draw the full picture with the crop box, and the crop at the same height."""
    full = open_image(example.image)
    panels = [_fitted(full)]
    if example.crop is not None:
        panels.append(_fitted(open_crop(example)))
        if example.crop.box is not None:
            scale = panels[0].width / full.width
            box = [edge * scale for edge in example.crop.box]
            ImageDraw.Draw(panels[0]).rectangle(box, outline="red", width=3)
    sheet = Image.new(
        "RGB",
        (
            sum(panel.width for panel in panels) + _GAP * (len(panels) - 1),
            max(panel.height for panel in panels),
        ),
        "white",
    )
    left = 0
    for panel in panels:
        sheet.paste(panel, (left, 0))
        left += panel.width + _GAP
    return sheet


def contact_sheet(examples: Sequence[Example], *, columns: int = 4) -> Image.Image:
    """Draw many examples on one sheet, each with its question and answer below."""
    cells = [_cell(example) for example in examples]
    height = max(cell.height for cell in cells)
    rows = -(-len(cells) // columns)
    sheet = Image.new("RGB", (columns * _CELL + _GAP, rows * (height + _GAP) + _GAP), "white")
    for number, cell in enumerate(cells):
        row, column = divmod(number, columns)
        sheet.paste(cell, (_GAP + column * _CELL, _GAP + row * (height + _GAP)))
    return sheet


def _cell(example: Example) -> Image.Image:
    picture = side_by_side(example)
    width = _CELL - _GAP
    picture.thumbnail((width, width // 2), Image.Resampling.LANCZOS)
    cell = Image.new("RGB", (width, picture.height + 4 * _LINE), "white")
    cell.paste(picture)
    text = [*wrap(example.question, 46)[:2], f"{example.kind}: {example.answer}"]
    ImageDraw.Draw(cell).text(
        (0, picture.height + 4), "\n".join(text), "black", ImageFont.load_default(14)
    )
    return cell


def _fitted(picture: Image.Image) -> Image.Image:
    scale = min(_HEIGHT / picture.height, _MAX_WIDTH / picture.width)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return picture.resize(size, Image.Resampling.LANCZOS)
