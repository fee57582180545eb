"""A run that was stopped and taken up again is the run that never stopped."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from run_fixtures import OFTEN, Silent, events_of, rewrite, stop_at, tiny
from run_states import assert_same_end, sign
from safetensors.torch import load_file, save_file
from shapes import make_pictures

from bas_opd.errors import (
    BasOpdError,
    CheckpointError,
    ConfigError,
    DataError,
    ModelError,
    OutOfMemory,
    PreemptionError,
    RunDirectoryError,
)
from bas_opd.learn.learner import Learner
from bas_opd.run import loop
from bas_opd.run.checkpoint import published, read_checkpoint
from bas_opd.run.lock import locked
from bas_opd.run.record_file import read_records
from bas_opd.run.verify import verify


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pictures(tmp_path_factory.mktemp("data") / "set", n=16, seed=1).folder


@pytest.fixture
def whole(small_qwen35: Path, data: Path, tmp_path: Path) -> Path:
    """The directory of a run that was never stopped."""
    return loop.train(tiny(small_qwen35, data, tmp_path / "whole", *OFTEN), Silent()).directory


COVERING = (
    *OFTEN,
    "select.policy=covering",
    "select.correctness=true",
    "select.budget=processed_tokens",
    "select.query_ratio=0.6",
)


@pytest.mark.parametrize("poll_number", [8, 17])
def test_a_covering_run_stopped_anywhere_ends_in_the_same_state(
    poll_number: int,
    small_qwen35: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = loop.train(tiny(small_qwen35, data, tmp_path / "whole", *COVERING), Silent()).directory
    assert any(score is not None for score in events_of(whole)[-2]["scores"])
    config = tiny(small_qwen35, data, tmp_path / "run", *COVERING)
    with monkeypatch.context() as patch:
        stop_at(patch, poll_number)
        with pytest.raises(PreemptionError):
            loop.train(config, Silent())
    loop.train(config, Silent())
    assert_same_end(whole, tmp_path / "run")
    assert verify(tmp_path / "run", draws=True).is_sound


@pytest.mark.parametrize("poll_number", [1, 3, 8, 9, 12, 17, 25])
def test_stopped_anywhere_it_ends_in_the_same_state(
    poll_number: int,
    whole: Path,
    small_qwen35: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = tiny(small_qwen35, data, tmp_path / "run", *OFTEN)
    with monkeypatch.context() as patch:
        stop_at(patch, poll_number)
        with pytest.raises(PreemptionError, match="rerun the same command to resume"):
            loop.train(config, Silent())
    loop.train(config, Silent())
    assert_same_end(tmp_path / "run", whole)


def test_a_finished_run_has_nothing_left_to_do(whole: Path, small_qwen35: Path, data: Path) -> None:
    before = (whole / "records.jsonl").read_bytes()
    console = Silent()
    summary = loop.train(tiny(small_qwen35, data, whole, *OFTEN), console)
    assert "nothing is left" in console.messages[0]
    assert summary.totals["steps"] == 4
    assert (whole / "records.jsonl").read_bytes() == before


def test_prompts_are_checked_once_for_the_same_data_and_model(
    whole: Path, small_qwen35: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(*_: object) -> None:
        raise DataError("Prompts were checked.")

    monkeypatch.setattr(loop, "check_lengths", check)
    longer = (*OFTEN, "run.steps=5")
    loop.train(tiny(small_qwen35, data, whole, *longer), Silent())
    (whole / "hashes.json").unlink()
    with pytest.raises(DataError, match="Prompts were checked"):
        loop.train(tiny(small_qwen35, data, whole, *longer, "run.steps=6"), Silent())


def test_a_finished_run_can_be_prolonged(
    whole: Path, small_qwen35: Path, data: Path, tmp_path: Path
) -> None:
    longer = tiny(small_qwen35, data, tmp_path / "longer", *OFTEN, "run.steps=6")
    loop.train(longer, Silent())
    loop.train(tiny(small_qwen35, data, whole, *OFTEN, "run.steps=6"), Silent())
    assert_same_end(whole, tmp_path / "longer")


def test_a_checkpoint_that_lacks_a_total_is_completed_from_the_records(
    whole: Path, small_qwen35: Path, data: Path
) -> None:
    folder = published(whole / "checkpoints")[-1]
    state = json.loads((folder / "state.json").read_text())
    assert state["ledger"].pop("total_tokens") > 0
    (folder / "state.json").write_text(json.dumps(state))
    sign(folder)
    console = Silent()
    loop.train(tiny(small_qwen35, data, whole, *OFTEN, "run.steps=5"), console)
    assert any(text.startswith("Resuming after step 4") for text in console.messages)
    assert verify(whole).is_sound


def test_it_resumes_in_another_place_and_after_the_data_moved(
    whole: Path, small_qwen35: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_at(patch, 12)
        with pytest.raises(PreemptionError):
            loop.train(tiny(small_qwen35, data, tmp_path / "here", *OFTEN), Silent())
    shutil.move(tmp_path / "here", tmp_path / "there")
    moved = shutil.copytree(data, tmp_path / "moved")
    loop.train(tiny(small_qwen35, moved, tmp_path / "there", *OFTEN), Silent())
    assert_same_end(tmp_path / "there", whole)


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    whole: Path, small_qwen35: Path, data: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(whole, tmp_path / "damaged")
    shutil.rmtree(run / "model")
    newest = published(run / "checkpoints")[0]
    content = bytearray((newest / "teacher.safetensors").read_bytes())
    content[-1] ^= 1
    (newest / "teacher.safetensors").write_bytes(content)
    console = Silent()
    loop.train(tiny(small_qwen35, data, run, *OFTEN), console)
    assert any("teacher.safetensors has changed" in text for text in console.messages)
    assert_same_end(run, whole)


def test_without_its_teacher_it_refuses(
    whole: Path, small_qwen35: Path, data: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(whole, tmp_path / "orphan")
    shutil.rmtree(run / "model")
    for checkpoint in published(run / "checkpoints"):
        (checkpoint / "teacher.safetensors").unlink()
        sign(checkpoint)
    with pytest.raises(CheckpointError, match="teacher of this run"):
        loop.train(tiny(small_qwen35, data, run, *OFTEN), Silent())


def test_other_settings_are_refused_with_what_differs(
    whole: Path, small_qwen35: Path, data: Path
) -> None:
    config = tiny(small_qwen35, data, whole, *OFTEN, "optim.learning_rate=0.5")
    with pytest.raises(ConfigError, match=r"optim.learning_rate: was 0.001, is now 0.5"):
        loop.train(config, Silent())


def test_other_data_are_refused(whole: Path, small_qwen35: Path, tmp_path: Path) -> None:
    other = make_pictures(tmp_path / "other", n=16, seed=2).folder
    with pytest.raises(DataError, match="started on other data"):
        loop.train(tiny(small_qwen35, other, whole, *OFTEN), Silent())


def test_smaller_batches_may_be_chosen_on_the_way_and_change_rounding_only(
    whole: Path, small_qwen35: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_at(patch, 12)
        with pytest.raises(PreemptionError):
            loop.train(tiny(small_qwen35, data, run, *OFTEN), Silent())
    smaller = ("optim.tokens_per_micro_batch=1", "rollout.prompts_per_batch=1")
    loop.train(tiny(small_qwen35, data, run, *OFTEN, *smaller), Silent())
    ends = [read_checkpoint(published(path / "checkpoints")[0]) for path in (run, whole)]
    losses = [
        [e["loss"] for e in read_records(path / "records.jsonl") if e["event"] == "step"]
        for path in (run, whole)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)
    assert ends[0].step == ends[1].step


def test_a_directory_in_use_is_refused_and_its_owner_named(
    whole: Path, small_qwen35: Path, data: Path
) -> None:
    with (
        locked(whole),
        pytest.raises(RunDirectoryError, match=r"in use by process \d+ on"),
    ):
        loop.train(tiny(small_qwen35, data, whole, *OFTEN), Silent())


def test_overwriting_starts_over(whole: Path, small_qwen35: Path, data: Path) -> None:
    config = tiny(small_qwen35, data, whole, *OFTEN, "run.steps=1", "run.seed=5")
    summary = loop.train(config, Silent(), overwrite=True)
    assert summary.totals["steps"] == 1
    assert [path.name for path in published(whole / "checkpoints")] == ["step-00000001"]


def test_out_of_memory_halves_the_batch_and_changes_no_number_beyond_rounding(
    whole: Path, small_qwen35: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backward = Learner._micro_batch

    def crowded(learner: Learner, rollouts: Any, batch: Any, *args: Any) -> Any:
        if len(batch.rows) > 2:
            raise torch.OutOfMemoryError("no room")
        return backward(learner, rollouts, batch, *args)

    monkeypatch.setattr(Learner, "_micro_batch", crowded)
    console = Silent()
    loop.train(tiny(small_qwen35, data, tmp_path / "run", *OFTEN), console)
    assert any("Out of memory in the student pass" in text for text in console.messages)
    losses = [
        next(e["loss"] for e in read_records(path / "records.jsonl") if e["event"] == "step")
        for path in (tmp_path / "run", whole)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_out_of_memory_at_one_row_is_a_sentence_and_keeps_the_run(
    small_qwen35: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(Learner, "_micro_batch", full)
    with pytest.raises(OutOfMemory, match="smallest batch"):
        loop.train(tiny(small_qwen35, data, tmp_path / "run", *OFTEN), Silent())
    assert published(tmp_path / "run" / "checkpoints")


def test_fewer_steps_than_were_taken_are_refused(
    whole: Path, small_qwen35: Path, data: Path
) -> None:
    shutil.rmtree(whole / "model")
    with pytest.raises(ConfigError, match="has taken 4 steps already"):
        loop.train(tiny(small_qwen35, data, whole, *OFTEN, "run.steps=2"), Silent())
    assert published(whole / "checkpoints")


def damage(checkpoint: Path) -> None:
    content = bytearray((checkpoint / "student.safetensors").read_bytes())
    content[-1] ^= 1
    (checkpoint / "student.safetensors").write_bytes(content)


def test_overwriting_deletes_nothing_that_is_not_a_run(
    small_qwen35: Path, data: Path, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    (project / "model").mkdir(parents=True)
    (project / "model" / "thesis.tex").write_text("do not lose me")
    with pytest.raises(RunDirectoryError, match="not a run"):
        loop.train(tiny(small_qwen35, data, project, *OFTEN), Silent(), overwrite=True)
    assert (project / "model" / "thesis.tex").exists()


def test_overwriting_waits_until_the_new_run_is_sure_to_start(
    whole: Path, data: Path, tmp_path: Path
) -> None:
    for model, error in ((tmp_path / "nowhere", ModelError), (whole / "model", RunDirectoryError)):
        with pytest.raises(error):
            loop.train(tiny(model, data, whole, *OFTEN), Silent(), overwrite=True)
        assert (whole / "model" / "model.safetensors").exists()
        assert len(published(whole / "checkpoints")) == 4


def test_a_skipped_checkpoint_never_comes_back_nor_costs_an_intact_one(
    whole: Path, small_qwen35: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(run / "model")
    for checkpoint in published(run / "checkpoints")[:2]:
        damage(checkpoint)
    few = (*OFTEN, "run.keep_checkpoints=1")
    with monkeypatch.context() as patch:
        stop_at(patch, 2)
        with pytest.raises(PreemptionError, match="after step 2 of 4"):
            loop.train(tiny(small_qwen35, data, run, *few), Silent())
    assert published(run / "checkpoints")[0].name == "step-00000002"
    loop.train(tiny(small_qwen35, data, run, *few), Silent())
    assert_same_end(run, whole)
    assert len(list((run / "checkpoints").glob("passed-over-*"))) == 2


def test_records_are_kept_aside_where_a_run_starts_over(
    whole: Path, small_qwen35: Path, data: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    records = (run / "records.jsonl").read_bytes()
    for checkpoint in published(run / "checkpoints"):
        damage(checkpoint)
    shutil.rmtree(run / "model")
    loop.train(tiny(small_qwen35, data, run, *OFTEN), Silent())
    assert (run / "records-before-1.jsonl").read_bytes() == records
    assert_same_end(run, whole)


def test_another_base_model_under_the_same_path_is_refused(
    small_qwen35: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shutil.copytree(small_qwen35, tmp_path / "base")
    config = tiny(model, data, tmp_path / "run", *OFTEN, "lora.rank=4")
    with monkeypatch.context() as patch:
        stop_at(patch, 12)
        with pytest.raises(PreemptionError):
            loop.train(config, Silent())
    weights = load_file(model / "model.safetensors")
    save_file(
        {n: w + 0.01 for n, w in weights.items()}, model / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(ModelError, match=r"model\.safetensors has changed"):
        loop.train(config, Silent())


def test_a_refused_plan_leaves_the_run_sound(whole: Path, small_qwen35: Path, data: Path) -> None:
    with pytest.raises(ConfigError, match="has taken 4 steps already"):
        loop.train(tiny(small_qwen35, data, whole, *OFTEN, "run.steps=2"), Silent())
    assert verify(whole).is_sound


def test_a_run_ended_early_or_prolonged_is_sound(
    small_qwen35: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_at(patch, 19)
        with pytest.raises(PreemptionError, match="after step 2 of 4"):
            loop.train(tiny(small_qwen35, data, tmp_path / "run", *OFTEN), Silent())
    for steps in (2, 3):
        loop.train(
            tiny(small_qwen35, data, tmp_path / "run", *OFTEN, f"run.steps={steps}"), Silent()
        )
        assert verify(tmp_path / "run").is_sound


def test_candidates_beyond_the_batch_are_found(whole: Path) -> None:
    *events, last = events_of(whole)
    step = next(event for event in events if event["event"] == "step")
    step["response_tokens"] += [3, 3]
    rewrite(whole, [*events, last])
    checks = {check.name: check for check in verify(whole).checks}
    assert "response_tokens has" in str(checks["records"])


def test_a_disk_without_room_for_a_checkpoint_is_refused_before_the_first_step(
    small_qwen35: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    with pytest.raises(BasOpdError, match=r"0\.0 GB free.*bas-opd plan"):
        loop.train(tiny(small_qwen35, data, tmp_path / "run", *OFTEN), Silent())
    assert not (tmp_path / "run" / "run.json").exists()
