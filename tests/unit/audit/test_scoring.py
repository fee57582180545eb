"""The utility audit against what training observes, and what it must leave alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from audit_fixtures import Quiet, replace_part, subject_of
from run_fixtures import events_of, small_run

from bas_opd.audit.records import UtilityAudit
from bas_opd.audit.scoring import audit_utility, observed_utility
from bas_opd.errors import CheckpointError, DataError, ModelError, PreemptionError
from bas_opd.files import sha256
from bas_opd.run.checkpoint import published, read_checkpoint
from bas_opd.types import FEATURES, Hooks


def files(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): sha256(p) for p in folder.rglob("*") if p.is_file()}


def utilities(audit: UtilityAudit) -> list[float]:
    return [each.utility for each in audit.candidates]


def test_the_audit_observes_what_the_student_pass_of_training_observes(trained: Path) -> None:
    subject = subject_of(trained)
    step = subject.restore_newest()
    method = subject.method
    stages = method.stages
    (batch,) = subject.batches(subject.dataset(), "training", step=step, n=1)
    rollouts = stages.policy.generate(batch)
    rows = rollouts.candidates()
    ours = observed_utility(method, rollouts, rows)
    objective = stages.objective(stages.teacher.score(rollouts, rows))
    assert ours == stages.learner.accumulate(rollouts, rows, objective).observed
    stages.learner.zero_grad()
    # In micro-batches of one row, too.
    stages.learner.tokens_per_micro_batch = 1
    assert observed_utility(method, rollouts, rows) == pytest.approx(ours, rel=1e-4)


def test_the_first_batch_is_the_step_that_the_run_took_next(run: Path, quiet: Quiet) -> None:
    """From the checkpoint before the last, the audit meets the rollouts that the run drew."""
    shutil.rmtree(published(run / "checkpoints")[0])
    audit = audit_utility(subject_of(run, batches=1), quiet)
    (record,) = (e for e in events_of(run) if e["event"] == "step" and e["step"] == 4)
    assert audit.step == 4
    assert [each.row for each in audit.candidates] == record["candidates"]
    observed = {each.row: each.utility for each in audit.candidates}
    assert [observed[row] for row in record["selected"]] == pytest.approx(
        record["utility"], rel=1e-4
    )
    entropies = [row[FEATURES.index("mean_entropy")] for row in record["features"]]
    assert [each.entropy for each in audit.candidates] == pytest.approx(entropies)


def test_an_audit_learns_nothing_and_writes_nothing(
    run: Path, held_out: Path, quiet: Quiet
) -> None:
    before = files(run)
    subject = subject_of(run, batches=2)
    audit = audit_utility(subject, quiet)
    elsewhere = audit_utility(subject, quiet, held_out=held_out)
    assert files(run) == before
    assert (quiet.planned, quiet.done) == (4, 4)
    assert (audit.source, elsewhere.source) == ("training", "held-out")
    assert audit.dataset != elsewhere.dataset
    assert {each.batch for each in audit.candidates} == {0, 1}
    once = [{c.example for c in elsewhere.candidates if c.batch == batch} for batch in (0, 1)]
    assert not once[0] & once[1]
    assert all(each.predicted is not None for each in audit.candidates)
    snapshot = read_checkpoint(published(run / "checkpoints")[0])
    state = subject.method.stages.selector.state_dict()
    assert all(torch.equal(state[n], t) for n, t in snapshot.tensors["selector"].items())
    weights = subject.method.model.trainable()
    assert all(torch.equal(weights[n], t) for n, t in snapshot.tensors["student"].items())


def test_a_lost_teacher_is_refused_and_the_student_stands_in_if_asked(
    run: Path, quiet: Quiet
) -> None:
    newest = published(run / "checkpoints")[0]
    own = audit_utility(subject_of(run, batches=1), quiet)
    replace_part(newest, "teacher", None)
    with pytest.raises(CheckpointError, match="--teacher student"):
        audit_utility(subject_of(run, batches=1), quiet)
    stood_in = audit_utility(subject_of(run, teacher="student", batches=1), quiet)
    assert (own.teacher, stood_in.teacher) == ("own", "student")
    assert utilities(stood_in) != pytest.approx(utilities(own), rel=1e-3)


def test_the_stand_in_has_the_weights_of_the_student(run: Path, quiet: Quiet) -> None:
    stood_in = audit_utility(subject_of(run, teacher="student", batches=1), quiet)
    newest = published(run / "checkpoints")[0]
    copy = shutil.copy(newest / "student.safetensors", run.parent)
    replace_part(newest, "teacher", Path(copy))
    same = audit_utility(subject_of(run, batches=1), quiet)
    assert utilities(same) == pytest.approx(utilities(stood_in), rel=1e-5)


@pytest.mark.parametrize("lora", [(), ("lora.rank=2", "optim.learning_rate=0.02")])
def test_the_saved_student_serves_where_no_checkpoint_is_left(
    lora: tuple[str, ...], trained: Path, small_qwen35: Path, tmp_path: Path, quiet: Quiet
) -> None:
    if lora:
        run = small_run(tmp_path, small_qwen35, *lora, "run.steps=3")
    else:
        run = Path(shutil.copytree(trained, tmp_path / "run"))
    kept = audit_utility(subject_of(run, teacher="student", batches=1), quiet)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(CheckpointError, match="no intact checkpoint and does not hold"):
        audit_utility(subject_of(run, batches=1), quiet)
    notices: list[str] = []
    subject = subject_of(run, Hooks(notice=notices.append), teacher="student", batches=1)
    saved = audit_utility(subject, quiet)
    assert saved.step == kept.step
    assert utilities(saved) == pytest.approx(utilities(kept), rel=1e-5)
    assert {each.predicted for each in saved.candidates} == {None}
    assert "its selector is lost" in notices[-1]
    shutil.rmtree(run / "model")
    with pytest.raises(CheckpointError, match="nothing to audit"):
        audit_utility(subject_of(run, teacher="student", batches=1), quiet)


def test_what_is_not_the_runs_is_refused(
    trained: Path, held_out: Path, small_qwen3vl: Path, quiet: Quiet
) -> None:
    data = trained.parent / "data"
    with pytest.raises(DataError, match="is not the set that the run"):
        audit_utility(subject_of(trained, batches=1, data=held_out), quiet)
    with pytest.raises(DataError, match="nothing in it is held out"):
        audit_utility(subject_of(trained, batches=1), quiet, held_out=data)
    with pytest.raises(DataError, match="enough for 2 batches of 4, not for 3"):
        audit_utility(subject_of(trained, batches=3), quiet, held_out=held_out)
    with pytest.raises(ModelError, match="is not the one that the run"):
        audit_utility(subject_of(trained, batches=1, base=str(small_qwen3vl)), quiet)
    with pytest.raises(DataError, match="There is no run in"):
        subject_of(held_out)


def test_an_audit_stops_when_asked(trained: Path, quiet: Quiet) -> None:
    def stop() -> None:
        if quiet.done == 1:
            raise PreemptionError("SIGTERM")

    subject = subject_of(trained, Hooks(poll=stop), batches=3)
    with pytest.raises(PreemptionError):
        audit_utility(subject, quiet)
    assert quiet.done == 1
