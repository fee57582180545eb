"""Damaged checkpoints, full and failing disks, directories that are shared, gone or not ours."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import pickle
import resource
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from process import (
    Command,
    Fault,
    Payload,
    Train,
    ask_to_stop,
    at,
    bas_opd,
    fail,
    resumes_to,
    torn_record,
)
from run_states import assert_same_end
from shapes import make_pictures

from bas_opd.data.finesearch import make_finesearch
from bas_opd.model.base import LEARNT_KINDS
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.rollout import Sampler
from bas_opd.run import checkpoint
from bas_opd.run.checkpoint import is_intact, published

pytestmark = pytest.mark.slow

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def newest(run: Path) -> Path:
    return published(run / "checkpoints")[0]


def sign(folder: Path, **changes: Any) -> None:
    """Write a manifest of version 0.1 that agrees with the files of a checkpoint as they are."""
    files = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.name != "manifest.json"
    }
    manifest = {"schema_version": 1, "files": files, **changes}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def truncated(folder: Path) -> None:
    os.truncate(folder / "student.safetensors", 1000)


def emptied(folder: Path) -> None:
    os.truncate(folder / "optimiser.safetensors", 0)


def flipped(folder: Path) -> None:
    content = bytearray((folder / "teacher.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "teacher.safetensors").write_bytes(content)


def without_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def with_nonsense_for_a_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"schema_version": "one", "files": [1, 2]}')


def with_a_flipped_version(folder: Path) -> None:
    manifest = (folder / "manifest.json").read_bytes()
    assert b'"schema_version": 1,' in manifest
    (folder / "manifest.json").write_bytes(
        manifest.replace(b'"schema_version": 1,', b'"schema_version": 3,')
    )


def without_teacher(folder: Path) -> None:
    (folder / "teacher.safetensors").unlink()


def with_another_file(folder: Path) -> None:
    (folder / "extra.safetensors").write_bytes(b"")


def signed_tensors_that_are_none(folder: Path) -> None:
    (folder / "teacher.safetensors").write_bytes(b"\x08" + bytes(7) + b"not json")
    sign(folder)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        pytest.param(truncated, "student.safetensors has changed", id="a file cut short"),
        pytest.param(emptied, "optimiser.safetensors has changed", id="an empty file"),
        pytest.param(flipped, "teacher.safetensors has changed", id="one flipped bit"),
        pytest.param(without_manifest, "manifest.json cannot be read", id="no manifest"),
        pytest.param(with_nonsense_for_a_manifest, "is not the manifest", id="an odd manifest"),
        pytest.param(with_a_flipped_version, "manifest.json has changed", id="another version"),
        pytest.param(without_teacher, "lacks or adds files: teacher", id="no teacher"),
        pytest.param(with_another_file, "lacks or adds files: extra", id="one file too many"),
        pytest.param(signed_tensors_that_are_none, "holds no safetensors", id="no tensors"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    damage: Callable[[Path], None], sentence: str, stopped: Path, train: Train, whole: Path
) -> None:
    damage(newest(stopped))
    resumes_to(stopped, whole, train, sentence=sentence)


def test_with_every_checkpoint_damaged_it_starts_over_and_says_so(
    stopped: Path, train: Train, whole: Path
) -> None:
    for folder in published(stopped / "checkpoints"):
        flipped(folder)
    resumes_to(stopped, whole, train, sentence="No intact checkpoint")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("name", ["manifest.json", "student.safetensors", "step-00000003"])
def test_a_checkpoint_that_cannot_be_read_is_not_damaged_and_nothing_is_touched(
    number: int, name: str, stopped: Path, train: Train, whole: Path
) -> None:
    """As when permissions are lost, or a file server is away: training must not start over."""

    def arm() -> None:
        for owner, call in ((Path, "open"), (Path, "iterdir")):
            fail_for(owner, call, name, OSError(number, os.strerror(number), name))

    before = contents(stopped)
    ended = train(stopped, fault=arm)
    assert ended.is_explained(1, os.strerror(number)), ended
    assert contents(stopped) == before
    resumes_to(stopped, whole, train)


def fail_for(owner: Any, call: str, name: str, error: OSError) -> None:
    """Let a call fail for every path of this name in a checkpoint."""
    original = getattr(owner, call)

    def failing(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path.name == name and "checkpoints" in path.parts:
            raise error
        return original(path, *args, **kwargs)

    setattr(owner, call, failing)


def test_a_pickle_in_place_of_tensors_is_never_loaded(
    stopped: Path, train: Train, whole: Path, tmp_path: Path
) -> None:
    mark = tmp_path / "the pickle ran"
    (newest(stopped) / "teacher.safetensors").write_bytes(pickle.dumps(Payload(mark)))
    sign(newest(stopped))
    resumes_to(stopped, whole, train, sentence="holds no safetensors")
    assert not mark.exists()


def forget_the_teachers(run: Path) -> None:
    for folder in published(run / "checkpoints"):
        without_teacher(folder)
        sign(folder)


def from_the_future(run: Path) -> None:
    sign(newest(run), schema_version=2)


def identity_from_the_future(run: Path) -> None:
    identity = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**identity, "schema_version": 99}))


def lose_the_records(run: Path) -> None:
    (run / "records.jsonl").unlink()


def cut_the_records(run: Path) -> None:
    os.truncate(run / "records.jsonl", 200)


def change_the_line_ends(run: Path) -> None:
    records = run / "records.jsonl"
    records.write_bytes(records.read_bytes().replace(b"\n", b"\r\n"))


def mark_the_byte_order(run: Path) -> None:
    records = run / "records.jsonl"
    records.write_bytes(b"\xef\xbb\xbf" + records.read_bytes())


def nothing(run: Path) -> None: ...


@pytest.mark.parametrize(
    ("change", "overrides", "code", "sentence"),
    [
        pytest.param(
            forget_the_teachers, (), 1, "does not hold the teacher of this run", id="no teacher"
        ),
        pytest.param(from_the_future, (), 1, "written by a newer bas-opd", id="a newer checkpoint"),
        pytest.param(identity_from_the_future, (), 3, "written by a newer", id="a newer run"),
        pytest.param(
            lose_the_records,
            (),
            1,
            "no longer holds the records up to the checkpoint",
            id="no records",
        ),
        pytest.param(
            cut_the_records,
            (),
            1,
            "no longer holds the records up to the checkpoint",
            id="cut records",
        ),
        pytest.param(
            change_the_line_ends, (), 1, "no longer holds the records up to", id="other line ends"
        ),
        pytest.param(
            mark_the_byte_order, (), 1, "no longer holds the records up to", id="a byte order mark"
        ),
        pytest.param(
            nothing,
            ("optim.learning_rate=0.5",),
            2,
            "optim.learning_rate: was 0.001, is now 0.5",
            id="another setting",
        ),
        pytest.param(nothing, ("run.seed=7",), 2, "run.seed: was 42, is now 7", id="another seed"),
    ],
)
def test_what_cannot_resume_refuses_and_changes_nothing(
    change: Callable[[Path], None],
    overrides: tuple[str, ...],
    code: int,
    sentence: str,
    stopped: Path,
    train: Train,
) -> None:
    change(stopped)
    before = contents(stopped)
    ended = train(stopped, *overrides)
    assert ended.is_explained(code, sentence), ended
    assert contents(stopped) == before


def contents(run: Path) -> dict[Path, bytes]:
    files = (path for path in run.rglob("*") if path.is_file())
    # The owner's file is the lock, and run.json names the last environment.
    return {f: f.read_bytes() for f in files if f.name not in ("owner.json", "run.json")}


def test_other_data_are_refused(stopped: Path, train: Train, tmp_path: Path) -> None:
    other = make_pictures(tmp_path / "other", n=8, seed=2, size=(96, 96)).folder
    ended = train(stopped, f"data.path={other}")
    assert ended.is_explained(1, "was started on other data"), ended


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A disk of its own with room for one checkpoint and a half."""
    folder = Path(tempfile.mkdtemp())
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        folder.rmdir()
        pytest.skip("A small disk can only be mounted by root.")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
    folder.rmdir()


