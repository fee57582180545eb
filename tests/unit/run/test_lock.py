from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from bas_opd.errors import RunDirectoryError
from bas_opd.run import lock
from bas_opd.run.lock import locked, owner_of


def test_the_owner_is_named_while_it_holds_the_directory_and_not_after(tmp_path: Path) -> None:
    assert owner_of(tmp_path) is None
    with locked(tmp_path):
        assert f"process {os.getpid()} on" in str(owner_of(tmp_path))
    assert owner_of(tmp_path) is None


def test_a_second_holder_is_refused(tmp_path: Path) -> None:
    with (
        locked(tmp_path),
        pytest.raises(RunDirectoryError, match="in use by process"),
        locked(tmp_path),
    ):
        pass


def test_whoever_only_asks_keeps_nobody_out(tmp_path: Path) -> None:
    """Asking takes the lock for an instant, in which a run may start."""
    with locked(tmp_path):
        pass
    asking = os.open(tmp_path / lock.NAME, os.O_RDONLY)
    lock.fcntl.flock(asking, lock.fcntl.LOCK_SH)
    threading.Timer(0.06, os.close, [asking]).start()
    with locked(tmp_path):
        assert owner_of(tmp_path) is not None


def test_without_locks_nobody_is_known_to_hold_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: int) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    with locked(tmp_path):
        monkeypatch.setattr(lock.fcntl, "flock", none)
        assert owner_of(tmp_path) is None


def test_links_are_refused_but_for_those_that_wandb_leaves_in_its_own_folder(
    tmp_path: Path,
) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    (run / "wandb" / "offline-run-1").mkdir(parents=True)
    elsewhere.mkdir()
    (run / "wandb" / "latest-run").symlink_to(run / "wandb" / "offline-run-1")
    (run / "wandb" / "offline-run-1" / "debug.log").symlink_to(elsewhere)
    with locked(run):
        pass
    (run / "model").symlink_to(elsewhere)
    with pytest.raises(RunDirectoryError, match="is a link"), locked(run):
        pass
    (run / "model").rename(run / "checkpoints")
    with pytest.raises(RunDirectoryError, match="checkpoints is a link"), locked(run):
        pass


def test_the_folder_of_wandb_itself_is_no_link(tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    run.mkdir()
    elsewhere.mkdir()
    (run / "wandb").symlink_to(elsewhere)
    with pytest.raises(RunDirectoryError, match="wandb is a link"), locked(run):
        pass
