from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bas_opd.data.check import check
from bas_opd.data.finesearch import (
    KINDS,
    SPLITS,
    Sample,
    Size,
    Split,
    make,
    make_finesearch,
    render,
    sample,
)
from bas_opd.data.finesearch.assets import COLOURS, SIDE, catalogue, own_backgrounds
from bas_opd.data.finesearch.scenes import SIZES, Placed, plate_colours
from bas_opd.errors import DataError
from bas_opd.evaluate.benchmarks.finesearch import ends_with


def drawn(split: Split, size: Size, n: int, kinds: tuple[str, ...] = KINDS) -> list[Sample]:
    return [
        one
        for index in range(n)
        for one in sample(split, size, 7, index, kinds[index % len(kinds)])
    ]


def test_the_pixels_of_a_seed_are_these_on_every_machine() -> None:
    digest = hashlib.sha256()
    for split in SPLITS:
        for one in drawn(split, "small", 8) + drawn(split, "large", 8):
            digest.update(render(one.scene).tobytes())
            digest.update(repr((one.box, one.question)).replace(", long=''", "").encode())
    assert digest.hexdigest() == "ef94f3a02ce90e76c4e99d142d6e9b871857d9a155cd6b7081bf7f280bc98b85"


def test_the_splits_share_categories_but_no_drawing_typeface_handwriting_or_background() -> None:
    used: dict[str, set[tuple[str, int]]] = {}
    names: dict[str, set[str]] = {}
    for split in SPLITS:
        samples = drawn(split, "small", 240)
        used[split] = {
            (placed.thing.shape, placed.thing.picture)
            for one in samples
            for placed in one.scene.placed
        } | {("background", one.scene.background.index) for one in samples}
        names[split] = {
            placed.thing.name
            for one in samples
            for placed in one.scene.placed
            if placed.thing.shape == "plate"
        }
    assert not used["train"] & used["test"]
    assert not used["train"] & used["val"]
    assert not used["val"] & used["test"]
    assert names["train"] == names["val"] == names["test"] == set(catalogue().categories)


def test_no_two_splits_hold_the_same_picture_under_two_names() -> None:
    from bas_opd.data.finesearch.assets import digit_cell, object_cell, photograph

    listed = catalogue()
    owners: dict[bytes, set[str]] = {}
    for picture in listed.pictures:
        owners.setdefault(object_cell(picture.index).tobytes(), set()).add(picture.split)
    for background in listed.backgrounds:
        owners.setdefault(photograph(background).tobytes(), set()).add(background.split)
    for index, (split, _) in enumerate(listed.digits):
        owners.setdefault(digit_cell(index).tobytes(), set()).add(split)
    assert all(len(splits) == 1 for splits in owners.values())


@pytest.mark.parametrize("size", ["small", "large"])
def test_every_answer_can_be_read_off_the_scene(size: Size) -> None:
    for one in drawn("train", size, 240):
        assert _solved(one) == one.question.answer, one.question.text


def _solved(one: Sample) -> str:
    """Answer a question from the placed things alone, by its words."""
    plates = [placed for placed in one.scene.placed if placed.thing.shape == "plate"]

    def only(name: str) -> Placed:
        (found,) = (placed for placed in plates if placed.thing.name == name)
        return found

    text = one.question.text
    if match := re.fullmatch(r"What colour is the plate under the (\w+)\?", text):
        return only(match[1]).thing.colour
    if match := re.fullmatch(r"Is the plate under the (\w+) (\w+) or (\w+)\?", text):
        assert match[2] != match[3]
        assert only(match[1]).thing.colour in (match[2], match[3])
        return only(match[1]).thing.colour
    if match := re.fullmatch(
        r"(?:What number is|Which digit is written) on the (\w+) (\w+)\?", text
    ):
        (found,) = (
            placed.thing.name
            for placed in one.scene.placed
            if (placed.thing.colour, placed.thing.shape) == (match[1], match[2])
        )
        return found
    if match := re.fullmatch(r"How many plates carry an? (\w+)\?", text):
        return str(sum(placed.thing.name == match[1] for placed in plates))
    if match := re.fullmatch(r"Is there an? (\w+)\?", text):
        return "yes" if any(placed.thing.name == match[1] for placed in plates) else "no"
    if match := re.fullmatch(r"What is next to the (\w+)\?", text):
        here = only(match[1])
        others = [placed for placed in one.scene.placed if placed is not here]
        return min(others, key=lambda placed: _distance(placed, here)).thing.name
    match = re.fullmatch(r"Where is the (\w+), seen from the (\w+)\?", text)
    assert match
    there, here = only(match[1]), only(match[2])
    across, down = there.x - here.x, there.y - here.y
    assert (across == 0) != (down == 0)
    if across:
        return "left" if across < 0 else "right"
    return "above" if down < 0 else "below"


