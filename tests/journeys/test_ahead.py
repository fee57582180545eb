"""Rollouts one step ahead: which weights draw them, and that no stop changes what is drawn."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from baseline_fixtures import reward_even_tokens, short_config
from PIL import Image
from run_fixtures import OFTEN, Silent, events_of, rewrite, stop_at, tiny
from run_states import assert_same_end
from shapes import make_pictures

from bas_opd.config import Config, load_config, preset
from bas_opd.data.order import PromptStream
from bas_opd.data.records import PreparedSet
from bas_opd.data.views import full_view
from bas_opd.errors import (
    BasOpdError,
    CheckpointError,
    ConfigError,
    ModelError,
    PreemptionError,
)
from bas_opd.learn import Learner
from bas_opd.model.weights import StudentWeights
from bas_opd.rollout import AheadEngine, Sampler
from bas_opd.rollout.ahead import Beside
from bas_opd.run import loop, ranks
from bas_opd.run.checkpoint import published, read_checkpoint
from bas_opd.run.engines import sampling_settings
from bas_opd.run.footprint import measure
from bas_opd.run.manifest import step_of
from bas_opd.run.state import load_policy
from bas_opd.run.verify import verify
from bas_opd.types import PromptBatch, Rollouts, StudentUpdate

Make = Callable[..., Config]
AHEAD, OVERLAP = "rollout.ahead=1", "rollout.overlap=true"


@pytest.fixture
def config(small_qwen35: Path, tmp_path: Path) -> Make:
    data = make_pictures(tmp_path / "data", n=24, seed=1).folder
    return lambda output, *overrides: tiny(
        small_qwen35, data, tmp_path / output, *OFTEN, AHEAD, *overrides
    )


def train(config: Config) -> Path:
    return loop.train(config, Silent()).directory


def steps_of(run: Path) -> list[dict[str, Any]]:
    return [event for event in events_of(run) if event["event"] == "step"]


def assert_sound(run: Path) -> None:
    found = verify(run, draws=True)
    assert found.is_sound, found


def test_the_rollouts_of_a_step_are_drawn_before_the_update_of_the_step_before(
    config: Make,
) -> None:
    settings = config("run")
    run = train(settings)
    assert [step["sampled_at"] for step in steps_of(run)] == [0, 0, 1, 2]
    assert_sound(run)
    data = PreparedSet.load(Path(settings.data.path))
    prompts = PromptStream(data.examples, per_step=4, seed=settings.run.seed, steps=4)
    saved = {step_of(path): read_checkpoint(path) for path in published(run / "checkpoints")}
    model = load_policy(settings)
    batches = []
    for step in range(4):
        prompts.begin(step)
        batches.append(prompts.take())
    for step in (2, 3):
        StudentWeights(model).load_state_dict(saved[step - 1].tensors["student"])
        drawn = Sampler(model, full_view, sampling_settings(settings)).generate(batches[step])
        held = saved[step].tensors["rollouts"]
        assert torch.equal(held[f"{step}.tokens"], drawn.tokens)
        assert torch.equal(held[f"{step}.logprobs"], drawn.logprobs)
        StudentWeights(model).load_state_dict(saved[step].tensors["student"])
        later = Sampler(model, full_view, sampling_settings(settings)).generate(batches[step])
        assert not torch.equal(held[f"{step}.logprobs"], later.logprobs)


def test_nothing_is_drawn_for_a_step_that_never_comes(
    config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    generate = Sampler.generate

    def noting(sampler: Sampler, batch: PromptBatch) -> Rollouts:
        drawn.append(batch.step)
        return generate(sampler, batch)

    monkeypatch.setattr(Sampler, "generate", noting)
    run = train(config("run"))
    assert drawn == [0, 1, 2, 3]
    totals = events_of(run)[-1]["totals"]
    assert totals["rollouts"] == sum(len(step["response_tokens"]) for step in steps_of(run))


@pytest.mark.parametrize("poll", [3, 9, 14, 20, 27])
def test_stopped_anywhere_it_ends_in_the_same_state(
    poll: int, config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(config("whole", "run.checkpoint_every=3"))
    with monkeypatch.context() as patch:
        stop_at(patch, poll)
        with pytest.raises(PreemptionError):
            train(config("run", "run.checkpoint_every=3"))
    assert_same_end(train(config("run", "run.checkpoint_every=3")), whole)
    assert_sound(whole.parent / "run")


@pytest.mark.parametrize("name", ["grpo", "grpo-released", "opsd"])
def test_a_baseline_is_resumed_from_any_of_its_checkpoints(
    name: str, small_qwen35: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward_even_tokens(monkeypatch)
    whole = train(short_config(name, tmp_path, small_qwen35, "whole", AHEAD))
    assert [step["sampled_at"] for step in steps_of(whole)] == [0, 0, 1]
    assert_sound(whole)
    for last in (1, 2):
        shutil.copytree(whole, tmp_path / "run")
        for path in published(tmp_path / "run" / "checkpoints"):
            if step_of(path) > last:
                shutil.rmtree(path)
        shutil.rmtree(tmp_path / "run" / "model")
        run = train(short_config(name, tmp_path, small_qwen35, "run", AHEAD))
        assert_same_end(run, whole)
        shutil.rmtree(run)


def test_dapo_of_one_round_is_one_step_ahead(
    small_qwen35: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward_even_tokens(monkeypatch)
    run = train(short_config("dapo", tmp_path, small_qwen35, "run", AHEAD, "dapo.rounds=1"))
    assert [step["sampled_at"] for step in steps_of(run)] == [0, 0, 1]
    assert_sound(run)


def test_policies_that_are_late_have_importance_weights(
    small_qwen35: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward_even_tokens(monkeypatch)
    first, *late = steps_of(train(short_config("grpo", tmp_path, small_qwen35, "run", AHEAD)))
    assert first["importance"]["max_difference"] < 1e-3
    assert all(step["importance"]["mean_difference"] > 1e-3 for step in late)


def test_a_prolonged_run_draws_its_first_further_step_on_policy(config: Make) -> None:
    run = train(config("run", "run.steps=2"))
    assert train(config("run", "run.steps=4")) == run
    assert [step["sampled_at"] for step in steps_of(run)] == [0, 0, 2, 2]
    assert_sound(run)


def test_a_run_that_is_prolonged_before_its_end_is_the_longer_one(
    config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(config("whole"))
    with monkeypatch.context() as patch:
        stop_at(patch, 27)
        with pytest.raises(PreemptionError, match="after step 2 of 3"):
            train(config("run", "run.steps=3"))
    assert_same_end(train(config("run")), whole)


@pytest.mark.parametrize("settings", [(), ("lora.rank=2",)], ids=["all", "lora"])
def test_drawing_beside_the_training_changes_no_byte(
    settings: tuple[str, ...], config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: set[str] = set()
    generate = Sampler.generate

    def noting(sampler: Sampler, batch: PromptBatch) -> Rollouts:
        names.add(threading.current_thread().name)
        return generate(sampler, batch)

    alone = train(config("alone", *settings))
    monkeypatch.setattr(Sampler, "generate", noting)
    beside = train(config("beside", OVERLAP, *settings))
    assert names == {"MainThread", "rollouts"}
    if settings:
        assert steps_without_time(beside) == steps_without_time(alone)
    else:
        assert_same_end(beside, alone)


def steps_without_time(run: Path) -> list[dict[str, Any]]:
    own = ("seconds", "waited_seconds", "run_id")
    return [{k: v for k, v in step.items() if k not in own} for step in steps_of(run)]


def test_it_draws_while_the_student_is_trained(
    config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waits for the other: in turn, they would wait for ever."""
    drawing, trained = threading.Event(), threading.Event()
    generate, update = Sampler.generate, Learner.update

    def slow_draw(sampler: Sampler, batch: PromptBatch) -> Rollouts:
        if batch.step == 1:
            drawing.set()
            assert trained.wait(60)
        return generate(sampler, batch)

    def slow_update(learner: Learner, *args: Any) -> StudentUpdate:
        assert drawing.wait(60)
        found = update(learner, *args)
        trained.set()
        return found

    monkeypatch.setattr(Sampler, "generate", slow_draw)
    monkeypatch.setattr(Learner, "update", slow_update)
    run = train(config("run", OVERLAP))
    monkeypatch.undo()
    assert_same_end(run, train(config("other")))


