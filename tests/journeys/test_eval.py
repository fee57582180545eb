"""`bas-opd eval` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_fixtures import small_run
from typer.testing import CliRunner

from bas_opd.answers import ends_with
from bas_opd.cli.main import app
from bas_opd.commands.export import export
from bas_opd.data.finesearch import make_finesearch
from bas_opd.data.images import open_image
from bas_opd.data.records import PreparedSet
from bas_opd.evaluate.answering import LocalAnswerer
from bas_opd.evaluate.results import read_evaluation
from bas_opd.files import sha256
from bas_opd.model.base import LEARNT_KINDS, small_base
from bas_opd.model.loading import open_model
from bas_opd.rollout.greedy import Greedy


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


def outputs(out: Path) -> dict[str, str]:
    lines = (out / "finesearch/outputs.jsonl").read_text().splitlines()
    return {line["id"]: line["output"] for line in map(json.loads, lines)}


def test_the_answers_are_greedy_responses_to_the_full_pictures(data: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, command(data, tmp_path / "out"))
    assert done.exit_code == 0, done.output
    model = open_model(small_base(), device="cpu")
    examples = PreparedSet.load(data / "finesearch").examples
    prompts = [model.processor.encode(open_image(each.image), each.question) for each in examples]
    responses = dict(Greedy(model, max_response_tokens=24, prompts_per_batch=9)(prompts))
    said = {each.id: model.processor.decode(responses[n]) for n, each in enumerate(examples)}
    assert outputs(tmp_path / "out") == said
    (summary,) = json.loads((tmp_path / "out/report.json").read_text())["benchmarks"]
    right = sum(ends_with(said[each.id], each.answer) for each in examples)
    assert summary["also"][0]["correct"] == right


def test_a_lora_run_is_evaluated_in_place_and_answers_as_its_export(
    data: Path, tmp_path: Path
) -> None:
    settings = ("run.steps=2", "lora.rank=4", "optim.learning_rate=0.02", "model.device=cpu")
    run = small_run(tmp_path, small_base(), *settings)
    assert (run / "model/adapter_model.safetensors").is_file()
    export(run, tmp_path / "merged")
    flags = ("--bench", "finesearch", "--data", str(data), "--device", "cpu")
    limit = ("--max-response-tokens", "24")
    for model in (run, tmp_path / "merged"):
        out = () if model == run else ("--out", str(tmp_path / "out"))
        done = CliRunner().invoke(app, ["eval", str(model), *flags, *limit, *out])
        assert done.exit_code == 0, done.output
    base = CliRunner().invoke(app, command(data, tmp_path / "base"))
    assert base.exit_code == 0, base.output
    assert outputs(run / "eval") == outputs(tmp_path / "out") != outputs(tmp_path / "base")
    weights = json.loads((run / "eval/report.json").read_text())["weights"]
    assert weights["adapter_model.safetensors"] == sha256(run / "model/adapter_model.safetensors")
    assert weights["base/model.safetensors"] == sha256(small_base() / "model.safetensors")
    evaluation = read_evaluation(run / "eval")
    assert evaluation is not None
    files = {file.name: sha256(file) for file in (run / "model").iterdir()}
    assert not evaluation.is_of_other_weights(files)
    assert evaluation.is_of_other_weights(files | {"adapter_model.safetensors": "other"})


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