def _distance(one: Placed, two: Placed) -> int:
    return abs(one.x - two.x) + abs(one.y - two.y)


@pytest.mark.parametrize("size", ["small", "large"])
def test_things_keep_their_size_their_distance_and_the_picture(size: Size) -> None:
    low, high = SIZES[size]
    for one in drawn("val", size, 120):
        boxes = [placed.box for placed in one.scene.placed]
        for number, (x0, y0, x1, y1) in enumerate(boxes):
            assert 0 <= x0 < x1 <= SIDE
            assert 0 <= y0 < y1 <= SIDE
            assert low <= x1 - x0 <= high
            for u0, v0, u1, v1 in boxes[:number]:
                assert x1 <= u0 or u1 <= x0 or y1 <= v0 or v1 <= y0


def test_a_crop_shows_what_is_asked_about_and_only_an_absence_has_none() -> None:
    for one in drawn("test", "small", 240):
        if one.box is None:
            assert (one.kind, one.question.answer) == ("existence", "no")
            continue
        x0, y0, x1, y1 = one.box
        assert x1 - x0 == y1 - y0
        assert 0 <= x0 < x1 <= SIDE
        assert 0 <= y0 < y1 <= SIDE
        assert (x1 - x0) ** 2 < SIDE**2 / 8
        count = {"count": 4, "position": 2, "neighbour": 2}.get(one.kind, 1)
        for placed in one.scene.placed[:count]:
            u0, v0, u1, v1 = placed.box
            assert x0 <= u0
            assert y0 <= v0
            assert u1 <= x1
            assert v1 <= y1


def test_plates_stand_out_from_their_objects_and_backgrounds_do_not_show_them() -> None:
    listed = catalogue()
    for one in drawn("train", "small", 160) + drawn("val", "small", 160):
        background = one.scene.background
        for placed in one.scene.placed:
            if placed.thing.shape == "plate":
                assert placed.thing.name not in background.shows
                picture = listed.pictures[placed.thing.picture]
                assert picture.category == placed.thing.name
                assert placed.thing.colour in plate_colours(picture)
    assert all(len(plate_colours(picture)) >= 4 for picture in listed.pictures)


def test_the_pictures_of_a_pair_differ_in_one_plate_alone() -> None:
    first, second = sample("test", "small", 3, 5, "pair")
    assert first.question.text == second.question.text
    assert first.question.answer != second.question.answer
    assert first.box == second.box
    differs = (np.asarray(render(first.scene)) != np.asarray(render(second.scene))).any(-1)
    x0, y0, x1, y1 = first.scene.placed[0].box
    assert differs[y0:y1, x0:x1].mean() > 0.2
    differs[y0:y1, x0:x1] = False
    assert not differs.any()


def test_every_style_of_response_is_graded_right_and_names_no_place_in_the_picture() -> None:
    for one in drawn("train", "small", 160):
        for response in one.question.responses:
            assert ends_with(response, one.question.answer)
            places = re.findall(r"\b(top|bottom|corner|middle|centre|side)\b", response)
            assert not places


def test_counts_and_choices_lean_to_no_answer() -> None:
    answers = [one.question.answer for one in drawn("train", "small", 400, ("count",))]
    assert all(70 < answers.count(str(many)) < 130 for many in (1, 2, 3, 4))
    first = [
        re.search(r" (\w+) or ", one.question.text)[1] == one.question.answer  # pyright: ignore[reportOptionalSubscript]
        for one in drawn("train", "small", 200, ("pair",))
    ]
    assert 150 < sum(first) < 250
    present = [one.question.answer for one in drawn("train", "small", 300, ("existence",))]
    assert 110 < present.count("yes") < 190


