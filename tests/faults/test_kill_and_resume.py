"""Killed or stopped anywhere, a run that is taken up again ends as if nothing had happened."""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from process import Command, Fault, Train, ask_to_stop, at, bas_opd, die, resumes_to, torn_record
from run_states import assert_same_end, step_records

from bas_opd import disk
from bas_opd.learn.learner import Learner
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.rollout import Sampler
from bas_opd.run import checkpoint, steps
from bas_opd.run.checkpoint import published
from bas_opd.run.directory import RunDirectory
from bas_opd.run.record_file import RecordWriter, read_records
from bas_opd.run.state import TrainState
from bas_opd.run.verify import verify
from bas_opd.select import LearnedSelector
from bas_opd.teacher import SelfTeacher

PREEMPTED = 75
MOMENTS = 30


def half_written(part: str) -> Fault:
    """Arm a kill in the middle of one file of the second checkpoint."""

    def arm() -> None:
        save_file = checkpoint.save_file

        def torn(tensors: Any, path: Path, header: Any) -> None:
            save_file(tensors, path, header)
            if path.stem == part and "00000002" in path.parent.name:
                os.truncate(path, path.stat().st_size // 2)
                die()

        checkpoint.save_file = torn

    return arm


def model_replaced() -> None:
    """Arm a kill before the saved model is renamed to its place."""
    replace = os.replace

    def fatal(source: Any, target: Any) -> None:
        if Path(target).name == "model":
            die()
        replace(source, target)

    os.replace = fatal


def kill(owner: Any, name: str, sentence: str, *, call: int = 2, before: bool = False) -> Any:
    return pytest.param(at(owner, name, die, call=call, before=before), id=sentence)


KILLS = [
    kill(RunDirectory, "claim", "before the run is written down", call=1, before=True),
    kill(os, "replace", "while the hashes of its files are written down", call=1, before=True),
    kill(os, "replace", "while the run is written down", call=4, before=True),
    kill(RunDirectory, "claim", "after the run is written down", call=1),
    kill(RecordWriter, "write", "after the first record", call=1),
    kill(Sampler, "generate", "after the rollouts"),
    kill(VisionLanguageModel, "extend", "in the middle of a response", call=5),
    kill(LearnedSelector, "select", "after the selection"),
    kill(SelfTeacher, "_score", "in the teacher, its weights in place", before=True),
    kill(SelfTeacher, "score", "after the teacher"),
    kill(Learner, "accumulate", "with gradients and no update"),
    kill(Learner, "update", "after the optimizer, before the average"),
    kill(SelfTeacher, "follow", "after the average, before replay"),
    kill(LearnedSelector, "learn", "after the predictor, before the record"),
    pytest.param(torn_record(die), id="in the middle of a record"),
    kill(RecordWriter, "write", "after the record, before its checkpoint", call=3),
    kill(TrainState, "capture", "after the copy of the state"),
    *(
        pytest.param(half_written(part), id=f"in the middle of the {part}'s file")
        for part in ("student", "optimiser", "teacher", "selector")
    ),
    kill(checkpoint, "_manifest", "before the manifest", before=True),
    kill(os, "rename", "before the rename of a checkpoint", before=True),
    kill(os, "rename", "after the rename, before it is on disk"),
    kill(checkpoint, "retain", "between rename and retention", call=3, before=True),
    kill(disk.shutil, "rmtree", "after an old checkpoint was removed", call=1),
    kill(TrainState, "capture", "before the last checkpoint", call=4, before=True),
    kill(steps, "_save_model", "before the model is saved", call=1, before=True),
    pytest.param(model_replaced, id="before the model is put in its place"),
    kill(steps, "_save_model", "after the model, before the closing record", call=1),
    kill(RecordWriter, "write", "after the closing record", call=6),
]


@pytest.mark.slow
@pytest.mark.parametrize("fault", KILLS)
def test_killed(fault: Fault, train: Train, whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    ended = train(run, fault=fault)
    assert ended.code == -signal.SIGKILL, ended.output
    resumes_to(run, whole, train)


def test_calls_that_a_kill_lost_are_counted(train: Train, whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"

    def die_in_the_second_step() -> None:
        # A thread writes the first step's checkpoint: without it, that step's calls are lost too.
        while not published(run / "checkpoints"):
            time.sleep(0.002)
        die()

    killed = train(run, fault=at(SelfTeacher, "score", die_in_the_second_step, call=2))
    assert killed.code == -signal.SIGKILL
    ended = train(run)
    assert re.search(r"made again after a kill\W+3\b", ended.output), ended.output
    assert_same_end(run, whole)
    for path, repeated in ((run, 3), (whole, 0)):
        notes = {check.name: check.note for check in verify(path).checks}
        note = f"14 teacher calls charged, {repeated} made again after a kill"
        assert notes["journal"] == note
        page = bas_opd("report", path, "--out", tmp_path / "page")
        assert page.code == 0, page.output
        html = (tmp_path / "page" / "report.html").read_text()
        assert note in html
        assert ("; 3 more were lost in a kill and made again" in html) == bool(repeated)
    (run / "calls.jsonl").unlink()
    (missing,) = (check for check in verify(run).checks if not check.is_sound)
    assert "calls.jsonl is missing" in missing.problems[0]


@pytest.mark.slow
def test_killed_between_the_old_model_of_a_prolonged_run_and_the_new(
    train: Train, whole: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    assert train(run, "run.steps=5", fault=model_replaced).code == -signal.SIGKILL
    old = (run / "model.old" / "model.safetensors").read_bytes()
    assert old == (whole / "model" / "model.safetensors").read_bytes()
    assert train(run, "run.steps=5").code == 0
    assert (run / "model" / "model.safetensors").read_bytes() != old
    assert not list(run.glob("model.*"))


@pytest.mark.slow
def test_killed_while_an_old_checkpoint_is_half_removed(
    train: Train, whole: Path, tmp_path: Path
) -> None:
    def arm() -> None:
        def torn(path: Path, **_: Any) -> None:
            next(path.glob("teacher*")).unlink()
            die()

        disk.shutil.rmtree = torn  # pyright: ignore[reportAttributeAccessIssue]

    run = tmp_path / "run"
    assert train(run, fault=arm).code == -signal.SIGKILL
    resumes_to(run, whole, train)


@pytest.fixture(scope="session")
def cpu_seconds(train: Train, whole: Path, tmp_path_factory: pytest.TempPathFactory) -> float:
    """What a run costs, in seconds of computing."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    train(tmp_path_factory.mktemp("timed") / "run")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(MOMENTS))
def test_killed_at_a_random_moment(
    moment: int,
    cpu_seconds: float,
    command: Callable[..., list[str]],
    train: Train,
    whole: Path,
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    going = Command(*command(run))
    # One draw in each thirtieth of a run, so that together they cover all of it.
    going.wait_for_cpu((moment + random.Random(moment).random()) / MOMENTS * cpu_seconds)
    going.send(signal.SIGKILL)
    # The later moments may come too late: another run was timed, on a busier machine perhaps.
    assert going.wait().code in (-signal.SIGKILL, 0 if moment > MOMENTS * 0.5 else None)
    resumes_to(run, whole, train)


@pytest.mark.slow
def test_killed_over_and_over(
    command: Callable[..., list[str]], train: Train, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    for step in (1, 2, 3):
        going = Command(*command(run))
        going.wait_for(f"step {step}/4")  # At most one step further each time: none is skipped.
        going.send(signal.SIGKILL)
        assert going.wait().code == -signal.SIGKILL
    resumes_to(run, whole, train)


def stop(owner: Any, name: str, sentence: str, *, steps: int, call: int = 2) -> Any:
    fault = at(owner, name, ask_to_stop, call=call, before=True)
    return pytest.param(fault, steps, id=sentence)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "steps"),
    [
        stop(Sampler, "generate", "at the beginning, before any step", steps=0, call=1),
        stop(VisionLanguageModel, "extend", "in the middle of a response", steps=1, call=5),
        stop(SelfTeacher, "_score", "in the teacher", steps=1),
        stop(Learner, "_micro_batch", "in the student: the step is finished", steps=2),
        stop(LearnedSelector, "learn", "in the predictor: the step is finished", steps=2),
        stop(checkpoint, "save_file", "while a checkpoint is written", steps=1, call=3),
        stop(Sampler, "generate", "at the boundary of an epoch", steps=2, call=3),
        stop(Sampler, "generate", "inside the second epoch", steps=3, call=4),
        pytest.param(
            at(VisionLanguageModel, "extend", lambda: ask_to_stop(signal.SIGINT), call=5),
            1,
            id="by Ctrl-C in the middle of a response",
        ),
    ],
)
def test_asked_to_stop(fault: Fault, steps: int, train: Train, whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    ended = train(run, fault=fault)
    assert ended.is_explained(PREEMPTED, "rerun the same command to resume"), ended
    newest = published(run / "checkpoints")[0]
    assert int(newest.name.removeprefix("step-")) >= steps
    assert len(step_records(run)) == int(newest.name.removeprefix("step-"))
    resumes_to(run, whole, train)


def test_asked_to_stop_in_generation_it_costs_at_most_that_step(
    train: Train, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    ended = train(run, fault=at(VisionLanguageModel, "extend", ask_to_stop, call=5))
    assert ended.is_explained(PREEMPTED, "Stopped by SIGTERM after step 1 of 4"), ended
    again = train(run)
    assert "Resuming after step 1 of 4" in again.output
    assert_same_end(run, whole)


def test_asked_to_stop_the_same_command_resumes_though_it_overwrites(
    train: Train, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    ended = train(
        run, "--overwrite", fault=at(Sampler, "generate", ask_to_stop, call=3, before=True)
    )
    assert ended.code == 75
    kept = published(run / "checkpoints")
    assert kept
    ended = train(run, "--overwrite")
    assert ended.code == 0, ended.output
    assert "Resuming after step" in ended.output
    assert_same_end(run, whole)
    again = train(run, "--overwrite")
    assert "nothing is left to do" in " ".join(again.output.split())


def test_asked_twice_while_saving_it_ends_at_once(
    train: Train, whole: Path, tmp_path: Path
) -> None:
    def twice() -> None:
        ask_to_stop()
        time.sleep(0.3)  # The main thread now waits for this checkpoint.
        ask_to_stop()
        time.sleep(60)

    run = tmp_path / "run"
    started = time.perf_counter()
    ended = train(run, fault=at(checkpoint, "save_file", twice, call=6, before=True))
    assert ended.code == PREEMPTED, ended.output
    assert time.perf_counter() - started < 30
    assert [path.name for path in published(run / "checkpoints")] == ["step-00000001"]
    resumes_to(run, whole, train)


@pytest.mark.slow
def test_a_generation_that_hangs_is_ended_by_the_second_signal(
    command: Callable[..., list[str]], train: Train, whole: Path, tmp_path: Path
) -> None:
    def hang() -> None:
        print("hanging", flush=True)
        while True:
            time.sleep(1)

    run = tmp_path / "run"
    going = Command(*command(run), fault=at(VisionLanguageModel, "extend", hang, call=5))
    going.wait_for("hanging")
    going.send(signal.SIGTERM)
    time.sleep(0.2)
    going.send(signal.SIGTERM)
    assert going.wait().code == PREEMPTED
    resumes_to(run, whole, train)


@pytest.mark.slow
@pytest.mark.parametrize("tenth", range(10))
def test_asked_to_stop_at_a_random_moment(
    tenth: int,
    cpu_seconds: float,
    command: Callable[..., list[str]],
    train: Train,
    whole: Path,
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    going = Command(*command(run))
    going.wait_for_cpu((tenth + random.Random(tenth).random()) / 10 * cpu_seconds)
    going.send(signal.SIGTERM)
    # Until it holds its directory and after it is done, the signal ends it as any program.
    assert going.wait().code in (PREEMPTED, -signal.SIGTERM, 0)
    resumes_to(run, whole, train)


def test_a_finished_run_is_left_as_it_is(train: Train, whole: Path) -> None:
    files = [path for path in whole.rglob("*") if path.is_file() and path.name != "owner.json"]
    before = {path: path.read_bytes() for path in files}
    ended = train(whole)
    assert ended.code == 0
    assert "nothing is left to do" in ended.output
    assert {path: path.read_bytes() for path in before} == before


def test_copied_to_another_place_it_resumes_there(
    stopped: Path, train: Train, whole: Path, tmp_path: Path
) -> None:
    there = tmp_path / "another" / "place"
    shutil.copytree(stopped, there)
    shutil.rmtree(stopped)
    resumes_to(there, whole, train)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "fault"),
    [
        pytest.param(("optim.tokens_per_micro_batch=1",), None, id="another micro-batch"),
        pytest.param(("rollout.prompts_per_batch=1",), None, id="another sampling batch"),
        pytest.param(("teacher.tokens_per_batch=1",), None, id="another teacher batch"),
        pytest.param(("distill.tokens_per_chunk=3",), None, id="another chunk of logits"),
        pytest.param((), lambda: torch.set_num_threads(2), id="another number of threads"),
    ],
)
def test_resumed_with_another_cut_of_the_work_the_numbers_agree_within_rounding(
    overrides: tuple[str, ...], fault: Fault | None, stopped: Path, train: Train, whole: Path
) -> None:
    ended = train(stopped, *overrides, fault=fault)
    assert ended.code == 0, ended.output
    ours, theirs = step_records(stopped), step_records(whole)
    assert [step["selected"] for step in ours] == [step["selected"] for step in theirs]
    assert [step["loss"] for step in ours] == pytest.approx(
        [step["loss"] for step in theirs], rel=1e-4
    )


@pytest.mark.slow
def test_a_resume_is_on_record(stopped: Path, train: Train) -> None:
    train(stopped)
    events = [event["event"] for event in read_records(stopped / "records.jsonl")]
    assert events == ["started", *["step"] * 3, "resumed", "step", "finished"]


@pytest.mark.slow
def test_a_command_that_was_killed_left_its_lock_to_the_next(stopped: Path, train: Train) -> None:
    (stopped / "owner.json").write_text('{"host": "elsewhere", "pid": 1, "since": "2020"}')
    assert train(stopped).code == 0
