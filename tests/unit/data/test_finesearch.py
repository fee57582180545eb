from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bas_opd.answers import ends_with, short
from bas_opd.data.check import check
from bas_opd.data.finesearch import (
    KINDS,
    SPLITS,
    VERSIONS,
    Sample,
    Size,
    Split,
    make,
    make_finesearch,
    render,
    sample,
)
from bas_opd.data.finesearch.assets import COLOURS, SIDE, catalogue, own_backgrounds
from bas_opd.data.finesearch.scenes import Placed, plate_colours
from bas_opd.errors import DataError
from bas_opd.model.base import small_base
from bas_opd.model.processing import Processor

each_version = pytest.mark.parametrize("version", VERSIONS)
KINDS2 = VERSIONS["finesearch2"].kinds
PLURAL = ("cherries", "grapes")


def drawn(
    split: Split,
    size: Size,
    n: int,
    kinds: tuple[str, ...] | None = None,
    version: str = "finesearch",
) -> list[Sample]:
    kinds = kinds or VERSIONS[version].kinds
    return [
        one
        for index in range(n)
        for one in sample(split, size, 7, index, kinds[index % len(kinds)], version=version)
    ]


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("finesearch", "ef94f3a02ce90e76c4e99d142d6e9b871857d9a155cd6b7081bf7f280bc98b85"),
        ("finesearch2", "99342ced47e4970a38b43ef79cf0f313534def8d01ae38d6cad31f80e65ebf12"),
    ],
)
def test_the_pixels_and_texts_of_a_seed_are_these_on_every_machine(
    version: str, expected: str
) -> None:
    digest = hashlib.sha256()
    for split in SPLITS:
        small, large = (drawn(split, size, 8, version=version) for size in ("small", "large"))
        for one in small + large:
            digest.update(render(one.scene).tobytes())
            digest.update(repr((one.box, one.question)).replace(", long=''", "").encode())
    assert digest.hexdigest() == expected


@each_version
def test_the_splits_share_categories_but_no_drawing_typeface_handwriting_or_background(
    version: str,
) -> None:
    used: dict[str, set[tuple[str, int]]] = {}
    names: dict[str, set[str]] = {}
    for split in SPLITS:
        samples = drawn(split, "small", 240, version=version)
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


@each_version
@pytest.mark.parametrize("size", ["small", "large"])
def test_every_answer_can_be_read_off_the_scene(version: str, size: Size) -> None:
    for one in drawn("train", size, 240, version=version):
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
    if match := re.fullmatch(r"How many plates carry (?:an? )?(\w+)\?", text):
        return str(sum(placed.thing.name == match[1] for placed in plates))
    if match := re.fullmatch(r"Is there an? (\w+)\?", text):
        return "yes" if any(placed.thing.name == match[1] for placed in plates) else "no"
    if match := re.fullmatch(r"(?:Is|Are) there (?:an? )?(\w+) next to the (\w+)\?", text):
        return "yes" if _next_to(only(match[2]), one) == match[1] else "no"
    if match := re.fullmatch(r"What is next to the (\w+)\?", text):
        return _next_to(only(match[1]), one)
    match = re.fullmatch(r"Where is the (\w+), seen from the (\w+)\?", text)
    assert match
    there, here = only(match[1]), only(match[2])
    across, down = there.x - here.x, there.y - here.y
    assert (across == 0) != (down == 0)
    if across:
        return "left" if across < 0 else "right"
    return "above" if down < 0 else "below"


def _next_to(here: Placed, one: Sample) -> str:
    others = [placed for placed in one.scene.placed if placed is not here]
    return min(others, key=lambda placed: _distance(placed, here)).thing.name


def _distance(one: Placed, two: Placed) -> int:
    return abs(one.x - two.x) + abs(one.y - two.y)


@each_version
@pytest.mark.parametrize("size", ["small", "large"])
def test_things_keep_their_size_their_distance_and_the_picture(version: str, size: Size) -> None:
    low, high = VERSIONS[version].sizes[size]
    for one in drawn("val", size, 120, version=version):
        boxes = [placed.box for placed in one.scene.placed]
        for number, (x0, y0, x1, y1) in enumerate(boxes):
            assert 0 <= x0 < x1 <= SIDE
            assert 0 <= y0 < y1 <= SIDE
            assert low <= x1 - x0 <= high
            for u0, v0, u1, v1 in boxes[:number]:
                assert x1 <= u0 or u1 <= x0 or y1 <= v0 or v1 <= y0


@each_version
def test_a_crop_shows_what_is_asked_about(version: str) -> None:
    for one in drawn("test", "small", 240, version=version):
        if one.box is None:
            assert (version, one.kind, one.question.answer) == ("finesearch", "existence", "no")
            continue
        x0, y0, x1, y1 = one.box
        assert x1 - x0 == y1 - y0
        assert 0 <= x0 < x1 <= SIDE
        assert 0 <= y0 < y1 <= SIDE
        assert (x1 - x0) ** 2 < SIDE**2 / 8
        asked = _asked_about(one)
        assert all(_is_in_crop(placed, one) for placed in asked)
        if version == "finesearch2":
            count = {"count": 4, "neighbour": 2, "existence": 2}.get(one.kind, 1)
            assert len(asked) == count


