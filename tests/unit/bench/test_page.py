"""Tables that are rendered from the files of benchmarks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bas_opd.bench.page import FILES, MARKED, SIMULATED, main, rendered
from bas_opd.errors import DataError

DOCS = Path(__file__).parents[3] / "docs"
MACHINE = {
    "gpu": None, "cpu": "A CPU", "cores": 2, "load": 0.1,
    "packages": {"torch": "2.1", "transformers": "5.0"},
}  # fmt: skip
SIDES = [
    {
        "side": name, "median_seconds": seconds, "processed_tokens": 1000 * place, "peak_gib": None,
        "share_of_its_time": 1 / place, "share_of_its_tokens": 1 / place,
    }
    for place, (name, seconds) in enumerate([("ours", 0.12345), ("theirs", 0.5)], 1)
]  # fmt: skip
NUMBERS: dict[str, Any] = {
    "comparisons": [{"name": "sampling", "shape": "2 prompts", "sides": SIDES, "skipped": []}],
    "steps": [
        {"step": place, "seconds": {"rollout": rollout, "teacher": 1.0}, "peak_gib": rollout,
         "queries": 2, "teacher_tokens": 3000, "student_tokens": 4000}
        for place, rollout in enumerate([9.0, 1.239])
    ],
    "seconds": {"in the loop": 8.4631},
    "arms": {"8bit": {"distance": 0.12345, "moment_bytes": 12345}},
    "simulation": {
        "prompts": 96, "responses": 768, "exchanges": 12.0, "exchange_ms": 0.271,
        "steps": [{**dict.fromkeys(SIMULATED, 0.5), "gpus": 1024, "replicas": 1, "prompts": 7168}],
    },
}  # fmt: skip
SHOWN = {
    "comparisons": ["sampling: 2 prompts", "| theirs | 0.5 | 2,000 | 0.50 | 0.50 |"],
    "steps": [
        "| seconds | step 1 | step 2 |",
        "| rollout | 9.00 | 1.24 |",
        "| all phases | 10.00 | 2.24 |",
        "| rows and tokens of the teacher | 2, 3,000 | 2, 3,000 |",
        "| tokens of the student | 4,000 | 4,000 |",
        "| peak memory, GiB | 9.0 | 1.2 |",
    ],
    "seconds": ["| in the loop | 8.46 |"],
    "simulation": [
        "Lengths of 96 prompts and 768 responses; 12 exchanges of objects a step, 0.27 ms each "
        "between 2 processes.",
        f"| 1,024 | 7,168 |{' 0.5 |' * 4} 0.500 | 50 % | 50 % |{' 0.50 |' * 8} 0.5 | 50 % |",
    ],
    "arms": ["|  | distance | moment bytes |", "| 8bit | 0.123 | 12,345 |"],
}
PAGE = "Before.\n\n<!-- bench: some-numbers -->\nold\n<!-- end -->\n\n| kept | 1 |\n"


def write(folder: Path, kind: str, **more: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    numbers = {"command": "python it.py", "date": "2026-01-02", "machine": MACHINE}
    content = json.dumps({**numbers, kind: NUMBERS[kind], **more})
    (folder / "some-numbers.json").write_text(content)


def test_the_pages_with_marked_tables_are_what_their_files_render() -> None:
    named: set[str] = set()
    for name in ("performance.md", "scale.md"):
        page = (DOCS / name).read_text("utf-8")
        assert rendered(page, DOCS / FILES) == page, "Run `make performance`."
        named |= {found[2] for found in MARKED.finditer(page)}
    assert named == {file.stem for file in (DOCS / FILES).glob("*.json")}


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_of_every_kind_become_a_table_and_the_rest_stays(kind: str, tmp_path: Path) -> None:
    write(tmp_path, kind, device="cpu")
    page = rendered(PAGE, tmp_path)
    assert "old" not in page
    assert page.startswith("Before.\n\n<!-- bench: some-numbers -->\n\n```sh\npython it.py\n```\n")
    assert page.endswith("<!-- end -->\n\n| kept | 1 |\n")
    assert "A CPU; torch 2.1; transformers 5.0; 2026-01-02." in page
    for line in SHOWN[kind]:
        assert line in page.splitlines()
    assert rendered(page, tmp_path) == page


def test_a_floor_is_no_rival(tmp_path: Path) -> None:
    floor = {**SIDES[1], "side": "products", "share_of_its_time": 3.14, "is_floor": True}
    loss = {"name": "loss", "shape": "", "sides": [*SIDES, floor], "skipped": []}
    write(tmp_path, "comparisons", comparisons=[loss])
    page = rendered(PAGE, tmp_path).splitlines()
    assert "| theirs | 0.5 | 2,000 | 0.50 | 0.50 |" in page
    assert "| products | 0.5 | 2,000 | 3.1 times this floor |  |" in page


def test_what_was_not_timed_is_said(tmp_path: Path) -> None:
    write(tmp_path, "comparisons", failed=["teacher was not timed: it is too large."])
    assert "teacher was not timed: it is too large." in rendered(PAGE, tmp_path).splitlines()


def test_a_gpu_is_named_where_it_computed_and_a_busy_machine_where_it_did_not(
    tmp_path: Path,
) -> None:
    busy = {**MACHINE, "gpu": "A GPU", "load": 7.0}
    for device, words in (
        ("cuda:0", "A GPU; torch 2.1; transformers 5.0; 2026-01-02."),
        ("cpu", "A CPU; torch 2.1; transformers 5.0; a load of 7.0 by"),
    ):
        write(tmp_path, "seconds", machine=busy, device=device)
        assert words in rendered(PAGE, tmp_path)


def test_files_that_cannot_be_rendered_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"some-numbers\.json"):
        rendered(PAGE, tmp_path)
    for content in ("{", "{}", "[]"):
        (tmp_path / "some-numbers.json").write_text(content)
        with pytest.raises(DataError, match=r"some-numbers\.json (holds no JSON|has no numbers)"):
            rendered(PAGE, tmp_path)


@pytest.mark.parametrize("kind", NUMBERS)
def test_files_that_lack_something_are_named(kind: str, tmp_path: Path) -> None:
    write(tmp_path, kind)
    file = tmp_path / "some-numbers.json"
    whole = json.loads(file.read_text())
    for broken, reason in (
        ({key: whole[key] for key in whole if key != "machine"}, "no 'machine'"),
        ({key: whole[key] for key in whole if key != "date"}, "no 'date'"),
        ({**whole, "machine": "A CPU"}, ""),
        ({**whole, kind: 3}, ""),
    ):
        file.write_text(json.dumps(broken))
        with pytest.raises(DataError, match=rf"some-numbers\.json cannot be shown \({reason}"):
            rendered(PAGE, tmp_path)


@pytest.mark.parametrize(
    "mark",
    [
        "<!-- bench: eight_bit -->",
        "<!--bench: some-numbers-->",
        "<!-- bench some-numbers -->",
        "<!-- Bench: some-numbers -->",
        "<!-- bench: some-numbers --> It is here.",
        "<!-- bench: some-numbers",
    ],
)
def test_a_mark_that_cannot_be_read_is_named(mark: str, tmp_path: Path) -> None:
    write(tmp_path, "seconds")
    with pytest.raises(DataError) as refused:
        rendered(f"{PAGE}\n{mark}\nold\n<!-- end -->\n", tmp_path)
    assert f"The mark {mark} in line 9 cannot be read." in str(refused.value)


def test_a_mark_without_its_end_swallows_nothing(tmp_path: Path) -> None:
    write(tmp_path, "seconds")
    for page in (f"<!-- bench: some-numbers -->\nkept\n\n{PAGE}", PAGE.replace("<!-- end -->", "")):
        with pytest.raises(
            DataError, match=r"some-numbers --> in line [13] cannot be read\. .* end"
        ):
            rendered(page, tmp_path)


def test_whatever_goes_wrong_is_a_sentence_and_no_success(tmp_path: Path) -> None:
    missing, marked, latin = (tmp_path / f"{name}.md" for name in ("missing", "marked", "latin"))
    marked.write_text("<!--bench: some-numbers-->\n")
    latin.write_bytes(b"\xff")
    for arguments, sentence in (
        ([], "No page is named."),
        ([missing], f"{missing}: No such file or directory."),
        ([marked], f"The page {marked} cannot be rendered: The mark"),
        ([latin], f"The page {latin} is not UTF-8"),
    ):
        command = [sys.executable, "-m", "bas_opd.bench.page", *map(str, arguments)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ended.returncode == 1
        assert ended.stderr.startswith(sentence)


def test_a_page_is_rendered_in_place(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    write(tmp_path / FILES, "seconds")
    main([str(page)])
    assert page.read_text() == rendered(PAGE, tmp_path / FILES) != PAGE
