"""What `bas-opd eval` makes of what is typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bas_opd.cli.main import app
from bas_opd.evaluate.command import Request

SERVER = ("--server", "http://127.0.0.1:9/v1", "--server-weights", "step-1")
JUDGE = ("--judge", "http://127.0.0.1:9/v1", "--judge-model", "wise")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "sets/vstar").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def typed(monkeypatch: pytest.MonkeyPatch, model: str, *options: str) -> Request:
    given: list[Any] = []

    def stand_in(request: Request, _: object) -> str:
        given.append(request)
        return ""

    monkeypatch.setattr("bas_opd.evaluate.command.evaluate_model", stand_in)
    command = ["eval", model, "--bench", "vstar", "--data", "sets", *options]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    return given[0]


@pytest.mark.usefixtures("here")
def test_models_of_the_same_last_name_have_folders_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    models = ("a/export", "b/export", "/c/export", "../d/export", "export", "Qwen/Qwen3.5-4B")
    outs = [str(typed(monkeypatch, model).out) for model in models]
    assert outs == [
        "eval/a-export",
        "eval/b-export",
        "eval/c-export",
        "eval/d-export",
        "eval/export",
        "eval/Qwen-Qwen3.5-4B",
    ]


def test_a_run_keeps_its_evaluation(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "run").mkdir()
    (here / "run/records.jsonl").touch()
    assert typed(monkeypatch, "run").out == Path("run/eval")
    monkeypatch.setenv("HOME", str(here))
    assert typed(monkeypatch, "~/run").out == here / "run/eval"


@pytest.mark.usefixtures("here")
def test_extra_request_fields_reach_judge_and_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    extras = ("--judge-extra", '{"think": false}', "--server-extra", '{"top_k": 1}')
    request = typed(monkeypatch, "m", *SERVER, *JUDGE, *extras, "--batch", "3")
    assert request.server is not None
    assert request.judge is not None
    assert (request.judge.extra, request.server.extra) == ({"think": False}, {"top_k": 1})
    assert request.server.at_once == 3, "--batch says how many questions are under way"
    wrong = ["eval", "m", "--bench", "vstar", "--data", "sets", *JUDGE, "--judge-extra", "[]"]
    result = CliRunner().invoke(app, wrong)
    assert result.exit_code == 2
    assert "--judge-extra '[]' is no JSON object" in result.output


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (SERVER[:2], "Name them with --server-weights"),
        ((*SERVER, "--max-pixels", "9"), "--max-pixels and --device have no effect"),
        ((*SERVER, "--device", "cpu"), "--max-pixels and --device have no effect"),
    ],
)
def test_what_would_be_silently_wrong_behind_a_server_is_refused(
    options: tuple[str, ...], words: str
) -> None:
    command = ["eval", "m", "--bench", "vstar", "--data", "sets", *options]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert words in result.output
