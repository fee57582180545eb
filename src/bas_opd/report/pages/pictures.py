"""Pictures of examples, shrunk and embedded in the page itself."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from PIL import Image

from bas_opd.data.images import Box, Size, open_crop, open_image
from bas_opd.types import Example

LARGEST = 560
"""Longest side of an embedded picture, in pixels."""
QUALITY = 82


@dataclass(frozen=True, slots=True, kw_only=True)
class Framed:
    """A picture with its crop box, and the crop."""

    size: Size
    """Of the whole picture, in whose pixels the box is."""
    box: Box | None
    picture: str
    """A data URL, as is `crop`."""
    crop: str


def framed(example: Example) -> Framed:
    """Open and shrink the picture and the crop of an example that has one."""
    picture = open_image(example.image)
    return Framed(
        size=picture.size,
        box=None if example.crop is None else example.crop.box,
        picture=_data_url(picture),
        crop=_data_url(open_crop(example)),
    )


def varied(examples: Iterable[Example], wanted: int) -> list[Example]:
    """Take examples in order, preferring the kinds taken least so far."""
    left, chosen = list(examples), []
    while left and len(chosen) < wanted:
        taken = Counter(each.kind for each in chosen)
        pick = min(left, key=lambda each: taken[each.kind])
        left.remove(pick)
        chosen.append(pick)
    return chosen


def _data_url(picture: Image.Image) -> str:
    small = picture.copy()
    small.thumbnail((LARGEST, LARGEST), Image.Resampling.LANCZOS)
    stream = io.BytesIO()
    # Without subsampling of colours, for a crop may be a few pixels that are asked about.
    small.save(stream, "JPEG", quality=QUALITY, subsampling=0)
    return f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode('ascii')}"
