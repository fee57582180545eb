"""Numbers that are not finite, and steps at the edges of what a step can be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from process import Fault, Train, changed
from run_states import final_state, step_records

from bas_opd.learn import Learner, distillation
from bas_opd.model.processing import Processor
from bas_opd.rollout import Sampler
from bas_opd.run.checkpoint import published, read_checkpoint
from bas_opd.select import LearnedSelector
from bas_opd.teacher import LocalScores, SelfTeacher
from bas_opd.types import Rollouts

pytestmark = pytest.mark.slow

NAN, INF = float("nan"), float("inf")


def assert_finite(run: Path) -> None:
    """No weight, moment, average, statistic or label of the end is anything but a number."""
    for name, tensor in final_state(run)["tensors"].items():
        assert tensor.isfinite().all(), name


def inf_gradient() -> None:
    owner: Any = Learner
    accumulate, calls = owner.accumulate, 0

    def overflowing(student: Learner, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        result = accumulate(student, *args)
        if calls == 2:
            gradient = student.parameters[0].grad
            assert gradient is not None
            gradient.view(-1)[0] = INF
        return result

    owner.accumulate = overflowing


def with_logits(change: Callable[[torch.Tensor], torch.Tensor]) -> Fault:
    """Let the teacher's logits of the second step be others."""

    def alter(scores: LocalScores) -> LocalScores:
        head: Any = SimpleNamespace(logits=lambda hidden: change(scores.head.logits(hidden)))
        return replace(scores, head=head)

    return changed(SelfTeacher, "score", alter, calls={2})


SKIPPED = [
    pytest.param(
        changed(distillation, "backward_in_chunks", lambda r: (r[0] * NAN, r[1]), calls={2}),
        id="a loss that is not a number",
    ),
    pytest.param(inf_gradient, id="an infinite gradient"),
    pytest.param(with_logits(lambda x: x * NAN), id="a teacher that says nothing but NaN"),
    pytest.param(with_logits(lambda x: x - INF), id="a teacher that rules out every token"),
]


