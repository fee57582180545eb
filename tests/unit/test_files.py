"""Files that are complete or absent."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from bas_opd import disk, files
from bas_opd.files import publish, staged_folder, write_text


def test_a_folder_gets_its_name_after_everything_in_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = tmp_path / "staging"
    (staging / "sub").mkdir(parents=True)
    for name in ("a", "sub/b"):
        (staging / name).write_text(name)
    done: list[Path] = []
    rename = os.rename

    def renaming(source: Path, target: Path) -> None:
        assert {*staging.rglob("*"), staging} <= set(done)
        rename(source, target)

    monkeypatch.setattr(disk, "sync", done.append)
    monkeypatch.setattr(os, "rename", renaming)
    publish(staging, tmp_path / "out")
    assert (tmp_path / "out" / "sub" / "b").read_text() == "sub/b"
    assert done[-1] == tmp_path


@pytest.mark.parametrize("name", ["page", ".page.partial"])
def test_a_link_is_replaced_and_not_followed(name: str, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("precious")
    (tmp_path / name).symlink_to(elsewhere)
    write_text(tmp_path / "page", "new")
    assert elsewhere.read_text() == "precious"
    assert (tmp_path / "page").read_text() == "new"
    assert not (tmp_path / "page").is_symlink()
    assert not (tmp_path / ".page.partial").exists()


def killed(place: Path) -> Path:
    """Return the staging folder of a process that was killed while it wrote to a place."""
    process = multiprocessing.get_context("fork").Process(target=_die_at, args=(place,))
    process.start()
    process.join()
    (left,) = place.parent.glob(f".{place.name}.*.partial")
    return left


def _die_at(place: Path) -> None:
    with staged_folder(place) as staging:
        (staging / "half").touch()
        os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_killed_command_left_is_removed(tmp_path: Path) -> None:
    left = killed(tmp_path / "out")
    others = [tmp_path / f".out.{name}.partial" for name in ("mine", "7", f"a.{'0' * 16}")]
    for folder in others:
        (folder / "images").mkdir(parents=True)
    with staged_folder(tmp_path / "out"):
        assert not left.exists()
    assert all(folder.exists() for folder in others)


def test_a_folder_in_use_is_left_alone_and_one_of_two_commands_publishes(tmp_path: Path) -> None:
    def write_meanwhile() -> None:
        with staged_folder(tmp_path / "out") as slow:
            (slow / "by").write_text("slow")
            with staged_folder(tmp_path / "out") as fast:
                (fast / "by").write_text("fast")
            assert (slow / "by").read_text() == "slow"

    with pytest.raises(OSError, match="not empty"):
        write_meanwhile()
    assert (tmp_path / "out" / "by").read_text() == "fast"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_without_locks_leftovers_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = killed(tmp_path / "out")

    def unsupported(*_: object) -> None:
        raise OSError("Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with staged_folder(tmp_path / "out") as staging:
        (staging / "by").touch()
    assert left.exists()
    assert (tmp_path / "out" / "by").exists()


def test_hashes_so_far_are_kept_when_one_of_many_files_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "KEPT_AT_ONCE", 2)
    names = {f"{number}": tmp_path / f"{number}.bin" for number in range(5)}
    for name, path in names.items():
        path.write_text(name)
    read, memory = files.sha256, tmp_path / "memory.json"
    seen: list[str] = []

    def watched(path: Path) -> str:
        seen.append(path.stem)
        if path.stem == "3" and seen.count("3") == 1:
            raise PermissionError
        return read(path)

    monkeypatch.setattr(files, "sha256", watched)
    with pytest.raises(PermissionError):
        files.file_hashes(names, memory=memory)
    seen[:] = [name for name in seen if name == "3"]
    found = files.file_hashes(names, memory=memory)
    assert sorted(seen) == ["2", "3", "3", "4"]
    assert found == {name: read(path) for name, path in names.items()}
