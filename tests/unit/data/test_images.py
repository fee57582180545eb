from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest
from PIL import Image, ImageOps

from bas_opd.data import images
from bas_opd.data.images import check_box, image_size, open_crop, open_image
from bas_opd.errors import DataError
from bas_opd.types import Crop, Example


def gradient(size: tuple[int, int]) -> Image.Image:
    red = Image.linear_gradient("L").resize(size)
    green = Image.radial_gradient("L").resize(size)
    return Image.merge("RGB", (red, green, ImageOps.mirror(red.rotate(90).resize(size))))


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds next to nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 64)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "tiff"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_applied_to_pixels_and_size(
    tmp_path: Path, suffix: str, orientation: int
) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    path = tmp_path / f"turned.{suffix}"
    gradient((40, 24)).save(path, exif=exif)
    with Image.open(path) as raw:
        raw.load()
        upright = ImageOps.exif_transpose(raw).convert("RGB")
    assert upright.size == ((24, 40) if orientation >= 5 else (40, 24))
    assert image_size(path) == upright.size
    assert open_image(path).tobytes() == upright.tobytes()


def test_the_size_is_read_without_decoding(tmp_path: Path) -> None:
    path = tmp_path / "hollow.png"
    path.write_bytes(png_header(4000, 3000))
    assert image_size(path) == (4000, 3000)
    with pytest.raises(DataError, match=r"hollow\.png cannot be read"):
        open_image(path)


def test_the_pixel_limit_is_refused_from_the_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "large.png"
    gradient((100, 50)).save(path)
    limit = Image.MAX_IMAGE_PIXELS
    monkeypatch.setattr(images, "MAX_PIXELS", 5_000)
    assert open_image(path).size == (100, 50)
    monkeypatch.setattr(images, "MAX_PIXELS", 4_999)
    with pytest.raises(DataError, match=r"large\.png.*100 x 50 pixels.*limit of 4,999"):
        open_image(path)
    assert limit == Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize("side", [9_000, 10_000, 50_000])
def test_a_decompression_bomb_is_refused(tmp_path: Path, side: int) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(png_header(side, side))
    for read in (open_image, image_size):
        with pytest.raises(DataError, match=r"bomb\.png"):
            read(path)


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "gif", "bmp", "tiff"])
def test_a_truncated_picture_is_refused(tmp_path: Path, suffix: str) -> None:
    whole = tmp_path / f"whole.{suffix}"
    gradient((64, 64)).save(whole)
    cut = tmp_path / f"cut.{suffix}"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size * 2 // 3])
    with pytest.raises(DataError, match=rf"cut\.{suffix}"):
        open_image(cut)


@pytest.mark.parametrize(
    "content",
    [b"", b"not a picture", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"],
    ids=["empty", "text", "program"],
)
def test_a_file_that_is_no_picture_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "odd.png"
    path.write_bytes(content)
    for read in (open_image, image_size):
        with pytest.raises(DataError, match=r"odd\.png cannot be read"):
            read(path)


def test_a_missing_picture_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.png does not exist"):
        open_image(tmp_path / "gone.png")


def test_sixteen_bits_are_scaled_and_not_clipped(tmp_path: Path) -> None:
    path = tmp_path / "deep.png"
    Image.new("I;16", (4, 4), 40_000).save(path)
    assert open_image(path).getpixel((0, 0)) == (156, 156, 156)


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "CMYK", "YCbCr"])
def test_every_ordinary_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "mode.tiff"
    if mode == "P":
        gradient((8, 8)).quantize(8).save(path)
    else:
        Image.new(mode, (8, 8)).save(path)
    assert open_image(path).mode == "RGB"


@pytest.mark.parametrize("mode", ["I", "F"])
def test_a_mode_without_a_white_point_is_refused(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "measurement.tiff"
    Image.new(mode, (8, 8)).save(path)
    with pytest.raises(DataError, match="8-bit"):
        open_image(path)


def test_transparency_is_shown_on_white(tmp_path: Path) -> None:
    clear = tmp_path / "clear.png"
    Image.new("RGBA", (4, 4), (10, 20, 30, 0)).save(clear)
    assert open_image(clear).getpixel((0, 0)) == (255, 255, 255)
    palette = tmp_path / "palette.png"
    gradient((8, 8)).quantize(4).save(palette, transparency=bytes([0, 0, 0, 0]))
    assert open_image(palette).getcolors() == [(64, (255, 255, 255))]


def test_a_box_is_cut_from_the_upright_picture(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[274] = 6
    path = tmp_path / "turned.png"
    gradient((40, 24)).save(path, exif=exif)
    crop = Crop(area=0.1, box=(2.5, 30.2, 11.4, 39.9))
    cut = open_crop(Example(id="a", image=path, question="?", crop=crop))
    assert cut.tobytes() == open_image(path).crop((2, 30, 12, 40)).tobytes()


def test_a_crop_picture_is_opened_as_it_is(tmp_path: Path) -> None:
    full, part = tmp_path / "full.png", tmp_path / "part.png"
    gradient((40, 24)).save(full)
    gradient((10, 6)).save(part)
    example = Example(id="a", image=full, question="?", crop=Crop(area=0.1, image=part))
    assert open_crop(example).tobytes() == open_image(part).tobytes()


def test_opening_a_crop_checks_its_box_against_the_real_picture(tmp_path: Path) -> None:
    path = tmp_path / "small.png"
    gradient((40, 24)).save(path)
    crop = Crop(area=0.1, box=(0, 0, 41, 10))
    with pytest.raises(DataError, match="outside its picture of 40 x 24"):
        open_crop(Example(id="a", image=path, question="?", crop=crop))


def test_an_example_without_a_crop_has_none_to_open(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'a' has no crop"):
        open_crop(Example(id="a", image=tmp_path, question="?"))


@pytest.mark.parametrize(
    ("box", "reason"),
    [
        ((0, 0, float("nan"), 4), "not finite"),
        ((0, 0, float("inf"), 4), "not finite"),
        ((5, 0, 4, 4), "inverted"),
        ((0, 4, 4, 4), "empty"),
        ((-1, 0, 4, 4), "outside"),
        ((0, 0, 4, 11), "outside"),
    ],
)
def test_a_box_that_is_no_area_of_the_picture_is_refused(
    box: tuple[float, float, float, float], reason: str
) -> None:
    with pytest.raises(DataError, match=reason):
        check_box(box, (20, 10))
    check_box((0, 0, 20, 10), (20, 10))


def test_memory_that_runs_out_is_no_damaged_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "whole.png"
    gradient((40, 24)).save(path)

    def full(image: Image.Image) -> None:
        raise MemoryError

    monkeypatch.setattr(images, "_as_rgb", full)
    with pytest.raises(MemoryError):
        open_image(path)
