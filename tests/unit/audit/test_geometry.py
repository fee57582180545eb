"""Streamed gradients against stored ones, and what the audit of gradients must leave alone."""

from __future__ import annotations

import shutil
import weakref
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from audit_fixtures import Quiet, replace_part, subject_of
from run_fixtures import events_of

from bas_opd.audit import geometry
from bas_opd.audit.geometry import audit_geometry, chosen_checkpoints, why_no_geometry
from bas_opd.audit.records import Pair
from bas_opd.audit.subject import Subject
from bas_opd.errors import BasOpdError, CheckpointError
from bas_opd.run.checkpoint import published, read_checkpoint
from bas_opd.run.directory import RunDirectory
from bas_opd.select import query_budget, rollout_features
from bas_opd.types import Hooks


def whole_gradient(subject: Subject, rollouts: Any, rows: Any) -> numpy.ndarray:
    """The gradient as one float64 vector, straight from the parameters."""
    stages = subject.method.stages
    objective = stages.objective(stages.teacher.score(rollouts, rows))
    stages.learner.accumulate(rollouts, rows, objective)
    flat = [
        torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten().clone()
        for p in stages.learner.parameters
    ]
    stages.learner.zero_grad()
    return torch.cat(flat).double().numpy()


def measured(a: numpy.ndarray, b: numpy.ndarray) -> tuple[float, float, float]:
    lengths = numpy.linalg.norm(a), numpy.linalg.norm(b)
    return float(lengths[0]), float(lengths[1]), float(a @ b / lengths[0] / lengths[1])


def numbers(pair: Pair) -> tuple[float, float, float]:
    return pair.selected_norm, pair.unselected_norm, pair.cosine


