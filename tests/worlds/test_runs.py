"""Runs of several processes: the records, ledgers and checkpoints of one, and any can resume."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import socket
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from baseline_fixtures import SHORT, reward_even_tokens
from process import ask_to_stop, at, die, fail
from ranks import Start, Train, train_in_world
from run_fixtures import events_of
from run_states import assert_same_end, assert_same_run, steps_of
from safetensors.torch import load_file
from shapes import make_pictures
from small_models import build_small_model
from typer.testing import CliRunner

from bas_opd.cli.main import app
from bas_opd.commands.export import export
from bas_opd.compute import eight_bits
from bas_opd.compute.world import World
from bas_opd.config import preset
from bas_opd.learn import Learner
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.rollout import Sampler
from bas_opd.run import checkpoint
from bas_opd.run.checkpoint import read_checkpoint
from bas_opd.run.manifest import published, step_of
from bas_opd.run.verify import verify
from bas_opd.teacher import SelfTeacher


def assert_sound(run: Path) -> None:
    checked = verify(run)
    assert checked.is_sound, checked


def assert_ended(ended: list[Any], code: int, sentence: str) -> None:
    """All ended with a code, and the leader alone said why."""
    assert [each.code for each in ended] == [code] * len(ended), ended
    assert sentence in " ".join(ended[0].output.split()), ended[0].output
    assert all("Traceback" not in each.output for each in ended), ended
    assert not any(each.output for each in ended[1:]), ended


@pytest.mark.parametrize("size", [2, 3])
def test_a_run_of_several_processes_is_that_of_one(size: int, whole: dict[int, Path]) -> None:
    assert_same_run(whole[size], whole[1])
    assert_sound(whole[size])
    for step in steps_of(whole[size]):
        assert len(step["student_tokens_of_ranks"]) == size
        assert sum(step["student_tokens_of_ranks"]) == step["student_tokens"]
        assert step["idle_passes"] >= step["student_tokens_of_ranks"].count(0)
    assert events_of(whole[size])[0]["environment"]["processes"] == size
    saved = [sorted(file.name for file in (whole[n] / "model").iterdir()) for n in (1, size)]
    assert saved[0] == saved[1]


def test_a_teacher_that_is_another_model_teaches_several_processes_like_one(
    whole: dict[int, Path], train: Train, tmp_path: Path
) -> None:
    other = build_small_model(tmp_path / "other", family="qwen3_vl", hidden=32, layers=2, seed=5)
    for size in (1, 2, 3):
        ended = train(size, tmp_path / str(size), f"teacher.path={other}")
        assert [each.code for each in ended] == [0] * size, ended
        assert_sound(tmp_path / str(size))
        if size > 1:
            assert_same_run(tmp_path / str(size), tmp_path / "1")
    own, others = steps_of(whole[2])[0], steps_of(tmp_path / "2")[0]
    assert own["loss"] != pytest.approx(others["loss"], rel=0.01)
    stop = on_last(at(Sampler, "generate", ask_to_stop, call=3, before=True))
    stopped = train(2, tmp_path / "run", f"teacher.path={other}", fault=stop)
    assert [each.code for each in stopped] == [75] * 2, stopped
    ended = train(2, tmp_path / "run", f"teacher.path={other}")
    assert [each.code for each in ended] == [0] * 2, ended
    assert_same_end(tmp_path / "run", tmp_path / "2")


def test_in_host_memory_it_teaches_the_same_bytes_layer_by_layer(
    train: Train, tmp_path: Path
) -> None:
    other = build_small_model(
        tmp_path / "other", family="qwen3_vl", hidden=32, layers=2, tied=False, seed=5
    )
    # Batches of one row: ranks have different numbers of them.
    settings = (f"teacher.path={other}", "teacher.tokens_per_batch=1")
    groups = {1: (), 2: (), 3: (), 4: ("shard.replicas=2",)}
    for size, cut in groups.items():
        for form in ("false", "true"):
            run = tmp_path / f"{size}-{form}"
            ended = train(size, run, *settings, *cut, f"optim.offload={form}")
            assert [each.code for each in ended] == [0] * size, ended
        assert_same_end(tmp_path / f"{size}-true", tmp_path / f"{size}-false")
        assert_sound(tmp_path / f"{size}-true")
    stop = on_last(at(Sampler, "generate", ask_to_stop, call=3, before=True))
    stopped = train(2, tmp_path / "run", *settings, "optim.offload=true", fault=stop)
    assert [each.code for each in stopped] == [75] * 2, stopped
    ended = train(2, tmp_path / "run", *settings, "optim.offload=false")
    assert [each.code for each in ended] == [0] * 2, ended
    assert_same_end(tmp_path / "run", tmp_path / "2-true")


def test_so_it_does_when_the_memory_of_one_rank_is_full_in_its_pass(
    train: Train, tmp_path: Path
) -> None:
    other = build_small_model(tmp_path / "other", family="qwen3_vl", hidden=32, layers=2, seed=5)
    settings = (f"teacher.path={other}", "optim.offload=true")
    whole = train(2, tmp_path / "whole", *settings)
    assert [each.code for each in whole] == [0] * 2, whole

    def crowd(rank: int) -> None:
        turn, calls = SelfTeacher._turn, 0

        def crowded(teacher: SelfTeacher, work: Any, batches: Any) -> Any:
            def full(own: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == 2 and rank == 1:
                    raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB.")
                return work(own)

            return turn(teacher, full, batches)

        SelfTeacher._turn = crowded  # type: ignore[method-assign]

    ended = train(2, tmp_path / "run", *settings, fault=crowd)
    assert [each.code for each in ended] == [0] * 2, ended
    assert "Out of memory in the teacher pass" in " ".join(ended[0].output.split())
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    assert_sound(tmp_path / "run")


@pytest.mark.parametrize("after", [1, 2, 3])
@pytest.mark.parametrize("before", [1, 2, 3])
def test_any_number_of_processes_resumes_what_any_number_has_saved(
    before: int, after: int, stopped: dict[int, Path], whole: dict[int, Path], train: Train,
    tmp_path: Path,
) -> None:  # fmt: skip
    run = shutil.copytree(stopped[before], tmp_path / "run")
    words = train(after, run, f"run.output={run}")
    assert [each.code for each in words] == [0] * after, words
    assert "Resuming after step 2 of 4" in words[0].output
    assert ("processes, there are now" in words[0].output) == (before != after)
    assert_same_run(run, whole[1])
    assert_sound(run)
    if before == after:
        assert_same_end(run, whole[before])


def test_rollouts_one_step_ahead_are_those_of_one_process_and_any_number_resumes(
    train: Train, tmp_path: Path
) -> None:
    for size in (1, 2):
        ended = train(size, tmp_path / str(size), "rollout.ahead=1")
        assert [each.code for each in ended] == [0] * size, ended
        assert_sound(tmp_path / str(size))
    assert [step["sampled_at"] for step in steps_of(tmp_path / "2")] == [0, 0, 1, 2]
    assert_same_run(tmp_path / "2", tmp_path / "1")
    # The fourth batch is drawn in the third step.
    stop = on_last(at(Sampler, "generate", ask_to_stop, call=4, before=True))
    stopped = train(2, tmp_path / "stopped", "rollout.ahead=1", fault=stop)
    assert [each.code for each in stopped] == [75] * 2, stopped
    for size in (1, 2):
        run = shutil.copytree(tmp_path / "stopped", tmp_path / f"resumed-{size}")
        words = train(size, run, "rollout.ahead=1", f"run.output={run}")
        assert [each.code for each in words] == [0] * size, words
        assert "Resuming after step 2 of 4" in words[0].output
        assert_same_run(run, tmp_path / "1")
    assert_same_end(tmp_path / "resumed-2", tmp_path / "2")


def test_one_process_reads_the_checkpoint_of_three_and_so_does_torch(
    whole: dict[int, Path],
) -> None:
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    path = published(whole[3] / "checkpoints")[0]
    student = dict(read_checkpoint(path).tensors["student"])
    alone = read_checkpoint(published(whole[1] / "checkpoints")[0]).tensors["student"]
    assert {n: t.shape for n, t in student.items()} == {n: t.shape for n, t in alone.items()}
    only = path.parent / "read-by-torch"
    only.mkdir()
    for file in path.glob("student-*"):
        shutil.copy(file, only)
    found = {name: torch.zeros_like(tensor) for name, tensor in student.items()}
    with warnings.catch_warnings(action="ignore"):  # It says that there is one process.
        load(found, storage_reader=HuggingFaceStorageReader(str(only)), no_dist=True)
    shutil.rmtree(only)
    assert all(torch.equal(found[name], student[name]) for name in student)


def test_a_checkpoint_of_two_processes_is_exported(whole: dict[int, Path], tmp_path: Path) -> None:
    newest, before = published(whole[2] / "checkpoints")
    assert step_of(before) == 3
    exported = export(whole[2], tmp_path / "out", step=3)
    assert (exported.step, exported.is_final) == (3, False)
    weights = load_file(tmp_path / "out" / "model.safetensors")
    for path, is_same in ((before, True), (newest, False)):
        student = read_checkpoint(path).tensors["student"]
        assert student.keys() <= weights.keys()
        assert is_same == all(torch.equal(weights[name], student[name]) for name in student)


def test_a_checkpoint_that_lacks_a_piece_is_skipped(
    stopped: dict[int, Path], train: Train, tmp_path: Path
) -> None:
    run = shutil.copytree(stopped[3], tmp_path / "run")
    next(published(run / "checkpoints")[0].glob("teacher-00002*")).unlink()
    ended = train(2, run, f"run.output={run}")
    assert "lacks or adds files: teacher-00002" in " ".join(ended[0].output.split())
    assert "Resuming after step 1 of 4" in ended[0].output
    assert_sound(run)


@pytest.mark.parametrize("name", ["sft", "sft-unfiltered", "grpo-released", "dapo", "opsd", "grpo"])
def test_every_method_trains_with_several_processes(
    name: str, model: Path, data: Path, tmp_path: Path
) -> None:
    def fault(_: int) -> None:
        reward_even_tokens(pytest.MonkeyPatch())

    extra = ["optim.learning_rate=1e-5", "rollout.per_prompt=2"]
    if name == "grpo":
        extra += ["lora.rank=2", "grpo.updates_per_step=2"]
    for size, run, reshard in ((1, "1", False), (2, "2", False), (2, "by layer", True)):
        paths = [f"model.path={model}", f"data.path={data}", f"run.output={tmp_path / run}"]
        how = f"shard.reshard={str(reshard).lower()}"
        words = ["train", str(preset(name)), *paths, *SHORT, *extra, how]
        ended = train_in_world(size, words, fault).wait()
        assert [each.code for each in ended] == [0] * size, ended
    for run in ("2", "by layer"):
        assert_same_run(tmp_path / run, tmp_path / "1")
        if name != "sft":  # verify reads its responses and finds other grades than these.
            assert_sound(tmp_path / run)


def test_adapters_of_two_processes_are_exported_and_resumed_by_others(
    model: Path, train: Train, tmp_path: Path
) -> None:
    lora, run = ("lora.rank=2", "lora.alpha=4"), tmp_path / "run"
    stop = on_last(at(Sampler, "generate", ask_to_stop, call=3, before=True))
    stopped = train(2, run, *lora, fault=stop)
    assert [each.code for each in stopped] == [75] * 2, stopped
    student = read_checkpoint(published(run / "checkpoints")[0]).tensors["student"]
    export(run, tmp_path / "out", step=2)
    merged, base = (load_file(each / "model.safetensors") for each in (tmp_path / "out", model))
    changed = {name for name in base if not torch.equal(merged[name], base[name])}
    adapted = {name.removesuffix(".lora_A.default.weight") for name in student} - set(student)
    assert changed == {f"{name.removeprefix('base_model.model.')}.weight" for name in adapted}
    for name in adapted:
        before, after = (each[f"{name[17:]}.weight"] for each in (base, merged))
        a, b = (student[f"{name}.lora_{side}.default.weight"] for side in "AB")
        assert torch.allclose(after - before, 2 * b @ a, rtol=1e-3, atol=1e-7)
    ended = train(1, tmp_path / "alone", *lora)
    assert [each.code for each in ended] == [0], ended
    for size in (1, 2, 3):
        again = shutil.copytree(run, tmp_path / str(size))
        ended = train(size, again, *lora)
        assert [each.code for each in ended] == [0] * size, ended
        assert "Resuming after step 2 of 4" in ended[0].output
        assert_same_run(again, tmp_path / "alone")
        assert_sound(again)


def test_a_checkpoint_of_two_processes_is_audited_like_that_of_one(
    whole: dict[int, Path], tmp_path: Path
) -> None:
    found = []
    for size in (1, 2):
        run = shutil.copytree(whole[size], tmp_path / str(size))
        few = ("--batches", "1", "--pairs", "1", "--checkpoints", "1", "--device", "cpu")
        result = CliRunner().invoke(app, ["audit", str(run), *few])
        assert result.exit_code == 0, result.output
        found.append([json.loads(file.read_text()) for file in sorted((run / "audit").iterdir())])
    assert all(any(each.get(key) for each in found[1]) for key in ("candidates", "checkpoints"))
    for one, two in zip(*found, strict=True):
        for mine, other in zip(one.get("candidates", []), two.get("candidates", []), strict=True):
            assert mine["utility"] == pytest.approx(other["utility"], rel=0.01)
            assert mine["predicted"] == pytest.approx(other["predicted"], rel=0.01, abs=1e-4)
        for mine, other in zip(one.get("checkpoints", []), two.get("checkpoints", []), strict=True):
            assert mine["mean"] == pytest.approx(other["mean"], rel=0.01)


def test_state_in_host_memory_changes_nothing(
    train: Train, whole: dict[int, Path], tmp_path: Path
) -> None:
    ended = train(2, tmp_path / "run", "optim.offload=true")
    assert [each.code for each in ended] == [0, 0], ended
    assert_same_end(tmp_path / "run", whole[2])


def test_moments_in_8_bits_are_resumed_by_another_number_of_processes(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eight_bits, "LEAST_ROW", 8)  # The rows of this model are short.
    alone, run = tmp_path / "alone", tmp_path / "run"
    for size, path, steps in ((1, alone, 4), (2, run, 2), (3, run, 4)):
        ended = train(size, path, "optim.moments=8bit", f"run.steps={steps}")
        assert [each.code for each in ended] == [0] * size, ended
    assert "Resuming after step 2 of 4" in ended[0].output
    assert_same_run(run, alone)
    assert_sound(run)
    kept = read_checkpoint(published(run / "checkpoints")[0]).tensors["optimiser"]
    assert any(tensor.dtype is torch.uint8 for tensor in kept.values())


def test_evaluation_during_training_changes_nothing(
    train: Train, whole: dict[int, Path], tmp_path: Path
) -> None:
    make_pictures(tmp_path / "val", n=4, seed=9, size=(96, 96))
    ended = train(2, tmp_path / "run", "eval.every=2", f"eval.data={tmp_path / 'val'}")
    assert [each.code for each in ended] == [0, 0], ended
    assert sum(event["event"] == "evaluation" for event in events_of(tmp_path / "run")) == 3
    ends = [
        read_checkpoint(published(run / "checkpoints")[0]) for run in (tmp_path / "run", whole[2])
    ]
    for name, tensor in ends[0].tensors["student"].items():
        assert torch.equal(tensor, ends[1].tensors["student"][name])


def test_a_signal_to_one_process_stops_all_with_a_checkpoint(
    stopped: dict[int, Path],
) -> None:
    for size, run in stopped.items():
        assert published(run / "checkpoints")[0].name == "step-00000002", size
        assert not list(run.rglob(".*.partial"))


def test_a_signal_to_every_process_does_too(start: Start, whole: Any, tmp_path: Path) -> None:
    ranks = start(2, tmp_path / "run", "run.steps=200")
    ranks.wait_for("step 1/200")
    for rank in (0, 1):
        ranks.send(rank, signal.SIGTERM)
    ended = ranks.wait()
    assert [each.code for each in ended] == [75, 75], ended
    assert "Stopped by SIGTERM after step" in ended[0].output
    assert published(tmp_path / "run" / "checkpoints")


def test_a_process_that_is_killed_ends_all_and_costs_one_step(
    start: Start, train: Train, whole: dict[int, Path], tmp_path: Path
) -> None:
    ranks = start(2, tmp_path / "run")
    ranks.wait_for("step 2/4")
    ranks.send(1, signal.SIGKILL)
    leader, other = ranks.wait(60)
    assert other.code == -signal.SIGKILL
    if leader.code:  # It may have finished before.
        assert "waited for the others in vain" in " ".join(leader.output.split())
    assert [each.code for each in train(2, tmp_path / "run")] == [0, 0]
    assert_same_run(tmp_path / "run", whole[2])
    assert_same_end(tmp_path / "run", whole[2])


@pytest.mark.parametrize(
    ("rank", "name", "before"),
    [
        (1, "save_file", True),
        (0, "save_file", False),
        (0, "write_json", False),
        (1, "sha256", True),
    ],
)
def test_killed_while_it_saves_a_run_resumes_to_the_same_end(
    rank: int, name: str, before: bool, train: Train, whole: dict[int, Path], tmp_path: Path
) -> None:
    arm = at(checkpoint, name, die, call=4, before=before)
    ended = train(2, tmp_path / "run", fault=lambda number: arm() if number == rank else None)
    assert ended[rank].code == -signal.SIGKILL
    assert ended[1 - rank].code not in (0, None)
    assert [each.code for each in train(2, tmp_path / "run")] == [0, 0]
    assert_same_end(tmp_path / "run", whole[2])
    assert not list((tmp_path / "run").rglob(".*"))


@pytest.mark.parametrize(
    ("rank", "changes"),
    [(0, ()), (1, ("shard.reshard=true",)), (2, ())],
)
def test_killed_at_any_exchange_a_run_resumes_to_the_same_end(
    rank: int, changes: tuple[str, ...], train: Train, whole: dict[int, Path], tmp_path: Path
) -> None:
    run, chance = tmp_path / "run", random.Random(rank)
    name, calls = ("begin_gather", (5, 25)) if changes else ("_exchange", (10, 90))
    for _ in range(2):
        # Later than the start, and before the end of what is left of it.
        arm = at(World, name, die, call=chance.randrange(*calls), before=chance.random() < 0.5)
        ended = train(
            3, run, *changes, fault=lambda number, arm=arm: arm() if number == rank else None
        )
        assert ended[rank].code == -signal.SIGKILL
        assert all(each.code for each in ended), ended
    assert [each.code for each in train(3, run, *changes)] == [0] * 3
    undisturbed = whole[3]
    if changes:
        undisturbed = tmp_path / "undisturbed"
        assert [each.code for each in train(3, undisturbed, *changes)] == [0] * 3
    assert_same_end(run, undisturbed)
    assert not list(run.rglob(".*"))


def test_stopped_at_any_exchange_a_run_by_layers_resumes_to_the_same_end(
    train: Train, tmp_path: Path
) -> None:
    whole, chance = tmp_path / "whole", random.Random(0)
    assert [each.code for each in train(2, whole, "shard.reshard=true")] == [0, 0]
    for moment in range(4):
        run, rank = tmp_path / str(moment), chance.randrange(2)
        stop = at(World, "begin_gather", ask_to_stop, call=chance.randrange(5, 60), before=True)
        ended = train(
            2,
            run,
            "shard.reshard=true",
            fault=lambda each, stop=stop, rank=rank: stop() if each == rank else None,
        )
        assert [each.code for each in ended] == [75, 75], ended
        assert [each.code for each in train(2, run, "shard.reshard=true")] == [0, 0]
        assert_same_end(run, whole)


def on_last(arm: Callable[[], None]) -> Callable[[int], None]:
    """Let something go wrong on rank 1 alone."""
    return lambda rank: arm() if rank == 1 else None


@pytest.mark.parametrize("owner", [Sampler, SelfTeacher, Learner], ids=lambda each: each.__name__)
def test_all_shrink_their_batches_when_the_memory_of_one_is_full(
    owner: Any, train: Train, whole: dict[int, Path], tmp_path: Path
) -> None:
    name = {Sampler: "_draw", SelfTeacher: "_score", Learner: "_micro_batch"}[owner]
    full = fail(MemoryError("The memory of one process is full."))
    if owner is SelfTeacher:
        name, owner = "response_hidden", VisionLanguageModel
    ended = train(2, tmp_path / "run", fault=on_last(at(owner, name, full, call=2, before=True)))
    assert [each.code for each in ended] == [0, 0], ended
    assert "Out of memory in the" in ended[0].output
    assert_same_run(tmp_path / "run", whole[1])


def test_a_picture_that_one_process_cannot_read_stops_all_which_resume(
    train: Train, whole: dict[int, Path], tmp_path: Path
) -> None:
    from bas_opd.errors import DataError

    lost = fail(DataError("A picture is lost. Restore it."))
    fault = on_last(at(Sampler, "_encode", lost, call=3, before=True))
    assert_ended(
        train(2, tmp_path / "run", fault=fault),
        1,
        f"bas-opd: Rank 1 on {socket.gethostname()}: A picture is lost.",
    )
    assert [each.code for each in train(2, tmp_path / "run")] == [0, 0]
    assert_same_end(tmp_path / "run", whole[2])


def test_a_disk_that_is_full_for_one_process_costs_no_checkpoint(
    train: Train, whole: dict[int, Path], tmp_path: Path
) -> None:
    full = fail(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a file"))
    ended = train(2, tmp_path / "run", fault=on_last(at(checkpoint, "save_file", full, call=5)))
    assert_ended(ended, 1, f"bas-opd: Rank 1 on {socket.gethostname()}: The run in")
    assert "a file: No space left on device." in " ".join(ended[0].output.split())
    assert [each.code for each in train(2, tmp_path / "run")] == [0, 0]
    assert_same_end(tmp_path / "run", whole[2])


def test_an_unforeseen_error_of_one_process_is_a_sentence_of_the_leader(
    train: Train, tmp_path: Path
) -> None:
    broken = fail(TypeError("It is broken."))
    ended = train(2, tmp_path / "run", fault=on_last(at(Sampler, "_draw", broken, call=2)))
    assert [each.code for each in ended] == [70, 70], ended
    assert "bas-opd: Rank 1 on" in ended[0].output
    assert "failed: TypeError: It is broken." in ended[0].output
    assert "Traceback" in ended[1].output
