"""Files of numbers are checked before anything is measured."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from bas_opd.bench.numbers import command_line

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.mark.parametrize("script", ["large_step", "loss", "pictures", "sampler"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = BENCHMARKS / f"{script}.py"
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr("sys.argv", [str(path), "--json", str(tmp_path / "absent" / "n.json")])
    monkeypatch.setattr("tempfile.TemporaryDirectory", lambda: pytest.fail("It has begun."))
    with pytest.raises(SystemExit, match=r"cannot be written to .*absent/n\.json"):
        runpy.run_path(str(path), run_name="__main__")


@pytest.mark.parametrize(
    "words",
    [
        ["bench", "a model", "--json", "n.json", "--device", "cpu"],
        ["bench", "a model", "--json=n.json", "--device", "cpu"],
        ["bench", "a model", "--device", "cpu", "--json", "n.json"],
        ["bench", "a model", "--device", "cpu"],
    ],
)
def test_a_command_is_written_as_typed_without_its_file(words: list[str]) -> None:
    assert command_line("bas-opd", words) == "bas-opd bench 'a model' --device cpu"
