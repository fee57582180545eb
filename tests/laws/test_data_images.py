from __future__ import annotations

import io
import warnings
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from bas_opd.data.images import check_box, decode_image, whole_pixels
from bas_opd.errors import DataError


def encoded(kind: str) -> bytes:
    stream = io.BytesIO()
    Image.radial_gradient("L").resize((24, 16)).convert("RGB").save(stream, kind)
    return stream.getvalue()


PICTURES = [encoded(kind) for kind in ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")]


@settings(deadline=None)
@given(
    whole=st.sampled_from(PICTURES),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(max_size=8))),
    keep=st.floats(0, 1),
)
def test_damaged_bytes_give_a_picture_or_an_explanation(
    whole: bytes, changes: list[tuple[float, bytes]], keep: float
) -> None:
    data = bytearray(whole)
    for place, patch in changes:
        start = int(place * len(data))
        data[start : start + len(patch)] = patch
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # outside the tests a warning of Pillow's stops nothing
        # Any other exception than this one fails the test.
        with suppress(DataError):
            image = decode_image(bytes(data[: int(keep * len(data))]), name="damaged")
            assert image.mode == "RGB"


@settings(deadline=None)
@given(
    width=st.integers(1, 500),
    height=st.integers(1, 500),
    edges=st.tuples(*[st.floats(-10, 510)] * 4),
)
def test_an_accepted_box_covers_whole_pixels_inside_the_picture(
    width: int, height: int, edges: tuple[float, float, float, float]
) -> None:
    try:
        check_box(edges, (width, height))
    except DataError:
        return
    x0, y0, x1, y1 = whole_pixels(edges)
    assert 0 <= x0 < x1 <= width
    assert 0 <= y0 < y1 <= height
