"""Sizes of views, which are known without opening a picture, and what a told teacher reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from bas_opd.data.views import answer_view, crop_size, crop_sizes, view_sizes
from bas_opd.errors import DataError
from bas_opd.types import Crop, Example


@pytest.fixture
def crop(tmp_path: Path) -> Path:
    path = tmp_path / "crop.png"
    Image.new("RGB", (30, 20)).save(path)
    return path


def test_the_size_of_a_crop_needs_no_full_picture(crop: Path, tmp_path: Path) -> None:
    for each, size in (
        (Crop(area=0.1, image=crop), (30, 20)),
        (Crop(area=0.1, box=(1.5, 2, 9, 7.5)), (8, 6)),
    ):
        example = Example(id="a", image=tmp_path / "away.png", question="Which?", crop=each)
        assert crop_size(example) == (size, "Which?")
        assert list(crop_sizes(example)) == [size]
        with pytest.raises(DataError, match=r"away\.png does not exist"):
            list(view_sizes(example))


def test_the_full_picture_comes_first_and_a_crop_that_is_none_has_no_size(crop: Path) -> None:
    full = crop.with_name("full.png")
    Image.new("RGB", (64, 48)).save(full)
    example = Example(id="a", image=full, question="?", crop=Crop(area=0.1, image=crop))
    assert list(view_sizes(example)) == [(64, 48), (30, 20)]
    without = Example(id="a", image=full, question="?")
    assert list(view_sizes(without)) == [(64, 48)]
    with pytest.raises(DataError, match="'a' has no crop"):
        crop_size(without)


def test_a_told_teacher_reads_the_question_then_the_answer_then_the_request(crop: Path) -> None:
    asked = "Which of {a} and {b}?"
    example = Example(id="a", image=crop, question=asked, answer=" {b} \n")
    picture, text = answer_view(example)
    assert picture.size == (30, 20)
    question, hint = text.split("\n\n")
    assert question == asked
    answer, request = hint.split("\n")
    assert answer.endswith(": {b}")
    assert request.endswith("in your own words.")
