from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from shapes import make_pictures
from typer.testing import CliRunner

from bas_opd.cli.data import app
from bas_opd.errors import DataError


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def test_a_set_is_made_checked_and_shown(tmp_path: Path) -> None:
    made = tmp_path / "set"
    options = ("--split", "val", "--n", 6, "--seed", 1, "--workers", 1)
    assert "6 rows, 6 with a crop" in run("make", "finesearch", made, *options)
    report = run("check", made)
    assert "attribute 1, count 1, digit 1, existence 1, number 1, position 1" in report
    assert "6 rows (100.0%) have a crop" in report
    assert "The set is sound." in report
    output = run("show", made, 1, "--out", tmp_path / "row.png")
    assert "What colour is the plate" in output
    assert str(tmp_path / "row.png") in output
    with Image.open(tmp_path / "row.png") as drawn:
        assert drawn.format == "PNG"


def test_a_shown_row_is_drawn_in_the_working_folder_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_pictures(tmp_path / "set", n=6, seed=0)
    monkeypatch.chdir(tmp_path)
    run("show", "set", "picture-0-00005")
    assert (tmp_path / "set-row-6.png").is_file()


def test_a_damaged_set_fails_its_check_with_code_4(tmp_path: Path) -> None:
    made = tmp_path / "set"
    make_pictures(made, n=2, seed=0)
    next((made / "images").iterdir()).unlink()
    assert "Problem: " in run("check", made, code=4)
    report = json.loads(run("check", made, "--json", code=4))
    assert report["rows"] == 1
    assert len(report["problems"]) == 2


def test_a_plain_file_is_prepared_and_its_bad_row_named(tmp_path: Path) -> None:
    Image.new("RGB", (80, 60)).save(tmp_path / "a.png")
    source = tmp_path / "rows.jsonl"
    good = {"image": "a.png", "question": "What?", "box": [0, 0, 40, 30]}
    source.write_text(json.dumps(good) + "\n")
    assert "1 rows, 1 with a crop" in run("prepare", source, tmp_path / "out")
    run("check", tmp_path / "out")

    source.write_text(json.dumps(good | {"box": [0, 0, 400, 30]}) + "\n")
    with pytest.raises(DataError, match=r"rows\.jsonl, row 1: .*outside"):
        CliRunner().invoke(
            app, ["prepare", str(source), str(tmp_path / "two")], catch_exceptions=False
        )
    assert not (tmp_path / "two").exists()


def test_quarantined_rows_are_counted_and_their_list_named(tmp_path: Path) -> None:
    Image.new("RGB", (80, 60)).save(tmp_path / "a.png")
    rows = [{"image": "a.png", "question": "What?"}] * 100 + [{"image": "a.png"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    output = run("prepare", tmp_path / "rows.jsonl", tmp_path / "out", "--quarantine")
    assert "1 rows were set aside in" in output
    assert (tmp_path / "out/rejected.jsonl").is_file()


def test_terminal_escapes_of_a_dataset_are_not_obeyed(tmp_path: Path) -> None:
    Image.new("RGB", (80, 60)).save(tmp_path / "a.png")
    row = {"image": "a.png", "question": "What \x1b[2J is [bold]this[/bold]?"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    run("prepare", tmp_path / "rows.jsonl", tmp_path / "out")
    output = run("show", tmp_path / "out", 1, "--out", tmp_path / "row.png")
    assert "\x1b" not in output
    assert "[bold]this[/bold]?" in output


def test_help_does_not_import_torch() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from bas_opd.cli.data import app; "
        "assert CliRunner().invoke(app, ['prepare', '--help']).exit_code == 0; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
