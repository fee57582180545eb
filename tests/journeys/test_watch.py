from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run_fixtures import small_run

from bas_opd.run.lock import locked
from bas_opd.run.record_file import RecordWriter, read_records


def bas_opd(*arguments: str) -> list[str]:
    program = "from bas_opd.cli.main import app; app()"
    return [sys.executable, "-c", program, *arguments]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, small_qwen35: Path) -> Path:
    home = tmp_path_factory.mktemp("watched")
    return small_run(home, small_qwen35)


def test_one_look_says_how_a_run_stands(run: Path) -> None:
    told = subprocess.run(bas_opd("watch", str(run), "--once"), capture_output=True, text=True)
    assert told.returncode == 0
    assert told.stdout.startswith(f"{run}: finished\n")
    assert "step 5/5  loss" in told.stdout


def test_a_run_that_another_process_writes_is_followed_to_its_end(
    run: Path, tmp_path: Path
) -> None:
    events = list(read_records(run / "records.jsonl"))
    with RecordWriter(tmp_path / "records.jsonl") as writer:
        for event in events[:3]:
            writer.write(event)
        watching = subprocess.Popen(
            bas_opd("watch", str(tmp_path), "--every", "0.05"),
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert watching.stdout is not None
        first = [watching.stdout.readline() for _ in range(2)]
        for event in events[3:]:
            time.sleep(0.02)
            writer.write(event)
        rest, _ = watching.communicate(timeout=60)
    assert [line.split("  ")[0] for line in first] == ["step 1/5", "step 2/5"]
    assert steps_in(rest) == ["step 3/5", "step 4/5", "step 5/5"]
    assert "Ledger" in rest
    assert rest.endswith("has finished.\n")
    assert watching.returncode == 0


def steps_in(text: str) -> list[str]:
    return [line.split("  ")[0] for line in text.splitlines() if line.startswith("step ")]


def test_after_a_resume_only_repeated_steps_are_shown_again(run: Path, tmp_path: Path) -> None:
    events = list(read_records(run / "records.jsonl"))
    opening, steps, end = events[0], events[1:6], events[6:]
    again = {"event": "resumed", "step": 2, **{k: opening[k] for k in ("steps", "config")}}
    log = tmp_path / "records.jsonl"
    with RecordWriter(log) as writer:
        for event in (opening, *steps[:2]):
            writer.write(event)
        kept = writer.place["records_bytes"]
        writer.write(steps[2])
    watching = subprocess.Popen(
        bas_opd("watch", str(tmp_path), "--every", "0.05"), stdout=subprocess.PIPE, text=True
    )
    assert watching.stdout is not None
    told = [watching.stdout.readline() for _ in range(3)]
    with RecordWriter(log, keep_bytes=kept) as writer:
        for event in (again, *steps[2:], *end):
            writer.write(event)
    rest, _ = watching.communicate(timeout=60)
    assert steps_in("".join(told)) == ["step 1/5", "step 2/5", "step 3/5"]
    assert "Resumed after step 2." in rest
    assert steps_in(rest) == ["step 3/5", "step 4/5", "step 5/5"]


def test_it_ends_when_its_reader_leaves(run: Path, tmp_path: Path) -> None:
    events = list(read_records(run / "records.jsonl"))[:3]
    with RecordWriter(tmp_path / "records.jsonl") as writer:
        for event in events:
            writer.write(event)
        watching = subprocess.Popen(
            bas_opd("watch", str(tmp_path), "--every", "0.05"),
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        assert watching.stdout is not None
        watching.stdout.readline()
        watching.stdout.close()
        for step in range(2, 50):
            if watching.poll() is not None:
                break
            writer.write({**events[-1], "step": step})
            time.sleep(0.1)
        assert watching.wait(timeout=10) == 0


def test_watching_changes_nothing(run: Path) -> None:
    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}

    before = contents()
    subprocess.run(bas_opd("watch", str(run)), check=True, capture_output=True)
    assert contents() == before


def test_a_run_that_is_still_loading_is_waited_for(run: Path, tmp_path: Path) -> None:
    later = tmp_path / "runs" / "later"
    watching = subprocess.Popen(
        bas_opd("watch", str(later), "--every", "0.05"),
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert watching.stdout is not None
    first = watching.stdout.readline()
    assert first == f"{later}: no run has begun here; waiting for one, Ctrl-C stops\n"
    later.mkdir(parents=True)
    with locked(later):
        assert watching.stdout.readline().startswith(f"{later}: being loaded by process")
        with RecordWriter(later / "records.jsonl") as writer:
            for event in read_records(run / "records.jsonl"):
                writer.write(event)
        rest, _ = watching.communicate(timeout=60)
    assert steps_in(rest) == [f"step {n}/5" for n in range(1, 6)]
    assert watching.returncode == 0


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    told = subprocess.run(
        bas_opd("watch", str(tmp_path / "nowhere"), "--once"), capture_output=True, text=True
    )
    assert told.returncode == 1
    assert "nowhere is not a folder" in told.stderr
