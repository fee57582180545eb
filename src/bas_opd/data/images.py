"""The only module that opens pictures.

Pictures are untrusted: the pixel count is read from the header before anything is decoded, a
truncated file is an error rather than black rows, and the EXIF rotation is applied so that crop
boxes refer to what a viewer sees. Pillow's process-wide limits are not changed.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from PIL import ExifTags, Image, UnidentifiedImageError

from bas_opd.errors import DataError
from bas_opd.types import Example

MAX_PIXELS = 80_000_000
"""Just below the count from which Pillow itself warns."""

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
"""Formats that Pillow decodes itself; opening EPS, for example, would start another program."""

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

Box = tuple[float, float, float, float]
Size = tuple[int, int]


def open_image(path: Path) -> Image.Image:
    """Return the picture in a file, upright, in RGB."""
    with _explained(str(path)), path.open("rb") as stream:
        return _decode(stream)


def decode_image(data: bytes, *, name: str) -> Image.Image:
    """Return the picture in `data`, upright, in RGB; `name` appears in errors."""
    with _explained(name):
        return _decode(io.BytesIO(data))


def image_size(path: Path) -> Size:
    """Return width and height of the upright picture; reads the header only."""
    with _explained(str(path)), path.open("rb") as stream:
        image, orientation = _header(stream)
        width, height = image.size
        return (height, width) if orientation >= 5 else (width, height)


def open_crop(example: Example) -> Image.Image:
    """Return the privileged view: the crop picture, or the box cut from the upright image."""
    crop = example.crop
    if crop is None:
        raise DataError(f"Example {example.id!r} has no crop. Give it a box or a crop picture.")
    if crop.image is not None:
        return open_image(crop.image)
    if crop.box is None:
        raise DataError(f"The crop of {example.id!r} has neither a box nor a picture. Add one.")
    image = open_image(example.image)
    check_box(crop.box, image.size)
    return image.crop(whole_pixels(crop.box))


def check_box(box: Box, size: Size) -> None:
    """Raise an error unless the box is a non-empty area inside the picture."""
    x0, y0, x1, y1 = box
    shown = f"[{x0:g}, {y0:g}, {x1:g}, {y1:g}]"
    if not all(math.isfinite(edge) for edge in box):
        raise DataError(f"The crop box {shown} contains a number that is not finite. Correct it.")
    if x0 >= x1 or y0 >= y1:
        raise DataError(
            f"The crop box {shown} is empty or inverted. Write it as x0, y0, x1, y1 with x0 < x1 "
            "and y0 < y1."
        )
    width, height = size
    if x0 < 0 or y0 < 0 or x1 > width or y1 > height:
        raise DataError(
            f"The crop box {shown} is outside its picture of {width} x {height} pixels. Correct "
            "it, in pixels of the upright picture, or remove it."
        )


def whole_pixels(box: Box) -> tuple[int, int, int, int]:
    """Return the smallest pixel rectangle that covers a box; it is never empty."""
    x0, y0, x1, y1 = box
    return math.floor(x0), math.floor(y0), math.ceil(x1), math.ceil(y1)


def box_size(box: Box) -> Size:
    """Return width and height of the crop that is cut at a box."""
    x0, y0, x1, y1 = whole_pixels(box)
    return x1 - x0, y1 - y0


@contextmanager
def _explained(name: str) -> Iterator[None]:
    try:
        yield
    except DataError as error:
        raise DataError(f"The picture {name} cannot be used: {error}") from error
    except FileNotFoundError as error:
        raise DataError(f"The picture {name} does not exist. Restore the file.") from error
    except MemoryError:  # It says nothing about the file.
        raise
    # For hostile bytes Pillow raises OSError, struct.error, SyntaxError, ValueError, zlib.error,
    # EOFError, DecompressionBombError and more; in each case the file is not a usable picture.
    except Exception as error:
        detail = str(error) or type(error).__name__
        if isinstance(error, UnidentifiedImageError):  # whose text names an object of Python
            detail = "its format is not known"
        raise DataError(
            f"The picture {name} cannot be read ({detail}). It is damaged, truncated, or not one "
            f"of {', '.join(FORMATS)}; replace it or drop its row."
        ) from error


def _header(stream: BinaryIO) -> tuple[Image.Image, int]:
    """Return the undecoded picture and its EXIF orientation (1 is upright)."""
    image = Image.open(stream, formats=FORMATS)
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise DataError(
            f"it has {width} x {height} pixels, more than the limit of {MAX_PIXELS:,}. Shrink it "
            "or drop its row."
        )
    if image.format == "TIFF":  # Pillow rotates these itself, and their header size too
        return image, 1
    # The base method: the override for PNG decodes the picture to look for a late EXIF chunk.
    orientation = Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1)
    return image, orientation if orientation in _UPRIGHT else 1


def _decode(stream: BinaryIO) -> Image.Image:
    image, orientation = _header(stream)
    image.load()
    picture = _as_rgb(image)
    return picture.transpose(_UPRIGHT[orientation]) if orientation != 1 else picture


def _as_rgb(image: Image.Image) -> Image.Image:
    """Convert to RGB as a viewer does: transparency on white, 16 bits scaled to 8."""
    if image.mode in ("I", "F"):
        raise DataError(
            f"its mode {image.mode} has no fixed white point. Save it as an 8-bit picture."
        )
    if image.mode.startswith("I;16"):
        # Pillow would clip at 255, and nearly all pixels would be white.
        scaled = image.convert("I").point(lambda value: value * (1 / 256))
        return scaled.convert("L").convert("RGB")
    if image.has_transparency_data:
        picture = image.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        return Image.alpha_composite(white, picture).convert("RGB")
    return image.convert("RGB")
