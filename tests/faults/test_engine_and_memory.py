"""Memory that runs out, and an engine that fails, within one process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from failing_calls import NO_MEMORY, FailingAllocation
from process import Fault, Train, at, changed, fail, resumes_to
from run_states import assert_same_end, step_records

from bas_opd.learn.learner import Learner
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.rollout import Sampler
from bas_opd.run import checkpoint, state
from bas_opd.run.checkpoint import published
from bas_opd.run.record_file import RecordWriter
from bas_opd.run.verify import verify
from bas_opd.select import LearnedSelector
from bas_opd.teacher import SelfTeacher
from bas_opd.types import Rollouts

pytestmark = pytest.mark.slow

FULL = torch.OutOfMemoryError("Tried to allocate 2.00 GiB.")


def always(owner: Any, name: str) -> Fault:
    def arm() -> None:
        def crowded(*_: Any, **__: Any) -> Any:
            raise FULL

        setattr(owner, name, crowded)

    return arm


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        *((torch.nn.utils, "clip_grad_norm_"), (torch.optim.AdamW, "step")),
        *((SelfTeacher, "follow"), (LearnedSelector, "select"), (LearnedSelector, "learn")),
        *((state, "_on_host"), (checkpoint, "save_file"), (RecordWriter, "write")),
    ],
)
@pytest.mark.parametrize("error", [RuntimeError(NO_MEMORY), MemoryError()], ids=["torch", "python"])
def test_memory_that_runs_out_where_no_batch_helps_is_a_sentence_and_the_run_resumes(
    owner: Any, name: str, error: Exception, train: Train, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    ended = train(run, fault=at(owner, name, fail(error), call=2))
    assert ended.is_explained(1, "ran out of memory where no smaller batch helps"), ended
    resumes_to(run, whole, train)


def test_memory_of_the_host_that_ran_out_halves_batches_too(
    train: Train, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    ended = train(run, fault=at(SelfTeacher, "_score", fail(RuntimeError(NO_MEMORY)), before=True))
    assert ended.code == 0, ended.output
    assert "Out of memory in the teacher pass; continuing with batches of at most" in ended.output
    assert_same_end(run, whole)


@pytest.mark.parametrize("number", [200, 2_000, 6_000, 10_000, 15_000, 20_000])
def test_any_allocation_may_fail(number: int, train: Train, tmp_path: Path) -> None:
    run = tmp_path / "run"
    ended = train(run, fault=FailingAllocation(number))
    assert "Traceback" not in ended.output, ended.output
    assert ended.code in (0, 1), ended.output
    assert train(run).code == 0
    assert verify(run).is_sound


def in_the_middle_of_the_teacher() -> None:
    """Let memory run out in the second step, while the network holds the teacher's weights."""
    owner: Any = SelfTeacher
    score, calls = owner._score, 0

    def crowded(teacher: SelfTeacher, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:  # In the first step, teacher and student are still the same.
            with teacher.weights.lent():
                raise FULL
        return score(teacher, *args)

    owner._score = crowded


def test_memory_that_ran_out_in_the_teacher_leaves_the_student_its_own_weights(
    train: Train, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    ended = train(run, fault=in_the_middle_of_the_teacher)
    assert ended.code == 0, ended.output
    assert "Out of memory in the teacher pass; continuing with batches of at most" in ended.output
    # Half the limit still takes all the rows at once, so not even the rounding differs.
    assert_same_end(run, whole)


def test_memory_that_ran_out_in_the_teacher_raises_no_price_that_was_said(
    train: Train, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    settings = ["select.budget=processed_tokens", "select.query_ratio=0.9"]
    # Half the limit is less than a prompt with its rows needs.
    settings.append("teacher.tokens_per_batch=90")
    ended = train(run, *settings, fault=in_the_middle_of_the_teacher)
    assert ended.code == 0, ended.output
    assert "Out of memory in the teacher pass; continuing with batches of at most" in ended.output
    for step in step_records(run):
        assert step["processed_tokens"] == step["spent"] <= step["budget"]
    assert verify(run).is_sound


def test_memory_that_ran_out_in_the_sampler_changes_no_token(
    train: Train, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    ended = train(run, fault=at(Sampler, "_draw", fail(FULL)))
    assert ended.code == 0, ended.output
    assert "Out of memory in the rollout; continuing with batches of at most 2" in ended.output
    ours, theirs = step_records(run), step_records(whole)
    for name in ("response_tokens", "candidates", "selected", "budget"):
        assert [step[name] for step in ours] == [step[name] for step in theirs]
    losses = [[step["loss"] for step in steps] for steps in (ours, theirs)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_memory_that_ran_out_in_the_student_halves_its_batch_and_keeps_no_half_gradient(
    train: Train, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    ended = train(run, fault=at(Learner, "_micro_batch", fail(FULL)))
    assert ended.code == 0, ended.output
    assert "Out of memory in the student pass; continuing with batches of at most" in ended.output
    assert_same_end(run, whole)


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        pytest.param(always(Sampler, "_draw"), "rollout", id="in the sampler"),
        pytest.param(always(SelfTeacher, "_score"), "teacher pass", id="in the teacher"),
        pytest.param(always(Learner, "_micro_batch"), "student pass", id="in the student"),
    ],
)
def test_memory_too_small_for_one_row_is_a_sentence_with_sizes_and_the_run_resumes_later(
    fault: Fault, what: str, train: Train, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    ended = train(run, fault=fault)
    said = f"The {what} does not fit into memory even in its smallest batch"
    assert ended.is_explained(1, said), ended
    assert "Tried to allocate 2.00 GiB" in ended.output
    assert published(run / "checkpoints")
    assert train(run).code == 0
    assert_same_end(run, whole)


def test_an_engine_that_dies_costs_the_step_and_not_the_run(
    train: Train, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    dead = fail(RuntimeError("the engine died"))
    ended = train(run, fault=at(VisionLanguageModel, "extend", dead, call=5))
    assert ended.code == 1
    assert train(run).code == 0
    assert_same_end(run, whole)


def fewer(rollouts: Rollouts) -> Rollouts:
    return replace(
        rollouts,
        tokens=rollouts.tokens[:-1],
        lengths=rollouts.lengths[:-1],
        logprobs=rollouts.logprobs[:-1],
        entropies=None if rollouts.entropies is None else rollouts.entropies[:-1],
    )


def more(rollouts: Rollouts) -> Rollouts:
    return replace(
        rollouts,
        tokens=torch.cat([rollouts.tokens, rollouts.tokens[-1:]]),
        lengths=torch.cat([rollouts.lengths, rollouts.lengths[-1:]]),
        logprobs=torch.cat([rollouts.logprobs, rollouts.logprobs[-1:]]),
        entropies=None,
    )


@pytest.mark.parametrize("change", [fewer, more])
def test_an_engine_that_returns_a_wrong_number_of_responses_is_refused(
    change: Callable[[Rollouts], Rollouts], train: Train, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    ended = train(run, fault=changed(Sampler, "generate", change, calls={2}))
    assert ended.is_explained(1, "The rollouts of step 1 hold"), ended
    assert train(run).code == 0
    assert_same_end(run, whole)
