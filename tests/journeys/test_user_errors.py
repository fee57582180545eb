"""What a user can cause is a sentence on standard error, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from run_fixtures import TINY, small_run, small_settings
from shapes import make_pictures
from test_cli import LEARNED25, ROOT, bas_opd
from typer.testing import CliRunner

from bas_opd.__main__ import main
from bas_opd.cli.main import app
from bas_opd.run.lock import locked


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pictures(tmp_path_factory.mktemp("set") / "pairs", n=4, seed=0).folder


@pytest.fixture(scope="module")
def run(small_qwen35: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("run"), small_qwen35, "run.steps=1")


def refused(*arguments: str | Path, cwd: Path, says: str, code: int = 1) -> None:
    """The command fails with one short message that holds the words."""
    result = bas_opd(*arguments, cwd=cwd)
    assert "Traceback" not in result.stderr, result.stderr
    assert result.stderr.startswith("bas-opd: ")
    assert says in result.stderr
    assert result.returncode == code
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("value", "shown"), [("sNaN", "snan"), ("1e999999999999", "1e+999999999999"), ("-inf", "-inf")]
)
def test_no_number_for_a_ratio(tmp_path: Path, value: str, shown: str) -> None:
    setting = f"select.query_ratio={value}"
    says = f"select.query_ratio is {shown}"
    refused(
        "train", LEARNED25, setting, "data.path=d", "model.path=m", cwd=tmp_path, says=says, code=2
    )


def test_a_config_nested_too_deeply(tmp_path: Path) -> None:
    (tmp_path / "deep.toml").write_text("a = " + "[" * 20_000 + "]" * 20_000)
    refused("train", "deep.toml", cwd=tmp_path, says="nested too deeply", code=2)


def test_a_config_that_is_a_loop_of_links(tmp_path: Path) -> None:
    (tmp_path / "loop.toml").symlink_to("loop.toml")
    refused("train", "loop.toml", cwd=tmp_path, says="loop.toml cannot be read", code=2)


@pytest.mark.parametrize("what", ["show", "sheet"])
def test_a_picture_that_cannot_be_written(tmp_path: Path, pairs: Path, what: str) -> None:
    command = ("data", what, pairs, *(["1"] if what == "show" else []), "--out")
    (tmp_path / "file").touch()
    refused(*command, tmp_path, cwd=tmp_path, says=f"{tmp_path}: Is a directory. Name a file.")
    refused(*command, "nowhere/a.png", cwd=tmp_path, says="nowhere/a.png: No such file")
    refused(*command, "file/a.png", cwd=tmp_path, says="file/a.png: Not a directory")
    refused(*command, "/proc/a.png", cwd=tmp_path, says="/proc/a.png: ")


def test_a_place_where_nothing_can_be_made(tmp_path: Path, run: Path) -> None:
    refused("export", run, "/proc/model", cwd=tmp_path, says="/proc/")
    refused("reproduce", "table5", "--out", "/proc/out", cwd=tmp_path, says="/proc/out: ")


def test_a_read_only_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pairs: Path) -> None:
    # Not by permissions, which do not bind the superuser.
    def read_only(*_: object) -> None:
        raise OSError(30, "Read-only file system", "out.png")

    monkeypatch.setattr("PIL.Image.Image.save", read_only)
    result = CliRunner().invoke(app, ["data", "show", str(pairs), "1", "--out", "out.png"])
    assert result.exit_code == 1
    expected = "out.png: Read-only file system. Choose a place that can be written to."
    assert result.stderr == f"bas-opd: {expected}\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="has no full device")
@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["data", "check"], ["watch", "--once"], ["watch"]]
)
def test_a_full_device_as_standard_output(
    tmp_path: Path, pairs: Path, run: Path, arguments: list[str | Path]
) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [
                *(sys.executable, "-c", "from bas_opd.cli.main import app; app()"),
                *arguments,
                *([pairs] if "check" in arguments else []),
                *([run] if "watch" in arguments else []),
            ],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            check=False,
        )
    assert result.returncode == 1
    assert result.stderr.startswith("bas-opd: The output cannot be written: No space left")
    assert len(result.stderr.splitlines()) == 1


def test_an_output_that_lacks_a_character_shows_it_as_an_escape(tmp_path: Path) -> None:
    make_pictures(tmp_path / "я", n=2, seed=0)
    result = bas_opd("data", "check", "я", cwd=tmp_path, PYTHONIOENCODING="latin-1")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("\\u044f: 2 rows")


def test_a_mistyped_column_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("image,question,boxx\na.png,What?,1\n")
    says = "row 1: Field 'boxx' is not known. Did you mean 'box'?"
    refused("data", "prepare", "a.csv", "out", cwd=tmp_path, says=says)


def test_a_picture_in_bytes_is_never_named_as_an_object_of_python(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = {"image": {"bytes": b"no picture", "path": None}, "question": "What?"}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    result = bas_opd("data", "prepare", "a.parquet", "out", cwd=tmp_path)
    assert result.returncode == 1
    assert "its format is not known" in result.stderr
    assert "BytesIO" not in result.stderr


@pytest.mark.parametrize("busy", ["audit", "eval"])
def test_a_run_is_not_overwritten_while_another_command_reads_it(
    run: Path, small_qwen35: Path, busy: str
) -> None:
    settings = small_settings(run.parent, small_qwen35, "run.steps=1", "run.seed=5")
    (run / busy).mkdir()
    before = (run / "records.jsonl").read_bytes()
    with locked(run / busy):
        result = CliRunner().invoke(app, ["train", str(TINY), *settings, "--overwrite"])
    assert result.exit_code == 3, result.output
    assert f"{run / busy} is in use by process {os.getpid()}" in result.stderr
    assert (run / "records.jsonl").read_bytes() == before


def train(out: str | Path, data: Path, model: Path) -> list[str]:
    small = ("rollout.prompts_per_step=2", "rollout.max_response_tokens=4", "run.steps=1")
    return [
        "train",
        "tiny",
        f"model.path={model}",
        f"data.path={data}",
        f"run.output={out}",
        *small,
    ]


def test_a_run_in_a_place_where_nothing_can_be_made(
    tmp_path: Path, pairs: Path, small_qwen35: Path
) -> None:
    says = "The run in /proc/x cannot go on. /proc/x: No such file or directory. Check the path"
    refused(*train("/proc/x", pairs, small_qwen35), cwd=tmp_path, says=says)
    (tmp_path / "file").touch()
    says = "file/run: Not a directory. Check the path"
    refused(*train("file/run", pairs, small_qwen35), cwd=tmp_path, says=says)


def test_data_that_is_not_there_is_no_set_that_is_damaged(tmp_path: Path, run: Path) -> None:
    settings = ("train", "tiny", "model.path=small")
    says = "There is no folder nowhere. Give the folder of a prepared set"
    refused(*settings, "data.path=nowhere", cwd=tmp_path, says=says)
    says = f"{run} is not a prepared set: it has no manifest.json. Give"
    refused(*settings, f"data.path={run}", cwd=tmp_path, says=says)


@pytest.mark.parametrize("command", ["verify", "report", "watch", "export"])
def test_a_prepared_set_is_not_taken_for_a_run(tmp_path: Path, pairs: Path, command: str) -> None:
    says = f"{pairs} is a prepared set, not a run."
    out = ["out"] if command == "export" else []
    refused(command, pairs, *out, cwd=tmp_path, says=says)


def test_records_that_may_not_be_read(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not by permissions, which do not bind the superuser.
    real = Path.open

    def denied(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name == "records.jsonl":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", denied)
    for command in (["verify"], ["report"], ["watch", "--once"]):
        result = CliRunner().invoke(app, [*command, str(run)])
        assert result.exit_code == 1
        says = f"{run / 'records.jsonl'}: Permission denied. Change the permissions"
        assert result.stderr.startswith(f"bas-opd: {says}"), result.stderr


def test_a_run_that_fails_before_it_begins_leaves_nothing(
    tmp_path: Path, pairs: Path, small_qwen35: Path
) -> None:
    says = "nowhere does not exist"
    refused(*train("new/run", pairs, Path("nowhere")), cwd=tmp_path, says=says)
    assert not list(tmp_path.iterdir())
    (tmp_path / "mine").mkdir()
    refused(*train("mine", pairs, Path("nowhere")), cwd=tmp_path, says=says)
    (tmp_path / "mine" / "notes.txt").touch()
    says = "mine holds something that is not a run"
    refused(*train("mine", pairs, small_qwen35), cwd=tmp_path, says=says, code=3)
    assert [path.name for path in tmp_path.rglob("*")] == ["mine", "notes.txt"]


def test_an_evaluation_of_nothing_leaves_nothing(tmp_path: Path, pairs: Path) -> None:
    command = ("eval", "nowhere", "--bench", "finesearch", "--data", f"finesearch={pairs}")
    refused(*command, cwd=tmp_path, says="nowhere is neither a finished run nor")
    assert not list(tmp_path.iterdir())


def test_an_evaluation_in_a_place_where_nothing_can_be_made(
    tmp_path: Path, pairs: Path, run: Path
) -> None:
    command = ("eval", run, "--bench", "finesearch", "--data", f"finesearch={pairs}")
    says = "/proc/eval cannot continue: /proc/eval: No such file or directory. Check"
    refused(*command, "--out", "/proc/eval", cwd=tmp_path, says=says)


@pytest.mark.parametrize("command", ["verify", "report", "watch"])
def test_a_folder_of_runs_names_one(tmp_path: Path, run: Path, command: str) -> None:
    says = f"{run.parent} is not a run, but holds 1 run. Name one, such as {run}."
    refused(command, run.parent, cwd=tmp_path, says=says)


@pytest.mark.parametrize(
    ("setting", "says", "code"),
    [("model.path=smal", "smal does not exist", 1), ("select.query_ratio=0.001", "no query", 2)],
)
def test_nothing_is_drawn_for_a_run_that_would_be_refused(
    tmp_path: Path, setting: str, says: str, code: int
) -> None:
    refused("train", "tiny", "model.path=small", setting, cwd=tmp_path, says=says, code=code)
    assert not list(tmp_path.iterdir())


def test_a_setting_typed_as_an_option() -> None:
    result = CliRunner().invoke(app, ["train", "tiny", "--model.path", "small"])
    assert result.exit_code == 2
    assert "written without dashes: model.path=VALUE." in result.stderr
    misspelt = CliRunner().invoke(app, ["train", "tiny", "--overwrit"])
    assert "Possible options: --overwrite" in misspelt.stderr
    assert "dashes" not in misspelt.stderr


def test_a_folder_that_cannot_be_made_is_named_as_it_was_typed(tmp_path: Path, run: Path) -> None:
    (tmp_path / "file").touch()
    says = f"{tmp_path / 'file' / 'out'}: Not a directory."
    refused("export", run, tmp_path / "file" / "out", cwd=tmp_path, says=says)


@pytest.mark.parametrize(
    ("image", "says"),
    [("5", "'5' is neither a path nor an object"), ('"b.png"', "no file 'b.png' in /")],
)
def test_a_picture_that_is_none(tmp_path: Path, image: str, says: str) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"image": {image}, "question": "What?"}}')
    refused("data", "prepare", "a.jsonl", "out", cwd=tmp_path, says=says)


def test_a_command_that_is_interrupted_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bas_opd.commands.demo.run_demo", interrupt)
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 130
    assert result.stderr.endswith("bas-opd: Interrupted by Ctrl-C before the command was done.\n")


def test_an_interrupt_while_modules_are_imported_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupting:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "bas_opd.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "bas_opd.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130


@pytest.mark.parametrize(
    ("place", "why"), [("file", "it is a file"), ("none", "it does not exist"), (".", "it has no")]
)
def test_a_place_without_a_run_is_described(tmp_path: Path, place: str, why: str) -> None:
    (tmp_path / "file").touch()
    refused("verify", place, cwd=tmp_path, says=f"There is no run in {place}: {why}")
