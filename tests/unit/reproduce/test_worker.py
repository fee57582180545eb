"""What a worker of a reproduction does with one run: train, evaluate, write the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from result_fixtures import cost
from shapes import make_pictures
from synthetic_steps import A_STEP

from bas_opd.config import Config
from bas_opd.errors import PreemptionError
from bas_opd.evaluate import answering, questions
from bas_opd.evaluate.questions import Output, Question
from bas_opd.reproduce import worker
from bas_opd.reproduce.policies import Inputs, Request, plan_runs, seeded
from bas_opd.reproduce.results import Planned, Run, read_result
from bas_opd.run import loop
from bas_opd.run.loop import RunSummary

N = 4


def planned(tmp_path: Path, base: Path) -> dict[str, Run]:
    """The base and one trained run, to be judged on a few pictures."""
    overrides = ("run.steps=1", "rollout.max_response_tokens=2")
    inputs = Inputs(
        request=Request(out=tmp_path, device="cpu", overrides=overrides),
        base=base,
        train=make_pictures(tmp_path / "train", n=N, seed=1),
        questions=make_pictures(tmp_path / "test", n=N, seed=0),
        split="test",
    )
    (tmp_path / "results").mkdir()
    runs = plan_runs(inputs, tmp_path / "results", seeded(["base", "full"], 1))
    return {run.planned.arm: run for run in runs}


def ignored(*_: object) -> None: ...


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, Run]:
    base = tmp_path / "base"
    base.mkdir()
    (base / "model.safetensors").write_bytes(b"weights")
    return planned(tmp_path, base)


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a training that never was leaves its model, whose answers alone are right."""
    folder = tmp_path / "elsewhere" / "model"
    folder.mkdir(parents=True)

    def train(config: Config, console: Any, *, evaluate: Any) -> RunSummary:
        assert evaluate is None
        return RunSummary(directory=folder.parent, model=folder, totals=cost().model_dump())

    def load_policy(config: Config) -> Any:
        cpu = torch.device("cpu")
        return SimpleNamespace(
            path=config.model.path, processor=None, precision=torch.float32, device=cpu
        )

    def answers(self: Any, questions: Sequence[Question]) -> Iterator[tuple[int, Output]]:
        is_right = self.model.path == str(folder)
        for place in reversed(range(len(questions))):
            text = questions[place].reference if is_right else "wrong"
            yield place, Output(text=text, is_cut=False)

    def read_history(directory: Path) -> Any:
        assert directory == folder.parent
        steps = [A_STEP.model_copy(update={"calls": 112})]
        return SimpleNamespace(steps=steps, queries=steps, evaluations=[])

    monkeypatch.setattr(loop, "train", train)
    monkeypatch.setattr(worker, "read_history", read_history)
    monkeypatch.setattr(worker, "load_policy", load_policy)
    monkeypatch.setattr(answering.ModelAnswers, "answers", answers)
    return folder


@pytest.mark.usefixtures("trained")
def test_a_trained_run_is_evaluated_by_its_trained_model(runs: dict[str, Run]) -> None:
    run = runs["full"]
    words = worker.Worker()(run, ignored, ignored)
    assert words.startswith("100.0% (mean of kinds)")
    left = read_result(run.result)
    assert left.outcomes == "1" * N
    assert left.model_dump(include=set(Planned.model_fields)) == run.planned.model_dump()
    assert left.cost == cost(prompts_asked=0.25)  # rows 0 to 55 of eight a prompt, 28 prompts
    assert left.steps is not None
    assert left.steps.calls == [112]


@pytest.mark.usefixtures("trained")
def test_the_base_is_evaluated_as_it_is_even_after_a_trained_run(runs: dict[str, Run]) -> None:
    one = worker.Worker()
    for run in (runs["full"], runs["base"]):
        one(run, ignored, ignored)
    left = read_result(runs["base"].result)
    assert left.outcomes == "0" * N
    assert (left.seed, left.cost, left.steps) == (None, None, None)


@pytest.mark.parametrize(("polls", "decoded"), [(2, 1), (N + 2, N)])
def test_a_stop_while_judging_ends_it_at_once_and_leaves_no_result(
    tmp_path: Path,
    small_qwen35: Path,
    monkeypatch: pytest.MonkeyPatch,
    polls: int,
    decoded: int,
) -> None:
    """Once while questions are encoded, once while they are answered."""
    run = planned(tmp_path, small_qwen35)["base"]
    seen = {"polls": 0, "decoded": 0}
    real = questions.decode_image

    def decode_image(*arguments: Any, **options: Any) -> Any:
        seen["decoded"] += 1
        return real(*arguments, **options)

    def poll() -> None:
        seen["polls"] += 1
        if seen["polls"] == polls:
            raise PreemptionError("SIGTERM")

    monkeypatch.setattr(questions, "decode_image", decode_image)
    with pytest.raises(PreemptionError):
        worker.Worker()(run, ignored, poll)
    assert seen == {"polls": polls, "decoded": decoded}
    assert list(run.result.parent.iterdir()) == []


def test_a_second_model_decodes_no_picture_again(
    tmp_path: Path, small_qwen35: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = planned(tmp_path, small_qwen35)["base"]
    one = worker.Worker()
    one(run, ignored, ignored)
    first = read_result(run.result)

    def decoded(*_: Any, **__: Any) -> Any:
        raise AssertionError("every question is encoded already")

    monkeypatch.setattr(questions, "decode_image", decoded)
    one(run, ignored, ignored)
    assert read_result(run.result) == first
