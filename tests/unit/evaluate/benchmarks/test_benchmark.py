"""What holds for every benchmark: counts, fingerprints, and where one comes from."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmark_files import base64_of, png, stored, write_file, write_lines, write_parquet

from bas_opd.errors import ConfigError, DataError
from bas_opd.evaluate.benchmarks import NAMES, SEVEN, LoadedSet, Scored, benchmark

VSTAR = benchmark("vstar")
MMSTAR = benchmark("mmstar")


def star(number: int, **more: Any) -> dict[str, Any]:
    question = f"Which, {number}?\nOptions: A: one, B: two"
    row = {"index": number, "question": question, "answer": "A", "category": "math"}
    return row | {"image": stored(png(size=(number + 1, 2)))} | more


def stars(folder: Path, rows: list[dict[str, Any]], shard: str = "a") -> Path:
    write_parquet(folder / f"data/{shard}.parquet", rows)
    return folder


def v_row(number: int, **more: Any) -> dict[str, Any]:
    text = "Which?\n(A) one\n(B) two"
    row = {"image": f"p/{number}.png", "text": text, "category": "direct_attributes", "label": "A"}
    return row | {"question_id": number} | more


def v_set(folder: Path, rows: list[dict[str, Any]]) -> Path:
    for row in rows:
        write_file(folder / row["image"], png(size=(3, 3)))
    write_lines(folder / "test_questions.jsonl", rows)
    return folder


def scored(loaded: LoadedSet) -> list[Scored]:
    return [Scored(id=each.id, outcome="wrong", groups=each.groups) for each in loaded.questions]


def print_of(folder: Path, name: str = "vstar") -> str:
    return benchmark(name).load(folder, partial=True).fingerprint


def test_names_are_the_papers_seven_and_finesearch() -> None:
    assert (*SEVEN, "finesearch") == NAMES
    assert [benchmark(name).name for name in NAMES] == list(NAMES)
    with pytest.raises(ConfigError, match=r"no benchmark 'vsta'. Choose among vstar, zoombench"):
        benchmark("vsta")


def test_the_whole_of_a_benchmark_is_accepted(tmp_path: Path) -> None:
    rows = [star(n, image=png(), category=f"category {n % 6}") for n in range(1500)]
    loaded = MMSTAR.load(stars(tmp_path, rows))
    assert (len(loaded), loaded.is_partial, loaded.benchmark) == (1500, False, "mmstar")
    assert not MMSTAR.summarise(scored(loaded)).is_partial


def test_a_category_in_place_of_another_is_refused_and_shown_where_it_is_accepted(
    tmp_path: Path,
) -> None:
    rows = [star(n, image=png(), category=f"category {n % 5}") for n in range(1500)]
    stars(tmp_path, rows)
    with pytest.raises(
        DataError, match=r"has 0 whole groups of 250 by category, where 6 .*--partial"
    ):
        MMSTAR.load(tmp_path)
    loaded = MMSTAR.load(tmp_path, partial=True)
    assert loaded.is_partial
    assert MMSTAR.summarise(scored(loaded)).is_partial


def test_another_number_of_rows_is_refused_with_both_numbers(tmp_path: Path) -> None:
    stars(tmp_path, [star(0), star(1)])
    with pytest.raises(
        DataError, match=r"has 2 questions, where 1,500 were expected; it .*Fetch it"
    ):
        MMSTAR.load(tmp_path)
    assert MMSTAR.load(tmp_path, partial=True).is_partial


def test_the_right_number_in_the_wrong_parts_is_refused(tmp_path: Path) -> None:
    rows = [v_row(n, image="p/0.png") for n in range(191)]
    v_set(tmp_path, rows)
    with pytest.raises(DataError, match="has 191 of direct_attributes category, where 115 were"):
        VSTAR.load(tmp_path)


def test_a_whole_set_of_the_right_parts_is_not_partial_even_where_that_is_allowed(
    tmp_path: Path,
) -> None:
    rows = [
        v_row(n, image="p/0.png", category="direct_attributes" if n < 115 else "relative_position")
        for n in range(191)
    ]
    assert not VSTAR.load(v_set(tmp_path, rows), partial=True).is_partial


@pytest.mark.parametrize("name", SEVEN)
def test_the_error_about_a_missing_set_says_how_to_obtain_it(name: str, tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none"):
        with pytest.raises(DataError, match=r"is not (in|there).*Download .* dataset \S+/\S+"):
            benchmark(name).load(place)


def test_an_id_used_twice_is_refused(tmp_path: Path) -> None:
    stars(tmp_path, [star(0), star(0)])
    with pytest.raises(DataError, match=r"row 2: The id '0' is used twice"):
        MMSTAR.load(tmp_path, partial=True)


@pytest.mark.parametrize(
    "change",
    [
        {"text": "Which one?\n(A) one\n(B) two"},
        {"text": "Which?\n(A) one\n(B) two more"},
        {"label": "B"},
        {"category": "relative_position"},
        {"question_id": 7},
    ],
)
def test_a_fingerprint_changes_with_the_content(change: dict[str, Any], tmp_path: Path) -> None:
    before = print_of(v_set(tmp_path / "before", [v_row(0), v_row(1)]))
    after = print_of(v_set(tmp_path / "after", [v_row(0) | change, v_row(1)]))
    assert before == print_of(v_set(tmp_path / "again", [v_row(0), v_row(1)]))
    assert before != after


@pytest.mark.parametrize("change", [(0, b"\1"), (299_999, b"\1"), (300_000, b"\0")])
def test_a_fingerprint_changes_with_a_picture(change: tuple[int, bytes], tmp_path: Path) -> None:
    v_set(tmp_path, [v_row(0)])
    at, data = change[0], bytearray(300_000)
    (tmp_path / "p/0.png").write_bytes(data)
    before = print_of(tmp_path)
    data[at : at + 1] = change[1]
    (tmp_path / "p/0.png").write_bytes(data)
    assert print_of(tmp_path) != before


def test_a_fingerprint_tells_pictures_that_were_exchanged(tmp_path: Path) -> None:
    v_set(tmp_path, [v_row(0), v_row(1)])
    write_file(tmp_path / "p/1.png", png(size=(9, 9)))
    before = print_of(tmp_path)
    v_set(tmp_path, [v_row(0, image="p/1.png"), v_row(1, image="p/0.png")])
    write_file(tmp_path / "p/1.png", png(size=(9, 9)))
    assert print_of(tmp_path) != before


def test_a_fingerprint_does_not_change_with_the_order_of_rows_or_files(tmp_path: Path) -> None:
    forward = print_of(v_set(tmp_path / "f", [v_row(0), v_row(1)]))
    assert print_of(v_set(tmp_path / "b", [v_row(1), v_row(0)])) == forward
    one, two = [star(0), star(1)], [star(2)]
    shards = print_of(stars(stars(tmp_path / "s", one, "a"), two, "b"), "mmstar")
    assert print_of(stars(stars(tmp_path / "t", two, "a"), one, "b"), "mmstar") == shards


def test_a_fingerprint_changes_with_a_picture_inside_a_table(tmp_path: Path) -> None:
    before = print_of(stars(tmp_path / "a", [star(0)]), "mmstar")
    after = print_of(stars(tmp_path / "b", [star(0, image=stored(png("blue")))]), "mmstar")
    assert before != after


def test_a_hub_id_is_fetched_as_files_and_only_the_needed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stars(tmp_path / "cached", [star(0)])
    shutil.move(tmp_path / "cached/data/a.parquet", tmp_path / "cached/mmstar.parquet")
    asked: list[Any] = []

    def snapshot_download(name: str, **options: Any) -> str:
        asked.append((name, options))
        return str(tmp_path / "cached")

    hub = SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    loaded = MMSTAR.load("Lin-Chen/MMStar", partial=True)
    assert len(loaded) == 1
    options = {"repo_type": "dataset", "allow_patterns": ["mmstar.parquet"]}
    assert asked == [("Lin-Chen/MMStar", options)]


def test_the_error_about_an_unreachable_hub_names_another_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def snapshot_download(name: str, **options: Any) -> str:
        raise ConnectionError("no route")

    hub = SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    with pytest.raises(DataError, match=r"no folder Lin-Chen/MMStar.*no route.*Download mmstar"):
        MMSTAR.load("Lin-Chen/MMStar")


def test_a_path_is_never_taken_for_a_hub_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for source in (Path("owner/name"), "/owner/name", "owner", "a/b/c", "../name"):
        with pytest.raises(DataError, match="is not a folder"):
            MMSTAR.load(source)


def test_base64_of_the_same_picture_is_the_same_question(tmp_path: Path) -> None:
    stars(tmp_path, [star(0, image=base64_of(png()))])
    (question,) = MMSTAR.load(tmp_path, partial=True).questions
    assert question.picture() == png()