def _asked_about(one: Sample) -> list[Placed]:
    """Return the things that a question is about, by its words."""
    if one.kind == "count":
        return list(one.scene.placed[:4])
    words = re.findall(r"\w+", one.question.text)
    if one.kind in ("number", "digit"):
        return [
            placed
            for placed in one.scene.placed
            if [placed.thing.colour, placed.thing.shape] == words[-2:]
        ]
    plates = [placed for placed in one.scene.placed if placed.thing.shape == "plate"]
    if "next" in words:
        (known,) = (placed for placed in plates if placed.thing.name == words[-1])
        beside = _next_to(known, one)
        return [known, *(placed for placed in plates if placed.thing.name == beside)]
    return [placed for placed in plates if placed.thing.name in words]


def _is_in_crop(placed: Placed, one: Sample) -> bool:
    assert one.box is not None
    x0, y0, x1, y1 = one.box
    u0, v0, u1, v1 = placed.box
    return x0 <= u0 and y0 <= v0 and u1 <= x1 and v1 <= y1


@each_version
def test_plates_stand_out_from_their_objects_and_backgrounds_do_not_show_them(
    version: str,
) -> None:
    listed = catalogue()
    samples = [one for split in SPLITS for one in drawn(split, "small", 160, version=version)]
    for one in samples:
        background = one.scene.background
        shown = background.shows | VERSIONS[version].shows.get(background.name, frozenset())
        assert not shown & set(re.findall(r"\w+", one.question.text))
        for placed in one.scene.placed:
            if placed.thing.shape == "plate":
                assert placed.thing.name not in shown
                picture = listed.pictures[placed.thing.picture]
                assert picture.category == placed.thing.name
                assert placed.thing.colour in plate_colours(picture)
    assert all(len(plate_colours(picture)) >= 4 for picture in listed.pictures)


def test_every_background_that_a_version_names_exists_and_so_does_what_it_shows() -> None:
    names = {background.name for background in catalogue().backgrounds}
    for version in VERSIONS.values():
        assert set(version.shows) <= names
        assert all(shown <= set(catalogue().categories) for shown in version.shows.values())


@each_version
def test_the_pictures_of_a_pair_differ_in_one_plate_alone(version: str) -> None:
    first, second = sample("test", "small", 3, 5, "pair", version=version)
    assert first.question.text == second.question.text
    assert first.question.answer != second.question.answer
    assert first.box == second.box
    differs = (np.asarray(render(first.scene)) != np.asarray(render(second.scene))).any(-1)
    x0, y0, x1, y1 = first.scene.placed[0].box
    assert differs[y0:y1, x0:x1].mean() > 0.2
    differs[y0:y1, x0:x1] = False
    assert not differs.any()


@each_version
def test_every_style_of_response_is_graded_right_and_names_no_place_in_the_picture(
    version: str,
) -> None:
    for one in drawn("train", "small", 161, version=version):
        for response in one.question.responses:
            assert ends_with(response, one.question.answer)
            read = short(response, one.question.answer)
            assert (read.status, read.value) == ("answered", True), response
            in_picture = re.sub(r"the middle of the (plate|sign|note)\b", "", response)
            places = r"\b(top|bottom|corner|middle|centre|side|left|right|above|below|background)\b"
            assert one.kind == "position" or not re.findall(places, in_picture)


@each_version
def test_counts_and_choices_lean_to_no_answer(version: str) -> None:
    counts = drawn("train", "small", 400, ("count",), version)
    answers = [one.question.answer for one in counts]
    assert all(70 < answers.count(str(many)) < 130 for many in (1, 2, 3, 4))
    first = [
        re.search(r" (\w+) or ", one.question.text)[1] == one.question.answer  # pyright: ignore[reportOptionalSubscript]
        for one in drawn("train", "small", 200, ("pair",), version)
    ]
    assert 150 < sum(first) < 250
    asked = drawn("train", "small", 300, ("existence",), version)
    assert 110 < [one.question.answer for one in asked].count("yes") < 190


@pytest.mark.parametrize("split", SPLITS)
def test_a_no_has_a_crop_and_half_of_what_is_not_there_stands_elsewhere(split: Split) -> None:
    denied = [
        one
        for one in drawn(split, "small", 600, ("existence",), "finesearch2")
        if one.question.answer == "no"
    ]
    assert 250 < len(denied) < 350
    elsewhere = 0
    for one in denied:
        assert one.box is not None
        named = re.findall(r"\w+", one.question.text.split(" next to ")[0])[-1]
        known, found, *rest = one.scene.placed
        assert named not in (known.thing.name, found.thing.name)
        elsewhere += named in [placed.thing.name for placed in rest]
    assert 0.4 < elsewhere / len(denied) < 0.6


