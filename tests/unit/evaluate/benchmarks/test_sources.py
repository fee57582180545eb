"""Where benchmarks lie, as a user says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bas_opd.errors import ConfigError
from bas_opd.evaluate.benchmarks.sources import sources


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("sets/vstar", "more/vstar", "more/pope", "a=b/mmvp"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def test_the_first_folder_that_has_a_benchmark_is_taken(home: Path) -> None:
    given = [str(home / "sets"), str(home / "more")]
    assert sources(given, ["vstar", "pope"]) == {
        "vstar": str(home / "sets/vstar"),
        "pope": str(home / "more/pope"),
    }


def test_what_is_named_comes_before_what_is_found(home: Path) -> None:
    given = [str(home / "sets"), f"vstar={home / 'elsewhere'}"]
    assert sources(given, ["vstar"]) == {"vstar": str(home / "elsewhere")}


def test_a_tilde_is_the_home_folder_in_either_form(home: Path) -> None:
    assert sources(["~/sets"], ["vstar"]) == {"vstar": str(home / "sets/vstar")}
    assert sources(["vstar=~/sets/vstar"], ["vstar"]) == {"vstar": str(home / "sets/vstar")}


def test_a_folder_may_have_an_equals_sign_in_its_name(home: Path) -> None:
    assert sources([str(home / "a=b")], ["mmvp"]) == {"mmvp": str(home / "a=b/mmvp")}


def test_a_hub_id_stays_what_it_is(home: Path) -> None:
    assert sources(["mmstar=Lin-Chen/MMStar"], ["mmstar"]) == {"mmstar": "Lin-Chen/MMStar"}


def test_a_name_that_is_no_benchmark_is_refused(home: Path) -> None:
    with pytest.raises(ConfigError, match=r"no benchmark 'v_star'. Choose among vstar"):
        sources([str(home / "sets"), f"v_star={home / 'more'}"], ["vstar"])
    with pytest.raises(ConfigError, match=r"no benchmark 'vqa'"):
        sources([str(home / "sets")], ["vqa"])


def test_a_missing_benchmark_is_an_error_that_names_the_folders(home: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"POPE was not given.*no folder \S+sets/pope or \S+a=b/pope.*pope=FOLDER.*Download",
    ):
        sources([str(home / "sets"), str(home / "a=b")], ["pope"])


def test_what_is_neither_a_folder_nor_named_is_refused(home: Path) -> None:
    with pytest.raises(ConfigError, match=r"--data Lin-Chen/MMStar is no folder.*NAME=HUB_ID"):
        sources(["Lin-Chen/MMStar"], ["mmstar"])
