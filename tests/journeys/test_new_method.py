"""A method that the package does not have: trained, recorded, stopped and resumed by its loop."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import toy_method
from run_fixtures import OFTEN, Silent, stop_at, tiny
from run_states import assert_same_end
from shapes import make_pictures
from toy_method import Sharpen

from bas_opd.config import Config
from bas_opd.errors import PreemptionError
from bas_opd.learn import Learner, OptimizerSettings
from bas_opd.rollout import Sampler, SamplingSettings
from bas_opd.run import loop
from bas_opd.run.console import Console
from bas_opd.run.history import read_history
from bas_opd.run.manifest import published
from bas_opd.run.record import QueryRecord
from bas_opd.run.state import load_policy
from bas_opd.types import Hooks, PromptBatch, Rollouts


@pytest.fixture
def config(small_qwen35: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The settings of a run whose method is the toy."""

    def build(config: Config, hooks: Hooks, **_: Any) -> Sharpen:
        model = load_policy(config)
        learner = Learner(model, OptimizerSettings(learning_rate=1e-2, warmup_steps=0), hooks)
        sampling = SamplingSettings(per_prompt=4, max_response_tokens=6)
        return Sharpen(model, sampling, learner)

    make_pictures(tmp_path / "data", n=16, seed=1)
    monkeypatch.setattr(loop, "build_method", build)
    return lambda name: tiny(small_qwen35, tmp_path / "data", tmp_path / name, *OFTEN)


def test_it_takes_under_sixty_lines() -> None:
    assert len(Path(toy_method.__file__).read_text().splitlines()) < 60


def test_it_trains_with_the_loop_the_records_and_the_ledger_as_they_are(config: Any) -> None:
    out = io.StringIO()
    with Console(out) as console:
        summary = loop.train(config("run"), console)
    assert "step 4/4  loss" in out.getvalue()
    history = read_history(summary.directory)
    losses = [step.loss for step in history.steps if step.loss is not None]
    assert len(losses) == 4
    assert losses[-1] < losses[0] - 0.05
    assert not any(isinstance(step, QueryRecord) for step in history.steps)
    assert all(step.is_valid and not step.is_empty for step in history.steps)
    assert (summary.totals["steps"], summary.totals["calls"]) == (4, 0)
    assert summary.totals["student_tokens"] > 0


@pytest.mark.parametrize("poll", [2, 5, 7])
def test_stopped_anywhere_it_ends_in_the_same_state(
    config: Any, poll: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = loop.train(config("whole"), Silent()).directory
    with monkeypatch.context() as patch:
        stop_at(patch, poll)
        with pytest.raises(PreemptionError):
            loop.train(config("stopped"), Silent())
    assert_same_end(loop.train(config("stopped"), Silent()).directory, whole)


def test_a_step_with_nothing_to_learn_from_is_empty_and_not_broken(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = Sampler.generate

    def silent(sampler: Sampler, batch: PromptBatch) -> Rollouts:
        rollouts = generate(sampler, batch)
        return replace(rollouts, lengths=torch.zeros_like(rollouts.lengths))

    monkeypatch.setattr(Sampler, "generate", silent)
    totals = loop.train(config("run"), Silent()).totals
    assert (totals["empty_steps"], totals["skipped_steps"], totals["student_tokens"]) == (4, 0, 0)


def test_a_step_that_cannot_be_undone_leaves_no_checkpoint_of_its_own(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = loop.train(config("whole"), Silent()).directory
    with monkeypatch.context() as patch:
        stop_at(patch, 5)
        patch.setattr(Sharpen, "rollback", lambda _: False)
        with pytest.raises(PreemptionError):
            loop.train(config("stopped"), Silent())
    newest, *_ = published(whole.parent / "stopped" / "checkpoints")
    assert newest.name == "step-00000002"  # of the last whole step
    assert_same_end(loop.train(config("stopped"), Silent()).directory, whole)


def test_the_method_is_closed_when_the_run_ends_or_fails(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[int] = []
    monkeypatch.setattr(Sharpen, "close", lambda _: closed.append(1))
    loop.train(config("run"), Silent())
    stop_at(monkeypatch, 2)
    with pytest.raises(PreemptionError):
        loop.train(config("other"), Silent())
    assert closed == [1, 1]
