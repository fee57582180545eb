from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from PIL import Image
from shapes import COLOURS, draw_sample, make_pictures

from bas_opd.data.images import open_crop
from bas_opd.errors import DataError

SIZE = (256, 192)


def colours_in(image: Image.Image) -> Counter[str]:
    names: dict[object, str] = {value: name for name, value in COLOURS.items()}
    pixels = image.convert("RGB").getcolors(image.width * image.height) or []
    return Counter({names[value]: n for n, value in pixels if value in names})


def test_a_sample_is_a_pure_function_of_seed_and_index() -> None:
    first, again, other = (draw_sample(seed, 5, SIZE) for seed in (1, 1, 2))
    assert first.image.tobytes() == again.image.tobytes()
    assert (first.box, first.question, first.answer) == (again.box, again.question, again.answer)
    assert first.image.tobytes() != other.image.tobytes()


def test_the_crop_shows_the_answer_and_nothing_else() -> None:
    for index in range(0, 60, 3):
        sample = draw_sample(7, index, SIZE)
        if sample.kind == "colour":
            assert sample.box is not None
            x0, y0, x1, y1 = map(int, sample.box)
            assert list(colours_in(sample.image.crop((x0, y0, x1, y1)))) == [sample.answer]


@pytest.mark.parametrize("size", [(256, 192), (96, 96), (100, 400), (640, 480)])
def test_the_set_has_rows_with_and_without_crops_in_any_shape(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    made = make_pictures(tmp_path / "set", n=12, seed=0, size=size)
    assert sum(example.has_crop for example in made.examples) == 9
    for example in made.examples:
        if example.crop is not None:
            crop = open_crop(example)
            assert crop.width * crop.height == pytest.approx(example.crop.area * size[0] * size[1])


def test_pictures_too_small_for_their_shapes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="at least 96"):
        make_pictures(tmp_path / "set", n=1, seed=0, size=(256, 64))
    with pytest.raises(DataError, match="at least one picture"):
        make_pictures(tmp_path / "set", n=0, seed=0)
    assert list(tmp_path.iterdir()) == []