def test_a_full_disk_costs_no_published_checkpoint_and_leaves_no_ruins(
    small_disk: Path, train: Train, whole: Path
) -> None:
    run = small_disk / "run"
    ended = train(run)
    assert ended.is_explained(1, "No space left on device"), ended
    assert [is_intact(path) for path in published(run / "checkpoints")] == [True]
    assert not list(run.rglob("*.partial"))
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    resumes_to(run, whole, train)


def test_a_disk_that_cannot_be_written_is_a_sentence(small_disk: Path, train: Train) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    ended = train(small_disk / "run")
    assert ended.is_explained(1, "Read-only file system"), ended


def limit_file_size() -> None:
    """Let the system refuse to let any file grow beyond what a student needs."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (700_000, 700_000))


EIO = OSError(errno.EIO, os.strerror(errno.EIO))
READ_ONLY = OSError(errno.EROFS, os.strerror(errno.EROFS))


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        pytest.param(limit_file_size, "File too large", id="a file that may not grow"),
        pytest.param(
            at(checkpoint, "save_file", fail(FULL), call=7, before=True),
            "No space left on device",
            id="no space in a checkpoint",
        ),
        pytest.param(
            torn_record(fail(FULL)), "No space left on device", id="no space in the records"
        ),
        *(
            pytest.param(
                at(os, "fsync", fail(EIO), call=call),
                "Input/output error",
                id=f"a failing disk at its {call}th flush",
            )
            for call in (1, 3, 4, 6, 9, 14, 20)
        ),
        pytest.param(
            at(os, "rename", fail(READ_ONLY), before=True),
            "Read-only file system",
            id="a disk that turned read-only",
        ),
    ],
)
def test_a_disk_that_fails_is_a_sentence_and_the_run_resumes_later(
    fault: Fault, sentence: str, train: Train, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    ended = train(run, fault=fault)
    assert ended.is_explained(1, sentence), ended
    assert all(is_intact(path) for path in published(run / "checkpoints"))
    resumes_to(run, whole, train)


def test_a_full_disk_at_the_end_of_a_prolonged_run_keeps_its_old_model(
    whole: Path, train: Train, tmp_path: Path
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    before = contents(run / "model")
    ended = train(
        run, "run.steps=5", fault=at(VisionLanguageModel, "save", fail(FULL), call=1, before=False)
    )
    assert ended.is_explained(1, "No space left on device"), ended
    assert contents(run / "model") == before
    assert not list(run.glob("model.*"))
    assert train(run, "run.steps=5").code == 0
    assert contents(run / "model") != before
    assert not list(run.glob("model.*"))


def test_the_old_model_of_a_run_that_is_being_prolonged_is_not_evaluated(
    whole: Path, train: Train, benchmark: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    words = ("--bench", "finesearch", "--data", benchmark, "--max-response-tokens", 2)
    evaluated = bas_opd("eval", run, *words)
    assert evaluated.code == 0, evaluated.output
    report = json.loads((run / "eval" / "report.json").read_text())
    assert report["step"] == 4
    assert f"step 4, weights {report['settings']['weights'][:12]}" in evaluated.output
    ended = train(
        run, "run.steps=6", fault=at(Sampler, "generate", ask_to_stop, call=2, before=True)
    )
    assert ended.code == 75, ended.output
    refused = bas_opd("eval", run, *words)
    assert refused.is_explained(1, "has taken 5 of 6 steps"), refused
    assert json.loads((run / "eval" / "report.json").read_text()) == report
    assert train(run, "run.steps=6").code == 0
    (run / "model" / "generation_config.json").write_text("{}")
    refused = bas_opd("eval", run, *words)
    assert refused.is_explained(1, "is not what the run recorded"), refused


@pytest.mark.parametrize("damage", [lambda model: flip(model), shutil.rmtree])
def test_a_finished_run_whose_model_is_damaged_or_gone_writes_it_again(
    damage: Callable[[Path], None], whole: Path, train: Train, tmp_path: Path
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    damage(run / "model")
    resumes_to(run, whole, train)
    assert "nothing is left to do" in " ".join(train(run).output.split())


def flip(model: Path) -> None:
    content = bytearray((model / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (model / "model.safetensors").write_bytes(content)


def test_another_machine_is_named_when_a_run_resumes(
    stopped: Path, train: Train, whole: Path
) -> None:
    identity = json.loads((stopped / "run.json").read_text())
    identity["environment"] |= {"threads": 99, "cpu": "another"}
    (stopped / "run.json").write_text(json.dumps(identity))
    resumes_to(stopped, whole, train, sentence="threads was 99, is now 1")


def test_other_kernels_are_named_when_a_run_resumes(
    stopped: Path, train: Train, whole: Path
) -> None:
    identity = json.loads((stopped / "run.json").read_text())
    identity["environment"] |= {"triton": True}
    (stopped / "run.json").write_text(json.dumps(identity))
    resumes_to(stopped, whole, train, sentence="triton was True, is now None")


def test_files_nested_too_deeply_are_a_sentence(stopped: Path, train: Train, whole: Path) -> None:
    deep = "[" * 100_000
    identity = (stopped / "run.json").read_text()
    (stopped / "run.json").write_text(deep)
    ended = train(stopped)
    assert ended.is_explained(3, "run.json cannot be read"), ended
    (stopped / "run.json").write_text(identity)
    (newest(stopped) / "manifest.json").write_text(deep)
    resumes_to(stopped, whole, train, sentence="manifest.json cannot be read")


def test_a_temporary_folder_that_is_elsewhere_or_nowhere_does_not_matter(
    train: Train, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    ended = train(run, fault=lambda: os.environ.update(TMPDIR="/proc"))
    assert ended.code == 0, ended.output
    assert_same_end(run, whole)


def test_a_second_process_is_refused_and_the_first_not_disturbed(
    command: Callable[..., list[str]], train: Train, whole: Path, tmp_path: Path
) -> None:
    run, go = tmp_path / "run", tmp_path / "go"

    def hold() -> None:
        print("holding", flush=True)
        while not go.exists():
            time.sleep(0.01)

    first = Command(*command(run), fault=at(Sampler, "generate", hold, before=True))
    first.wait_for("holding")
    for overrides in ((), ("--overwrite",)):
        second = train(run, *overrides)
        assert second.is_explained(3, f"is in use by process {first.pid} on"), second
    go.touch()
    assert first.wait().code == 0
    assert_same_end(run, whole)


@pytest.mark.parametrize("locks_folders", [True, False])
def test_a_second_process_is_refused_though_the_file_of_the_owner_was_removed(
    locks_folders: bool,
    command: Callable[..., list[str]],
    train: Train,
    whole: Path,
    tmp_path: Path,
) -> None:
    """Without locks on folders, as on network file systems, the first process gives way."""
    run, go = tmp_path / "run", tmp_path / "go"

    def arm() -> None:
        if not locks_folders:
            no_locks_on_folders()
        at(Sampler, "generate", hold, call=3, before=True)()

    def hold() -> None:
        print("holding", flush=True)
        while not go.exists():
            time.sleep(0.01)

    first = Command(*command(run), fault=arm)
    first.wait_for("holding")
    (run / "owner.json").unlink()
    second = train(run, fault=None if locks_folders else no_locks_on_folders)
    go.touch()
    ended = first.wait()
    if locks_folders:
        assert second.is_explained(3, "is in use by another process"), second
        assert ended.code == 0, ended.output
    else:
        assert second.code == 0, second.output
        assert ended.is_explained(3, "is no longer what this process has locked"), ended
    assert_same_end(run, whole)
    assert bas_opd("verify", run).code == 0


def no_locks_on_folders() -> None:
    flock = fcntl.flock

    def refusing(descriptor: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(descriptor, operation)

    fcntl.flock = refusing


def test_a_moved_run_stops_and_harms_nothing_of_its_successor(
    command: Callable[..., list[str]], train: Train, whole: Path, tmp_path: Path
) -> None:
    run, moved, go = tmp_path / "run", tmp_path / "moved", tmp_path / "go"

    def hold() -> None:
        print("holding", flush=True)
        while not go.exists():
            time.sleep(0.01)

    first = Command(*command(run), fault=at(Sampler, "generate", hold, call=3, before=True))
    first.wait_for("holding")
    run.rename(moved)
    assert train(run, "run.steps=2").code == 0
    before = contents(run)
    go.touch()
    ended = first.wait()
    assert ended.is_explained(3, "is no longer what this process has locked"), ended
    assert contents(run) == before
    resumes_to(moved, whole, train)
    ids = {json.loads((each / "run.json").read_text())["run_id"] for each in (run, moved)}
    assert len(ids) == 2


def test_a_checkpoint_of_another_run_is_refused(stopped: Path, whole: Path, train: Train) -> None:
    shutil.rmtree(stopped / "checkpoints")
    shutil.copytree(whole / "checkpoints", stopped / "checkpoints")
    before = contents(stopped)
    ended = train(stopped)
    assert ended.is_explained(1, "is of another run"), ended
    assert contents(stopped) == before


def test_a_file_system_without_locks_is_refused(train: Train, tmp_path: Path) -> None:
    def arm() -> None:
        def none(*_: Any) -> None:
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

        fcntl.flock = none

    ended = train(tmp_path / "run", fault=arm)
    assert ended.is_explained(3, "has no locks (Operation not supported)"), ended
    assert not (tmp_path / "run" / "run.json").exists()


@pytest.mark.parametrize("owner", [b"", b"\xff\x00garbage", b'{"pid": 1}'])
def test_the_lock_of_a_dead_process_holds_nobody(
    owner: bytes, stopped: Path, train: Train, whole: Path
) -> None:
    (stopped / "owner.json").write_bytes(owner)
    resumes_to(stopped, whole, train)


def test_a_directory_deleted_on_the_way_is_a_sentence_and_does_not_come_back(
    train: Train, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    # The first checkpoint is that of this step: none is written while the directory is deleted.
    deleted = at(Sampler, "generate", lambda: shutil.rmtree(run))
    ended = train(run, "run.checkpoint_every=2", fault=deleted)
    assert ended.is_explained(1, "No such file or directory"), ended
    assert not run.exists()


@pytest.mark.parametrize("name", ["records.jsonl", "owner.json", "checkpoints", "model"])
def test_a_link_in_the_run_directory_is_refused_and_not_followed(
    name: str, stopped: Path, train: Train, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    place = stopped / name
    if place.exists():
        shutil.move(place, elsewhere)
    else:
        elsewhere.mkdir()
    place.symlink_to(elsewhere)
    before = contents(elsewhere) if elsewhere.is_dir() else elsewhere.read_bytes()
    ended = train(stopped)
    assert ended.is_explained(3, f"{name} is a link"), ended
    assert (contents(elsewhere) if elsewhere.is_dir() else elsewhere.read_bytes()) == before


@pytest.mark.parametrize(
    ("link", "words"),
    [
        (".report.html.partial", ("report", "{run}")),
        ("report.html", ("report", "{run}")),
        ("audit", ("audit", "{run}", "--only", "utility", "--batches", "1")),
        ("audit/owner.json", ("audit", "{run}", "--only", "utility", "--batches", "1")),
        ("eval", ("eval", "{run}", "--bench", "finesearch", "--data", "{set}")),
        ("eval/owner.json", ("eval", "{run}", "--bench", "finesearch", "--data", "{set}")),
        ("eval/finesearch", ("eval", "{run}", "--bench", "finesearch", "--data", "{set}")),
    ],
)
def test_a_link_in_a_run_directory_never_leads_a_command_elsewhere(
    link: str, words: tuple[str, ...], whole: Path, benchmark: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    elsewhere = tmp_path / "elsewhere"
    if "." in link:
        elsewhere.write_text("precious")
    else:
        elsewhere.mkdir()
    (run / link).parent.mkdir(exist_ok=True)
    (run / link).symlink_to(elsewhere)
    ended = bas_opd(*(word.format(run=run, set=benchmark) for word in words))
    assert "Traceback" not in ended.output, ended
    if "report" in link:
        assert ended.code == 0, ended
        assert (run / "report.html").is_file()
        assert not (run / "report.html").is_symlink()
    else:
        assert ended.is_explained(3, "is a link"), ended
    if elsewhere.is_dir():
        assert not list(elsewhere.iterdir())
    else:
        assert elsewhere.read_text() == "precious"


@pytest.fixture(scope="session")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of four questions."""
    folder = tmp_path_factory.mktemp("benchmark")
    make_finesearch(folder / "finesearch", split="val", size="small", n=4, kinds=LEARNT_KINDS)
    return folder


def test_a_run_directory_that_is_a_link_is_refused(train: Train, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    ended = train(tmp_path / "run", "--overwrite")
    assert ended.is_explained(3, "is not a directory of its own"), ended
    assert not list((tmp_path / "elsewhere").iterdir())


def test_what_is_not_a_run_is_never_overwritten(train: Train, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("years")
    ended = train(tmp_path / "run")
    assert ended.is_explained(3, "holds something that is not a run"), ended
    assert (tmp_path / "run" / "thesis.txt").read_text() == "years"