def test_streaming_gives_what_stored_gradients_give(
    trained: Path, quiet: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(geometry, "CHUNK", 1000)
    subject = subject_of(trained, checkpoints=1, pairs=2)
    audit = audit_geometry(subject, quiet)
    (found,) = audit.checkpoints
    assert (found.step, quiet.planned, quiet.done) == (5, 2, 2)

    stored: list[tuple[numpy.ndarray, numpy.ndarray]] = []
    counts = []
    for batch in subject.batches(subject.dataset(), "training", step=5, n=2):
        subject.restore_newest()
        rollouts = subject.method.stages.policy.generate(batch)
        features = rollout_features(rollouts, rollouts.candidates())
        budget = query_budget("0.25", len(features))
        chosen = subject.method.stages.selector.select(features, budget, step=batch.step).rows
        rest = [row for row in features.rows if row not in chosen]
        stored.append(
            (
                whole_gradient(subject, rollouts, chosen),
                whole_gradient(subject, rollouts, rest),
            )
        )
        counts.append((len(chosen), len(rest)))
    for pair, gradients in zip(found.pairs, stored, strict=True):
        assert numbers(pair) == pytest.approx(measured(*gradients), rel=1e-5)
    means = [numpy.mean(side, axis=0) for side in zip(*stored, strict=True)]
    assert numbers(found.mean) == pytest.approx(measured(*means), rel=1e-5)
    assert [(p.selected, p.unselected) for p in found.pairs] == counts
    assert found.mean.unselected == sum(rest for _, rest in counts)


def test_the_first_selected_gradient_is_the_one_the_run_stepped_on(
    trained: Path, quiet: Quiet
) -> None:
    audit = audit_geometry(subject_of(trained, checkpoints=3, pairs=1), quiet)
    steps = {e["step"]: e for e in events_of(trained) if e["event"] == "step"}
    assert [c.step for c in audit.checkpoints] == [1, 3, 5]
    for checkpoint in audit.checkpoints[:2]:
        taken = steps[checkpoint.step]
        assert checkpoint.pairs[0].selected == len(taken["selected"])
        assert checkpoint.pairs[0].selected_norm == pytest.approx(taken["gradient_norm"], rel=1e-4)


def test_neither_weights_nor_selector_move(trained: Path, quiet: Quiet) -> None:
    notices: list[str] = []
    hooks = Hooks(notice=notices.append)
    subject = subject_of(trained, hooks, checkpoints=2, pairs=1)
    audit_geometry(subject, quiet)
    assert notices == ["At step 1 the selector had learned nothing yet: it draws at random."]
    snapshot = read_checkpoint(published(trained / "checkpoints")[0])
    selector = subject.method.stages.selector.state_dict()
    weights = subject.method.model.trainable()
    assert all(torch.equal(selector[n], t) for n, t in snapshot.tensors["selector"].items())
    assert all(torch.equal(weights[n], t) for n, t in snapshot.tensors["student"].items())
    assert all(weight.grad is None for weight in weights.values())


def test_however_many_batches_four_gradients_are_held(
    trained: Path, quiet: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[Any]] = []
    most = 0
    compute = geometry.gradient

    def counted(*args: Any) -> Any:
        nonlocal most
        result = compute(*args)
        made.append(weakref.ref(next(part for part in result if part is not None)))
        most = max(most, sum(each() is not None for each in made))
        return result

    monkeypatch.setattr(geometry, "gradient", counted)
    audit_geometry(subject_of(trained, checkpoints=1, pairs=3), quiet)
    assert len(made) == 6
    assert most == 4


def steps_chosen(run: Path, checkpoints: Path, n: int) -> list[int]:
    subject = subject_of(run, checkpoints=n)
    subject.directory = RunDirectory(path=checkpoints)
    return [int(path.name[5:]) for path in chosen_checkpoints(subject)]


def test_checkpoints_are_spread_over_the_run_with_the_newest_among_them(
    trained: Path, tmp_path: Path
) -> None:
    for step in range(10, 121, 10):
        (tmp_path / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    chosen = {n: steps_chosen(trained, tmp_path, n) for n in (1, 2, 6, 99)}
    assert chosen[1] == [120]
    assert chosen[2] == [10, 120]
    assert chosen[6] == [10, 30, 50, 80, 100, 120]
    assert chosen[99] == list(range(10, 121, 10))


def test_a_last_step_out_of_turn_does_not_crowd_out_the_others(
    trained: Path, tmp_path: Path
) -> None:
    for step in (18, 36, 54, 72, 90, 108, 111):
        (tmp_path / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    assert steps_chosen(trained, tmp_path, 6) == [18, 36, 54, 72, 90, 111]


def test_one_checkpoint_is_not_followed_along_a_run_unless_asked(run: Path, quiet: Quiet) -> None:
    for path in published(run / "checkpoints")[1:]:
        shutil.rmtree(path)
    with pytest.raises(BasOpdError, match=r"run\.keep_every=N"):
        audit_geometry(subject_of(run), quiet)
    assert why_no_geometry(subject_of(run, checkpoints=1)) is None
    shutil.rmtree(run / "checkpoints")
    assert "no checkpoint" in str(why_no_geometry(subject_of(run, checkpoints=1)))


def test_a_damaged_checkpoint_is_left_out_and_named(run: Path, quiet: Quiet) -> None:
    oldest = published(run / "checkpoints")[-1]
    (oldest / "student.safetensors").write_bytes(b"cut")
    notices: list[str] = []
    subject = subject_of(run, Hooks(notice=notices.append), checkpoints=2, pairs=1)
    audit = audit_geometry(subject, quiet)
    assert [c.step for c in audit.checkpoints] == [5]
    assert str(oldest) in notices[0]
    assert notices[0].endswith("It is left out.")


def test_a_checkpoint_without_its_teacher_is_refused_and_not_left_out(
    run: Path, quiet: Quiet
) -> None:
    replace_part(published(run / "checkpoints")[-1], "teacher", None)
    with pytest.raises(CheckpointError, match="--teacher student"):
        audit_geometry(subject_of(run, pairs=1), quiet)


def test_batches_without_both_kinds_of_rows_are_left_out(
    trained: Path, quiet: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets = iter([0, 3])
    monkeypatch.setattr(geometry, "step_budget", lambda *_: next(budgets))
    notices: list[str] = []
    subject = subject_of(trained, Hooks(notice=notices.append), checkpoints=1, pairs=2)
    audit = audit_geometry(subject, quiet)
    assert [p.selected for p in audit.checkpoints[0].pairs] == [3]
    assert notices[-1].startswith("At step 5, 1 of 2 batches are left out")
    monkeypatch.setattr(geometry, "step_budget", lambda *_: 0)
    with pytest.raises(BasOpdError, match="gave a pair of gradients"):
        audit_geometry(subject, quiet)