@pytest.mark.parametrize("fault", SKIPPED)
def test_a_step_that_is_not_finite_is_skipped_and_counted_with_its_rows(
    fault: Fault, train: Train, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    ended = train(run, fault=fault)
    assert ended.code == 0, ended.output
    assert "skipped: the loss or its gradient is not finite" in ended.output
    steps = step_records(run)
    assert [step["is_valid"] for step in steps] == [True, False, True, True]
    assert steps[1]["selected"]
    assert steps[1]["examples"]
    assert final_state(run)["ledger"]["skipped_steps"] == 1
    assert_finite(run)


def test_a_skipped_step_leaves_weights_and_teacher_as_they_were(
    train: Train, tmp_path: Path
) -> None:
    fault = changed(distillation, "backward_in_chunks", lambda r: (r[0] * NAN, r[1]), calls={2})
    train(tmp_path / "run", "run.steps=2", "run.keep_checkpoints=9", fault=fault)
    after, before = (read_checkpoint(p) for p in published(tmp_path / "run" / "checkpoints"))
    for part in ("student", "optimiser", "teacher"):
        for name, tensor in before.tensors[part].items():
            assert torch.equal(after.tensors[part][name], tensor), name


def test_too_many_such_steps_in_a_row_stop_the_run_with_its_last_good_state(
    train: Train, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    fault = changed(
        distillation, "backward_in_chunks", lambda r: (r[0] * NAN, r[1]), calls={2, 3, 4}
    )
    ended = train(run, "run.max_bad_steps=2", fault=fault)
    assert ended.is_explained(1, "not finite for 2 steps in a row, up to step 3"), ended
    assert str(run / "checkpoints") in " ".join(ended.output.split())
    assert [step["is_valid"] for step in step_records(run)] == [True, False, False]
    assert train(run).code == 0  # A second try from there, its fault gone.
    assert_finite(run)


def nan_utility(result: torch.Tensor) -> torch.Tensor:
    result[0] = NAN
    return result


def nan_feature(rollouts: Rollouts) -> Rollouts:
    assert rollouts.entropies is not None
    rollouts.entropies[rollouts.candidates()[0], 0] = NAN
    return rollouts


def all_empty(rollouts: Rollouts) -> Rollouts:
    return replace(rollouts, lengths=torch.zeros_like(rollouts.lengths))


def one_empty(rollouts: Rollouts) -> Rollouts:
    lengths = rollouts.lengths.clone()
    lengths[rollouts.candidates()[0]] = 0
    return replace(rollouts, lengths=lengths)


def endless() -> None:
    load = Processor.load

    def without_end(*args: Any, **kwargs: Any) -> Processor:
        return replace(load(*args, **kwargs), eos_ids=())

    Processor.load = without_end  # pyright: ignore[reportAttributeAccessIssue]


def few_tokens(logits: torch.Tensor) -> torch.Tensor:
    """Leave the teacher three tokens, fewer than the k that are compared."""
    kept = logits.topk(3).indices
    return torch.full_like(logits, -INF).scatter(-1, kept, logits.gather(-1, kept))


def constant_feature() -> None:
    select = LearnedSelector.select

    def levelled(self: LearnedSelector, features: Any, *args: Any, **kwargs: Any) -> Any:
        features.values[:] = 1.0
        return select(self, features, *args, **kwargs)

    owner: Any = LearnedSelector
    owner.select = levelled


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        pytest.param(
            changed(distillation, "token_utility", nan_utility, calls={2}),
            {"dropped_labels": 1, "skipped_steps": 0},
            id="a utility that is not a number",
        ),
        pytest.param(
            changed(Sampler, "generate", nan_feature, calls={2, 3}),
            {"skipped_steps": 0},
            id="a feature that is not a number",
        ),
        pytest.param(
            with_logits(few_tokens), {"skipped_steps": 0}, id="a teacher with fewer than k tokens"
        ),
        pytest.param(
            changed(Sampler, "generate", all_empty, calls={2}),
            {"empty_steps": 1, "skipped_steps": 0},
            id="responses that are all empty",
        ),
        pytest.param(
            changed(Sampler, "generate", one_empty, calls={2}),
            {"empty_steps": 0, "skipped_steps": 0},
            id="one empty response",
        ),
        pytest.param(endless, {"skipped_steps": 0}, id="responses that never end"),
        pytest.param(
            changed(distillation, "token_utility", torch.ones_like, calls={1, 2, 3, 4}),
            {"skipped_steps": 0, "learned_steps": 4},
            id="utilities that are all equal",
        ),
        pytest.param(
            constant_feature,
            {"skipped_steps": 0, "learned_steps": 4},
            id="features that never change",
        ),
    ],
)
def test_the_run_continues_and_stays_finite_with(
    fault: Fault, expected: dict[str, int], train: Train, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    ended = train(run, fault=fault)
    assert ended.code == 0, ended.output
    assert_finite(run)
    state = final_state(run)
    assert {name: state["ledger"][name] for name in expected} == expected
    assert state["ledger"]["overrun"] == 0
    assert state["step"] == 4


def test_an_empty_response_is_no_candidate(train: Train, tmp_path: Path) -> None:
    train(tmp_path / "run", fault=changed(Sampler, "generate", one_empty, calls={2}))
    _, step, *_ = step_records(tmp_path / "run")
    (row,) = (row for row, tokens in enumerate(step["response_tokens"]) if not tokens)
    assert row not in step["candidates"]


def test_a_budget_of_no_query_is_refused_before_anything_is_written(
    train: Train, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    ended = train(run, "select.query_ratio=0.01")
    assert ended.code == 2, ended.output
    assert "K pays for no query at any step" in ended.output
    assert not run.exists()