def _texts(split: Split, n: int) -> Iterator[str]:
    for one in drawn(split, "small", n, version="finesearch2"):
        yield from (one.question.text, *one.question.responses)


def test_articles_and_verbs_agree_with_their_nouns() -> None:
    found: set[str] = set()
    for text in _texts("train", 1400):
        assert not re.search(r"\ba [aeiou]|\ban [^aeiou]|\ban? (cherries|grapes)\b", text), text
        assert not re.search(r"\b(is|Is) there (cherries|grapes)|\b[Aa]re there an? ", text), text
        assert not re.search(r"\bthere is (cherries|grapes)|\bthere are an? ", text), text
        assert not re.search(r"\bIt is (cherries|grapes)|\bThey are an? ", text), text
        assert not re.search(r"\bone of [\w ]*plates carry\b", text), text
        assert not re.search(r"\b(two|three|four) of [\w ]*plates carries\b", text), text
        found |= {name for name in PLURAL if f" {name}" in text}
        names = [name for name in catalogue().categories if name not in PLURAL]
        bare = rf"\b(?:see|carry|carries|on|and|not|there) ({'|'.join(names)})\b"
        assert not re.search(bare, text), text
        assert text[0].isupper() or text[0].isdigit()
        assert "  " not in text
    assert found == set(PLURAL)


def test_responses_have_four_styles_from_a_bare_answer_to_sixty_tokens() -> None:
    tokenizer = Processor.load(small_base("finesearch2")).tokenizer
    longest = dict.fromkeys(KINDS2, 0)
    for one in drawn("train", "small", 420, version="finesearch2"):
        bare, *_, last = responses = one.question.responses
        assert len(set(responses)) == 4
        assert bare.lower() == one.question.answer
        lengths = [len(re.findall(r"\w+|[^\w\s]", response)) for response in responses]
        assert lengths == sorted(lengths)
        assert lengths[0] == 1
        assert last.endswith(f"The answer is {one.question.answer}.")
        assert len(tokenizer.encode(last)) + 1 <= 80  # with its end token
        longest[one.kind] = max(longest[one.kind], lengths[-1])
    assert min(longest.values()) >= 57


@pytest.mark.parametrize("split", SPLITS)
def test_a_response_names_only_what_its_crop_shows(split: Split) -> None:
    categories, figures = set(catalogue().categories), re.compile(r"\d+")
    for one in drawn(split, "small", 420, version="finesearch2"):
        seen = [placed.thing for placed in one.scene.placed if _is_in_crop(placed, one)]
        named = {thing.name for thing in seen}
        written = {thing.name for thing in seen if thing.shape != "plate"}
        written |= {figure for text in written for figure in text}
        if one.kind == "count":
            written = {one.question.answer}
        for response in one.question.responses:
            # A thing that is denied is the one that the question names.
            denied = re.findall(r"and not (?:an? )?(\w+)", response)
            assert all(f" {name} " in one.question.text for name in denied)
            words = set(re.findall(r"[a-z]+", response.lower())) - set(denied)
            assert words & categories <= named, response
            ink = {"black"} if "in black" in response else set()
            assert words & set(COLOURS) <= {thing.colour for thing in seen} | ink, response
            assert set(figures.findall(response)) <= written, response


def test_a_description_counts_the_things_in_its_crop() -> None:
    numbers = {"one": 1, "two": 2, "four": 4}
    for one in drawn("test", "small", 420, version="finesearch2"):
        stated = re.search(
            r"I see (one|two|four) (?:round )?(plate|sign|note)", one.question.responses[-1]
        )
        assert stated
        seen = [placed.thing.shape for placed in one.scene.placed if _is_in_crop(placed, one)]
        assert seen == [stated[2]] * numbers[stated[1]]


@each_version
def test_a_set_is_sound_and_the_same_however_many_draw_it(tmp_path: Path, version: str) -> None:
    alone = make_finesearch(tmp_path / "one", split="val", size="small", n=20, version=version)
    many = make_finesearch(
        tmp_path / "two", split="val", size="small", n=20, workers=2, version=version
    )
    assert alone.fingerprint == many.fingerprint
    assert check(tmp_path / "one").is_sound
    kinds = VERSIONS[version].kinds[:7]
    assert [example.kind for example in alone.examples[:7]] == list(kinds)


def test_the_versions_are_different_sets_and_the_first_is_the_default(tmp_path: Path) -> None:
    unset = make_finesearch(tmp_path / "unset", split="val", size="small", n=8)
    made = [
        make_finesearch(tmp_path / version, split="val", size="small", n=8, version=version)
        for version in VERSIONS
    ]
    assert unset.fingerprint == made[0].fingerprint != made[1].fingerprint
    assert [example.kind for example in made[0].examples] == list(KINDS)
    assert "position" not in KINDS2
    assert all(example.has_crop for example in made[1].examples)


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
        ({"version": "finesearch3"}, "no version 'finesearch3'"),
        ({"version": "finesearch2", "kinds": ("position",)}, "no kind 'position'"),
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
