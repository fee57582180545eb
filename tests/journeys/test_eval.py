"""`bas-opd eval` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bas_opd.cli.main import app
from bas_opd.data.finesearch import make_finesearch
from bas_opd.evaluate.answering import LocalAnswerer
from bas_opd.evaluate.runner import evaluate
from bas_opd.model.base import LEARNT_KINDS, small_base
from bas_opd.model.loading import load_model, resolve_device
from bas_opd.model.processing import Processor
from bas_opd.model.vlm import VisionLanguageModel


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    make_finesearch(
        folder / "finesearch", split="val", size="small", n=9, seed=3, kinds=LEARNT_KINDS
    )
    return folder


def command(data: Path, out: Path, *more: str) -> list[str]:
    return [
        *("eval", str(small_base()), "--bench", "finesearch", "--data", str(data)),
        *("--out", str(out), "--device", "cpu", "--max-response-tokens", "24", "--batch", "4"),
        *more,
    ]


def test_three_steps_give_what_one_command_gives_and_no_question_is_asked_twice(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = CliRunner()
    for step in ("generate", "score", "report"):
        done = runner.invoke(app, command(data, tmp_path / "steps", "--only", step))
        assert done.exit_code == 0, done.output
    whole = runner.invoke(app, command(data, tmp_path / "whole"))
    assert whole.exit_code == 0, whole.output
    assert done.stdout == whole.stdout
    for name in ("finesearch/outputs.jsonl", "finesearch/scores.jsonl"):
        lines = [
            sorted((tmp_path / out / name).read_text().splitlines()) for out in ("steps", "whole")
        ]
        assert lines[0] == lines[1]

    def asked(*_: object) -> None:
        raise AssertionError("everything has its answer already")

    monkeypatch.setattr(LocalAnswerer, "answers", asked)
    again = runner.invoke(app, command(data, tmp_path / "whole"))
    assert again.stdout == whole.stdout


def test_the_answers_are_those_of_the_greedy_runner(data: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, command(data, tmp_path / "out"))
    assert done.exit_code == 0, done.output
    model = VisionLanguageModel(
        load_model(str(small_base()), device=resolve_device("cpu")), Processor.load(small_base())
    )
    from bas_opd.data.records import PreparedSet

    graded = evaluate(model, PreparedSet.load(data / "finesearch").examples)
    lines = (tmp_path / "out/finesearch/outputs.jsonl").read_text().splitlines()
    outputs = {line["id"]: line["output"] for line in map(json.loads, lines)}
    assert outputs == {one.id: one.output for one in graded}
    report = json.loads((tmp_path / "out/report.json").read_text())
    (summary,) = report["benchmarks"]
    assert summary["also"][0]["correct"] == sum(one.is_correct for one in graded)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("--bench", "vqa"), "no benchmark 'vqa'"),
        (("--bench", "pope"), "POPE"),
        (("--judge", "http://127.0.0.1:9/v1"), "--judge-model"),
        (("--only", "score"), "--only generate"),
    ],
)
def test_what_cannot_be_done_is_said_in_words(
    data: Path, tmp_path: Path, change: tuple[str, str], words: str
) -> None:
    done = CliRunner().invoke(app, command(data, tmp_path / "out", *change))
    assert done.exit_code != 0
    assert words in done.output
    assert "Traceback" not in done.output