@pytest.mark.parametrize(
    ("first", "poll", "step"),
    [(True, 5, 0), (True, 13, 1), (True, 17, 2), (False, 5, 0), (False, 20, 1), (False, 27, 2)],
)
def test_a_run_is_resumed_with_and_without_overlap(
    first: bool, poll: int, step: int, config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(config("whole", "run.checkpoint_every=3"))
    forms = [(OVERLAP,), ()] if first else [(), (OVERLAP,)]
    with monkeypatch.context() as patch:
        stop_at(patch, poll)
        with pytest.raises(PreemptionError, match=f"after step {step} of"):
            train(config("run", "run.checkpoint_every=3", *forms[0]))
    assert_same_end(train(config("run", "run.checkpoint_every=3", *forms[1])), whole)
    assert not [each for each in threading.enumerate() if each.name == "rollouts"]


@pytest.mark.parametrize("every", [1, 100])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_an_error_of_the_thread_ends_the_run_which_resumes(
    step: int, every: int, config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No checkpoint is written without the rollouts that were not drawn."""
    settings = (OVERLAP, f"run.checkpoint_every={every}")
    whole = train(config("whole", *settings))
    generate = Sampler.generate

    def failing(sampler: Sampler, batch: PromptBatch) -> Rollouts:
        if batch.step == step:
            raise ModelError("The weights are damaged.")
        return generate(sampler, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Sampler, "generate", failing)
        with pytest.raises(BasOpdError, match="The weights are damaged"):
            train(config("run", *settings))
    assert_same_end(train(config("run", *settings)), whole)
    assert_sound(whole.parent / "run")


def test_an_error_of_the_training_ends_the_thread(
    config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It polls with every token, and the run waits for it."""
    drawing, poll = threading.Event(), Beside.poll

    def slow_poll(beside: Beside) -> None:
        if threading.current_thread().name == "rollouts":
            drawing.set()
            time.sleep(0.2)
        poll(beside)

    def failing(learner: Learner, *args: Any) -> StudentUpdate:
        assert drawing.wait(60)
        raise RuntimeError("The driver is gone.")

    monkeypatch.setattr(Beside, "poll", slow_poll)
    monkeypatch.setattr(Learner, "update", failing)
    with pytest.raises(RuntimeError, match="The driver is gone"):
        train(config("run", OVERLAP, "rollout.max_response_tokens=200"))
    assert not [each for each in threading.enumerate() if each.name == "rollouts"]


def test_a_stop_while_the_first_batch_is_drawn_does_not_wait_for_it(
    config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    generate = Sampler.generate

    def noting(sampler: Sampler, batch: PromptBatch) -> Rollouts:
        found = generate(sampler, batch)
        drawn.append(batch.step)
        return found

    monkeypatch.setattr(Sampler, "generate", noting)
    stop_at(monkeypatch, 3)
    with pytest.raises(PreemptionError):
        train(config("run", OVERLAP))
    assert not drawn


def test_a_picture_of_another_size_under_saved_rollouts_is_refused_by_name(
    config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config("run")
    with monkeypatch.context() as patch:
        stop_at(patch, 27)
        with pytest.raises(PreemptionError):
            train(settings)
    data = PreparedSet.load(Path(settings.data.path))
    prompts = PromptStream(data.examples, per_step=4, seed=settings.run.seed, steps=4)
    prompts.cursor = 2
    example = prompts.take().examples[1]
    before = example.image.read_bytes()
    with Image.open(example.image) as picture:
        picture.resize((2 * picture.width, 2 * picture.height)).save(example.image)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=f"'{example.id}' for step 2, whose prompt had"):
            loop.train(settings, Silent(), accept_changes=True)
    example.image.write_bytes(before)
    run = loop.train(settings, Silent(), accept_changes=True).directory
    assert_same_end(run, train(config("whole")))


def test_rollouts_of_another_number_of_prompts_are_refused(config: Make) -> None:
    run = train(config("run", "run.steps=2"))
    saved = read_checkpoint(published(run / "checkpoints")[0]).tensors["rollouts"]
    engine = AheadEngine(None, None, lambda example: 0)  # type: ignore[arg-type]
    engine.load_state_dict(saved)
    step = min(int(key.partition(".")[0]) for key in saved)
    with pytest.raises(CheckpointError, match=f"of 4 prompts for step {step}, which has 0"):
        engine.generate(PromptBatch(step=step, examples=()))


def test_verify_names_rollouts_of_other_weights(config: Make) -> None:
    run = train(config("run"))
    events = events_of(run)
    for step, other in ((0, None), (2, 2), (3, 1)):
        changed = [dict(event) for event in events]
        next(e for e in changed if e["event"] == "step" and e["step"] == step)["sampled_at"] = other
        rewrite(run, changed)
        (check,) = [each for each in verify(run, files=False).checks if each.name == "rollouts"]
        (problem,) = check.problems
        assert problem.startswith(f"step {step}: sampled_at is {other}")


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({}, None),
        ({"version": 2}, "engine had version 2 of the weights, not 1."),
        ({"rescored_rows": [0, 0]}, "engine has rescored rows [0, 0], which are not rows of the"),
        ({"rescored_rows": [99]}, "engine has rescored rows [99], which are not rows of the"),
        ({"rescored_rows": []}, "engine has rescored rows [], which are not rows of the step"),
        ({"rescored_tokens": 0}, "engine has 0 rescored tokens, but its rows have"),
        ({"logprob_gap": 0.2}, "engine has a logprob_gap of 0.2, but may have 0.1 at most."),
        (None, "engine is missing, but vllm draws."),
    ],
)
def test_verify_checks_what_is_said_of_the_engine(
    config: Make, changed: dict[str, Any] | None, problem: str | None
) -> None:
    run = train(config("run"))
    events = events_of(run)
    events[0]["config"]["rollout"]["engine"] = "vllm"
    steps = [event for event in events if event["event"] == "step"]
    for step in steps:
        step["engine"] = {
            "version": step["sampled_at"],
            "rescored_rows": [1],
            "rescored_tokens": step["response_tokens"][1],
            "logprob_gap": 0.0,
        }
    steps[2]["engine"] = None if changed is None else steps[2]["engine"] | changed
    rewrite(run, events)
    (check,) = [each for each in verify(run, files=False).checks if each.name == "rollouts"]
    assert len(check.problems) == (problem is not None)
    assert all(found.startswith(f"step 2: {problem}") for found in check.problems)


def drawn_by_vllm(run: Path, **settings: Any) -> list[str]:
    """Let the records of a run say that vLLM drew it; return what `verify` finds of that."""
    events = events_of(run)
    config = events[0]["config"]
    config["rollout"] |= {"engine": "vllm", **settings}
    for step in events:
        if step["event"] == "step":
            step["engine"] = {
                "version": 0 if config["method"]["name"] == "sft" else step["step"],
                "rescored_rows": [1],
                "rescored_tokens": step["response_tokens"][1],
                "logprob_gap": 0.05,
            }
    rewrite(run, events)
    (check,) = [each for each in verify(run, files=False).checks if each.name == "rollouts"]
    return list(check.problems)


@pytest.mark.parametrize("name", ["tiny", "sft"])
def test_verify_knows_which_weights_draw_on_policy(
    name: str, small_qwen35: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward_even_tokens(monkeypatch)
    run = train(short_config(name, tmp_path, small_qwen35, "run"))
    assert drawn_by_vllm(run) == []
    (said,) = {problem.partition(": ")[2] for problem in drawn_by_vllm(run, logprob_tolerance=0.01)}
    assert said == "engine has a logprob_gap of 0.05, but may have 0.01 at most."


def test_verify_knows_the_limit_of_a_precision_and_that_of_a_resumed_run(config: Make) -> None:
    run = train(config("run", "rollout.ahead=0", "model.precision=float32"))
    assert len(drawn_by_vllm(run)) == len(steps_of(run))
    events = events_of(run)
    settings = {**events[0]["config"], "rollout": {**events[0]["config"]["rollout"]}}
    settings["rollout"]["logprob_tolerance"] = 0.1
    events.insert(2, {"event": "resumed", "step": 1, "config": settings})
    rewrite(run, events)
    (check,) = [each for each in verify(run, files=False).checks if each.name == "rollouts"]
    assert check.problems == ()


def test_verify_names_an_engine_where_the_sampler_draws(config: Make) -> None:
    run = train(config("run"))
    events = events_of(run)
    report = {"version": 0, "rescored_rows": [0], "rescored_tokens": 1, "logprob_gap": 0.0}
    next(event for event in events if event["event"] == "step")["engine"] = report
    rewrite(run, events)
    (check,) = [each for each in verify(run, files=False).checks if each.name == "rollouts"]
    assert check.problems[0] == "step 0: engine is on record, but sampler draws."


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("sft", [AHEAD], "rollout.ahead is 1, but the method sft does not use it"),
        ("dapo", [AHEAD], "Set rollout.ahead=0 or dapo.rounds=1"),
        ("tiny", ["rollout.ahead=2"], "rollout.ahead is 2"),
        ("tiny", [OVERLAP], "nothing is drawn ahead"),
        ("tiny", [AHEAD, OVERLAP, "rollout.engine=vllm"], "shares the GPU with the trainer"),
    ],
)
def test_what_cannot_be_drawn_ahead_is_refused(
    name: str, settings: list[str], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_config(preset(name), ["model.path=m", "data.path=d", *settings])


def test_overlap_with_several_processes_is_refused(config: Make) -> None:
    with pytest.raises(ConfigError, match="which works with one process only, and there are 2"):
        ranks._check_size(config("run", OVERLAP), 2, is_gpu=False)


def test_the_memory_of_the_copy_is_counted(config: Make) -> None:
    """In float32 it is as large as the weights."""
    alone, beside = measure(config("run")), measure(config("run", OVERLAP))
    assert (alone.sampler, beside.sampler) == (0, alone.weights)
    assert beside.device == alone.device + alone.weights


def test_another_lag_is_another_run(config: Make) -> None:
    train(config("run", "run.steps=2"))
    with pytest.raises(ConfigError, match=r"rollout\.ahead: was 1, is now 0"):
        train(config("run", "rollout.ahead=0"))