def test_a_set_is_sound_and_the_same_however_many_draw_it(tmp_path: Path) -> None:
    alone = make_finesearch(tmp_path / "one", split="val", size="small", n=20)
    many = make_finesearch(tmp_path / "two", split="val", size="small", n=20, workers=2)
    assert alone.fingerprint == many.fingerprint
    assert check(tmp_path / "one").is_sound
    assert [example.kind for example in alone.examples[:7]] == list(KINDS[:7])


def test_a_longer_set_begins_with_the_shorter_one_and_another_seed_is_another_set(
    tmp_path: Path,
) -> None:
    short = make_finesearch(tmp_path / "a", split="train", size="large", n=9)
    long = make_finesearch(tmp_path / "b", split="train", size="large", n=17)
    other = make_finesearch(tmp_path / "c", split="train", size="large", n=9, seed=1)
    names = [[example.image.name for example in made.examples] for made in (short, long, other)]
    assert names[1][:9] == names[0]
    assert not set(names[0]) & set(names[2])


@pytest.mark.parametrize(("n", "scenes"), [(4, 2), (5, 3)])
def test_no_more_pairs_are_drawn_than_there_are_rows_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int, scenes: int
) -> None:
    drawn: list[int] = []

    def spy(split: Split, size: Size, seed: int, index: int, kind: str, **options: Any) -> Any:
        drawn.append(index)
        return sample(split, size, seed, index, kind, **options)

    monkeypatch.setattr(make, "sample", spy)
    made = make_finesearch(tmp_path / "set", split="val", size="small", n=n, kinds=("pair",))
    assert len(made) == n
    assert drawn == list(range(scenes))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"n": 0}, "at least one example"),
        ({"split": "dev"}, "no split 'dev'"),
        ({"size": "huge"}, "no size 'huge'"),
        ({"kinds": ("colour",)}, "no kind 'colour'"),
        ({"kinds": ()}, "needs a kind"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_words(
    tmp_path: Path, wrong: dict[str, object], words: str
) -> None:
    settings: dict[str, object] = {"split": "train", "size": "small", "n": 1} | wrong
    with pytest.raises(DataError, match=words):
        make_finesearch(tmp_path / "out", **settings)  # pyright: ignore[reportArgumentType]
    assert not (tmp_path / "out").exists()


def test_all_eight_colours_are_far_apart() -> None:
    values = list(COLOURS.values())
    for number, one in enumerate(values):
        for other in values[:number]:
            assert sum(abs(a - b) for a, b in zip(one, other, strict=True)) >= 90


def test_own_backgrounds_fall_to_one_split_each_by_their_contents(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(20):
        noise = np.random.default_rng(number).integers(0, 256, (40, 60, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{number}.png")
    (folder / "notes.txt").write_text("not a picture")
    owned = [{one.name for one in own_backgrounds(folder, split)} for split in SPLITS]
    assert sum(map(len, owned)) == len(set.union(*owned)) == 20
    shuffled = folder / "again.png"
    (folder / "7.png").rename(shuffled)
    again = [{one.name for one in own_backgrounds(folder, split)} for split in SPLITS]
    assert ["again.png" in names for names in again] == ["7.png" in names for names in owned]

    made = make_finesearch(
        tmp_path / "set", split="train", size="small", n=3, backgrounds=folder, workers=1
    )
    plain = make_finesearch(tmp_path / "plain", split="train", size="small", n=3)
    assert [e.image.name for e in made.examples] != [e.image.name for e in plain.examples]


def test_a_folder_without_backgrounds_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="belongs to the val split"):
        make_finesearch(tmp_path / "set", split="val", size="small", n=1, backgrounds=tmp_path)
    with pytest.raises(DataError, match="no folder"):
        make_finesearch(
            tmp_path / "set", split="val", size="small", n=1, backgrounds=tmp_path / "none"
        )
