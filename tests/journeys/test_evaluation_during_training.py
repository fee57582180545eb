"""Evaluation during training: seen everywhere, and nothing of the run depends on it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from page_fixtures import words_of
from run_fixtures import OFTEN, TINY, Silent, events_of, rewrite, stop_at, tiny
from run_states import assert_same_end
from shapes import make_pictures
from typer.testing import CliRunner

from bas_opd.cli.main import app
from bas_opd.config import Config
from bas_opd.config.schema import EvalConfig
from bas_opd.errors import ConfigError, OutOfMemory, PreemptionError
from bas_opd.evaluate.answering import ModelAnswers
from bas_opd.evaluate.benchmarks import benchmark
from bas_opd.evaluate.during_training import evaluator, some_of_each_kind
from bas_opd.evaluate.scoring import score_in_memory
from bas_opd.model.loading import open_model
from bas_opd.model.vlm import Prefix, VisionLanguageModel
from bas_opd.rollout import Greedy
from bas_opd.run import loop
from bas_opd.run.checkpoint import CheckpointWriter, Snapshot, published, read_checkpoint
from bas_opd.run.history import read_history
from bas_opd.run.record import EvaluationRecord
from bas_opd.run.tracking import Tracked
from bas_opd.run.verify import verify
from bas_opd.types import Hooks

Settings = Callable[..., Config]


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    home = tmp_path_factory.mktemp("data")
    train, held_out = (make_pictures(home / name, n=16, seed=seed) for name, seed in SETS)
    return train.folder, held_out.folder


SETS = (("train", 1), ("held-out", 7))


@pytest.fixture
def settings(small_qwen35: Path, sets: tuple[Path, Path], tmp_path: Path) -> Settings:
    """Settings of a run of four steps with evaluations after 0, 3 and 4 of them."""

    def make(name: str, *overrides: str) -> Config:
        train, held_out = sets
        evaluating = (f"eval.data={held_out}", "eval.every=3", "eval.limit=5")
        return tiny(small_qwen35, train, tmp_path / name, *OFTEN, *evaluating, *overrides)

    return make


def train(config: Config) -> Path:
    return loop.train(config, Silent(), evaluate=evaluator(config)).directory


def evaluations(run: Path) -> list[dict[str, Any]]:
    """The evaluations of a run without their times, each with the number of steps before it."""
    found, steps = [], 0
    for event in events_of(run):
        steps += event["event"] == "step"
        if event["event"] == "evaluation":
            kept = {
                key: value
                for key, value in event.items()
                if key not in ("seconds", "chain", "run_id")
            }
            found.append({**kept, "steps before": steps})
    return found


def test_a_run_ends_in_the_same_bytes_with_evaluation_and_without(settings: Settings) -> None:
    evaluated = train(settings("on"))
    plain = train(settings("off", "eval.every=0"))
    assert evaluations(plain) == []
    assert [each["step"] for each in evaluations(evaluated)] == [0, 3, 4]
    assert all(each["step"] == each["steps before"] for each in evaluations(evaluated))
    assert_same_end(evaluated, plain)
    assert verify(evaluated, draws=True).is_sound


def test_the_last_evaluation_is_that_of_the_trained_model(
    settings: Settings, sets: tuple[Path, Path]
) -> None:
    run = train(settings("run"))
    finesearch = benchmark("finesearch")
    questions = some_of_each_kind(finesearch.load(sets[1]).questions, 5)
    model = open_model(run / "model", device="cpu")
    answers = ModelAnswers(model=model, max_response_tokens=6, prompts_per_batch=3)
    scored = score_in_memory(finesearch, questions, answers.answers(questions))
    summary = finesearch.summarise(scored)
    last = read_history(run).evaluations[-1]
    assert (last.metric, last.accuracy, last.n) == (
        "mean of kinds",
        summary.primary.value,
        5,
    )
    assert summary.beside is not None
    assert last.accuracies["all questions"] == summary.beside.value


# Polls 1 to 6, 34 and 44 are in the evaluations after 0, 3 and 4 steps, the others in steps.
@pytest.mark.parametrize("poll_number", [1, 5, 7, 22, 33, 34, 35, 43, 44])
def test_stopped_anywhere_each_evaluation_is_on_record_once(
    poll_number: int, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(settings("whole"))
    config = settings("run")
    with monkeypatch.context() as patch:
        stop_at(patch, poll_number)
        with pytest.raises(PreemptionError, match="rerun the same command to resume"):
            train(config)
    run = train(config)
    assert evaluations(run) == evaluations(whole)
    assert_same_end(run, whole)
    assert verify(run).is_sound


def test_a_kill_between_evaluation_and_checkpoint_neither_loses_nor_doubles_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, config = train(settings("whole")), settings("run")

    class KilledError(BaseException): ...

    def killed(self: object, evaluation: EvaluationRecord) -> None:
        if evaluation.step == 3:
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(Silent, "evaluated", killed)
        with pytest.raises(KilledError):
            train(config)
    assert evaluations(train(config)) == evaluations(whole)


def scripted(values: dict[int, float]) -> loop.Evaluate:
    def evaluate(model: VisionLanguageModel, step: int, hooks: Hooks) -> EvaluationRecord:
        return EvaluationRecord(
            step=step,
            metric="mean of kinds",
            accuracies={"mean of kinds": values[step], "all questions": 1 - values[step]},
            n=5,
            questions="q",
            seconds=0.5,
        )

    return evaluate


@pytest.fixture
def scripted_run(settings: Settings) -> Path:
    config = settings("scripted", "eval.every=1", "run.keep_checkpoints=1")
    values = {0: 0.2, 1: 0.6, 2: 0.6, 3: 0.5, 4: 0.4}
    return loop.train(config, Silent(), evaluate=scripted(values)).directory


def test_the_checkpoint_that_is_best_by_the_named_accuracy_is_kept(scripted_run: Path) -> None:
    kept = [path.name for path in published(scripted_run / "checkpoints")]
    assert kept == ["step-00000004", "step-00000001"]
    assert verify(scripted_run).is_sound


def test_a_step_that_is_best_due_and_the_last_is_checkpointed_once(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    submit = CheckpointWriter.submit

    def counted(writer: CheckpointWriter, snapshot: Snapshot, **options: Any) -> None:
        steps.append(snapshot.step)
        submit(writer, snapshot, **options)

    monkeypatch.setattr(CheckpointWriter, "submit", counted)
    config = settings("scripted", "eval.every=1")
    loop.train(config, Silent(), evaluate=scripted({step: step / 9 for step in range(5)}))
    assert steps == [0, 1, 2, 3, 4]


def test_memory_that_runs_out_in_an_evaluation_halves_its_batches_and_costs_no_step(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, config = train(settings("whole")), settings("run")
    most = 1
    decode = Greedy._decoded

    def crowded(answers: Greedy, begun: Prefix, batch: Sequence[Any]) -> Any:
        if len(batch) > most:
            raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB.")
        return decode(answers, begun, batch)

    monkeypatch.setattr(Greedy, "_decoded", crowded)
    console = Silent()
    run = loop.train(config, console, evaluate=evaluator(config)).directory
    halved = [each for each in console.messages if "Out of memory in the evaluation" in each]
    assert len(halved) == 2  # from 4 to 2 to 1, and then it stays there
    assert evaluations(run) == evaluations(whole)
    assert_same_end(run, whole)
    most = 0
    small = settings("small")
    with pytest.raises(OutOfMemory, match="The evaluation does not fit into memory even"):
        train(small)
    assert [path.name for path in published(Path(small.run.output or "") / "checkpoints")] == [
        "step-00000000"
    ]
    most = 9
    assert_same_end(train(small), whole)


def test_the_best_checkpoint_can_be_exported(scripted_run: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "best")
    command = ["export", str(scripted_run), out, "--step", "1"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert result.output.endswith("step 1 (checkpoint), float32.\n")
    trained = read_checkpoint(scripted_run / "checkpoints" / "step-00000001").tensors["student"]
    weights = open_model(out, device="cpu").trainable()
    for name, tensor in trained.items():
        assert torch.equal(weights[name], tensor), name
    result = CliRunner().invoke(app, [*command[:2], f"{out}-2", "--step", "2"])
    assert "has no checkpoint of step 2. It has those of 1, 4." in result.output


def test_its_curve_is_in_watch_and_report(scripted_run: Path) -> None:
    def printed(*command: str) -> str:
        result = CliRunner().invoke(app, list(command))
        assert result.exit_code == 0, result.output
        return result.output

    watched = printed("watch", str(scripted_run), "--once")
    assert "mean of kinds     ▁██▆▅  0.4 (0.2 to 0.6)" in watched
    assert "evaluation after step 4/4  40.0 % (mean of kinds), 60.0 % (all questions)" in watched
    printed("report", str(scripted_run))
    page = words_of((scripted_run / "report.html").read_text(encoding="utf-8"))
    said = (
        "On 5 questions. Best: 60.0 % (mean of kinds), 40.0 % (all questions) after step 1, whose "
        "checkpoint is kept. Last: 40.0 % (mean of kinds), 60.0 % (all questions)."
    )
    assert said in page
    assert "evaluated during training, it had 40.0 % (mean of kinds), 60.0 % (all" in page
    assert "the model was not evaluated" not in page
    assert said in (scripted_run / "card.md").read_text(encoding="utf-8").replace("\\", "")


def test_a_tracker_gets_it(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[tuple[int, dict[str, float]]] = []

    class Service:
        def init(self, **_: Any) -> None: ...
        def finish(self) -> None: ...
        def log(self, values: dict[str, float], *, step: int) -> None:
            logged.append((step, values))

    monkeypatch.setitem(sys.modules, "wandb", Service())  # type: ignore[arg-type]
    config = settings("run")
    tracked = Tracked(Silent(), config, ["wandb"])
    loop.train(config, tracked, evaluate=scripted({0: 0.1, 3: 0.3, 4: 0.2}))
    assert [(step, values) for step, values in logged if "evaluation/mean_of_kinds" in values] == [
        (step, {"evaluation/mean_of_kinds": value, "evaluation/all_questions": 1 - value})
        for step, value in ((0, 0.1), (3, 0.3), (4, 0.2))
    ]
    assert [step for step, _ in logged] == [0, 1, 2, 3, 3, 4, 4]


def test_an_evaluation_that_is_doubled_or_misplaced_is_found_by_verify(scripted_run: Path) -> None:
    events = events_of(scripted_run)
    place = next(i for i, event in enumerate(events) if event["event"] == "evaluation")
    rewrite(scripted_run, [*events[: place + 1], *events[place:]])
    records = verify(scripted_run).checks[0]
    assert "Step 0 was evaluated twice." in records.problems
    rewrite(scripted_run, [*events[:place], *events[place + 1 : -1], events[place], events[-1]])
    assert "An evaluation of step 0 follows 4 steps." in verify(scripted_run).checks[0].problems


def test_what_cannot_evaluate_says_so(settings: Settings) -> None:
    with pytest.raises(ConfigError, match="does not evaluate during training"):
        loop.train(settings("run"), Silent())
    with pytest.raises(ValueError, match=r"eval\.data is not set"):
        EvalConfig(every=1)


def test_a_limit_takes_as_many_of_each_kind(sets: tuple[Path, Path]) -> None:
    questions = benchmark("finesearch").load(sets[1]).questions
    kinds = sorted({each.groups["kind"] for each in questions})
    chosen = some_of_each_kind(questions, 2 * len(kinds))
    assert sorted(each.groups["kind"] for each in chosen) == sorted([*kinds, *kinds])
    everything = some_of_each_kind(questions, None)
    assert {each.id for each in everything} == {each.id for each in questions}


def test_the_command_evaluates(
    settings: Settings, small_qwen35: Path, sets: tuple[Path, Path], tmp_path: Path
) -> None:
    train_set, held_out = sets
    arguments = [f"model.path={small_qwen35}", f"data.path={train_set}", *OFTEN, "run.steps=2"]
    arguments += [f"run.output={tmp_path / 'typed'}", f"eval.data={held_out}", "eval.every=1"]
    result = CliRunner().invoke(app, ["train", str(TINY), *arguments])
    assert result.exit_code == 0, result.output
    assert [each["step"] for each in evaluations(tmp_path / "typed")] == [0, 1, 2]
    assert "evaluation after step 2/2  " in result.output
