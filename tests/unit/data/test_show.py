from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import ImageChops
from shapes import make_pictures

from bas_opd.data.show import contact_sheet, find_example, side_by_side
from bas_opd.errors import DataError


def test_a_row_is_found_by_number_or_id(tmp_path: Path) -> None:
    made = make_pictures(tmp_path / "set", n=3, seed=0)
    assert find_example(made, "2") == (2, made.examples[1])
    assert find_example(made, "picture-0-00002") == (3, made.examples[2])
    for row in ("0", "4", "-1", "²", "picture"):
        with pytest.raises(DataError, match="a number from 1 to 3"):
            find_example(made, row)


def test_the_box_is_drawn_and_the_crop_stands_beside_it(tmp_path: Path) -> None:
    made = make_pictures(tmp_path / "set", n=6, seed=0)
    boxed, bare = made.examples[0], made.examples[5]
    sheet = side_by_side(boxed)
    assert boxed.crop is not None
    assert boxed.crop.box is not None
    full_width = round(256 * 640 / 192)
    corner = [int(edge * full_width / 256) + 1 for edge in boxed.crop.box[:2]]
    assert sheet.getpixel((corner[0], corner[1])) == (255, 0, 0)
    assert sheet.width > full_width + 16
    assert side_by_side(bare).size == (full_width, 640)


@pytest.mark.parametrize("other", [{"question": "Where is it?"}, {"answer": "mauve"}])
def test_a_sheet_has_the_question_and_the_answer_below_the_picture(
    tmp_path: Path, other: dict[str, str]
) -> None:
    (example,) = make_pictures(tmp_path / "set", n=1, seed=0).examples
    assert other.items().isdisjoint({("question", example.question), ("answer", example.answer)})
    sheets = [contact_sheet([each], columns=1) for each in (example, replace(example, **other))]
    changed = ImageChops.difference(*sheets).getbbox()
    assert changed is not None
    picture = side_by_side(example)
    shown = 344 * picture.height // picture.width  # the width of a cell
    assert changed[1] > 16 + shown
