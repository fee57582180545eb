"""Files that no reader expects: `make fuzz` searches for one that ends in anything but a sentence.

Each target writes bytes to a file of a run, a checkpoint or a prepared set, and lets its readers
read it: they return, or raise an error of ours. Inputs that reach new lines of code are kept and
changed further. Checksums and chains are made to fit, so that what they protect is reached too. An
input that fails is saved, for `tests/faults/corpus`, whose files the tests read.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from report_fixtures import synthetic_run
from run_states import sign
from shapes import make_pictures

import bas_opd
from bas_opd.data.check import check as check_set
from bas_opd.data.records import PreparedSet
from bas_opd.errors import BasOpdError
from bas_opd.files import sha256
from bas_opd.report.pages.writing import write_report
from bas_opd.run.checkpoint import Snapshot, read_checkpoint, write_checkpoint
from bas_opd.run.directory import RunDirectory
from bas_opd.run.history import summed_steps
from bas_opd.run.journal import with_repeated
from bas_opd.run.ledger import Ledger
from bas_opd.run.record_file import chained
from bas_opd.run.verify import verify

CORPUS = Path(__file__).parent / "corpus"
SOURCE = str(Path(bas_opd.__file__).parent)
TOKENS = (
    *(b"{}", b"[]", b"null", b"true", b"-1", b"0", b"1e999", b"NaN", b'""', b'"\\ud800"', b"\n"),
    *(b"9" * 30, b"[" * 3000, b'"\\u0000"', b"\xef\xbb\xbf", b"\r\n", b"\xff", b'":', b","),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 7, 2**31, 2**63, 10**30, -(10**30), 0.5, -1.5, 1e300, 1e-300),
    *("", "x", "\x1b[2J", "../..", "/etc/passwd", "\ud800", "9" * 50, "step-00000001"),
    *([], {}, [[]], [None], {"": None}, [0] * 40, ["x"] * 3),
)


class Targets:
    """Files to write to, and their readers."""

    def __init__(self, home: Path) -> None:
        self._run = synthetic_run(
            home / "run", make_pictures(home / "set", n=6, seed=1), steps=3, planned=5, prompts=3
        )
        self._set = home / "set"
        state = {"ledger": Ledger().totals(), "records_bytes": 0, "records_chain": "", "cursor": 0}
        tensors = {"student": {"weight": torch.ones(2, 3)}, "teacher": {}}
        snapshot = Snapshot(step=0, tensors=tensors, data=state)
        self._checkpoint = write_checkpoint(self._run / "checkpoints", snapshot)
        (self._run / "calls.jsonl").write_bytes(
            b'{"schema_version": 1, "charged_before": 0}\n{"step": 0, "calls": 4}\n'
        )
        self.read: dict[str, tuple[Path, Callable[[bytes], None]]] = {
            "records": (self._run / "records.jsonl", self._read_records),
            "chained-records": (self._run / "records.jsonl", self._read_chained_records),
            "run": (self._run / "run.json", self._read_run),
            "journal": (self._run / "calls.jsonl", self._read_journal),
            "manifest": (self._checkpoint / "manifest.json", self._read_checkpoint),
            "state": (self._checkpoint / "state.json", self._read_signed),
            "tensors": (self._checkpoint / "student.safetensors", self._read_signed),
            "set-manifest": (self._set / "manifest.json", self._read_set),
            "set-records": (self._set / "records.jsonl", self._read_signed_set),
        }
        """Name -> the file that is replaced, and what reads it, given its bytes."""

    def check(self, name: str, content: bytes) -> None:
        """Raise unless the readers take the content, or say what is wrong with it."""
        path, read = self.read[name]
        before = path.read_bytes()
        manifest = path.with_name("manifest.json")
        kept = manifest.read_bytes() if manifest.exists() else None
        path.write_bytes(content)
        try:
            read(content)
        finally:
            path.write_bytes(before)
            if kept is not None and path != manifest:
                manifest.write_bytes(kept)

    def _read_records(self, _: bytes) -> None:
        with suppress(BasOpdError):
            verify(self._run, unfinished=True)
        with suppress(BasOpdError):
            write_report(self._run, self._run / "page")

    def _read_chained_records(self, content: bytes) -> None:
        lines, chain = [], ""
        for line in content.splitlines():
            record: Any = None
            with suppress(ValueError, RecursionError):
                record = json.loads(line)
            if isinstance(record, dict):
                record.pop("chain", None)
                with suppress(ValueError):  # Not finite.
                    chain = chained(chain, record)
                    whole = json.dumps({**record, "chain": chain}, separators=(",", ":"))
                    lines.append(whole.encode() + b"\n")
        (self._run / "records.jsonl").write_bytes(b"".join(lines))
        self._read_records(content)

    def _read_run(self, _: bytes) -> None:
        with suppress(BasOpdError):
            RunDirectory(path=self._run).read_identity()
        with suppress(BasOpdError):
            verify(self._run, unfinished=True)

    def _read_journal(self, _: bytes) -> None:
        with suppress(BasOpdError):
            with_repeated({"calls": 4}, self._run / "calls.jsonl")
        with suppress(BasOpdError):
            verify(self._run, unfinished=True)

    def _read_checkpoint(self, _: bytes) -> None:
        with suppress(BasOpdError):
            read_checkpoint(self._checkpoint)
        with suppress(BasOpdError):
            verify(self._run, unfinished=True)
        summed_steps(RunDirectory(path=self._run))

    def _read_signed(self, content: bytes) -> None:
        sign(self._checkpoint)
        self._read_checkpoint(content)

    def _read_set(self, _: bytes) -> None:
        with suppress(BasOpdError):
            PreparedSet.load(self._set)
        with suppress(BasOpdError):
            check_set(self._set)

    def _read_signed_set(self, content: bytes) -> None:
        manifest = json.loads((self._set / "manifest.json").read_bytes())
        manifest["records_sha256"] = sha256(self._set / "records.jsonl")
        (self._set / "manifest.json").write_text(json.dumps(manifest))
        self._read_set(content)


def changed(content: bytes, draw: random.Random) -> bytes:
    """Return content with one to three changes: of its bytes, or of a value of its JSON."""
    for _ in range(draw.randint(1, 3)):
        act = draw.choice((_flipped, _without, _with_token, _repeated, *(_other_value,) * 6))
        content = act(content, draw)
    return content[:100_000]


def _flipped(content: bytes, draw: random.Random) -> bytes:
    data = bytearray(content or b"0")
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(data)


def _without(content: bytes, draw: random.Random) -> bytes:
    start = draw.randint(0, len(content))
    return content[:start] + content[start + draw.choice((1, 4, 50, 10**6)) :]


def _with_token(content: bytes, draw: random.Random) -> bytes:
    start = draw.randint(0, len(content))
    return content[:start] + draw.choice(TOKENS) + content[start + draw.choice((0, 0, 1, 8)) :]


def _repeated(content: bytes, draw: random.Random) -> bytes:
    lines = content.splitlines(keepends=True) or [b""]
    lines.insert(draw.randint(0, len(lines)), draw.choice(lines))
    return b"".join(lines)


def _other_value(content: bytes, draw: random.Random) -> bytes:
    """Change one value of one line, or of the whole where that is one object."""
    try:
        return json.dumps(_mutated(json.loads(content), draw)).encode()
    except (ValueError, RecursionError):
        pass
    lines = content.splitlines(keepends=True)
    if lines:
        place = draw.randrange(len(lines))
        with suppress(ValueError, RecursionError):
            value = _mutated(json.loads(lines[place]), draw)
            lines[place] = json.dumps(value, separators=(",", ":")).encode() + b"\n"
    return b"".join(lines)


def _mutated(value: Any, draw: random.Random) -> Any:
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(list(value))
        if draw.random() < 0.1:
            return {name: each for name, each in value.items() if name != key}
        return {**value, key: _mutated(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.8:
        place = draw.randrange(len(value))
        if draw.random() < 0.2:
            return value[:place] + value[place + 1 :]
        return [*value[:place], _mutated(value[place], draw), *value[place + 1 :]]
    if isinstance(value, int) and draw.random() < 0.4:
        return value + draw.choice((-1, 1, 100))
    return draw.choice(VALUES)


def lines_reached(act: Callable[[], None]) -> set[tuple[str, int]]:
    """Return the lines of the package that a call reaches."""
    reached: set[tuple[str, int]] = set()

    def enter(frame: FrameType, event: str, arg: object) -> Any:
        return line if frame.f_code.co_filename.startswith(SOURCE) else None

    def line(frame: FrameType, event: str, arg: object) -> Any:
        reached.add((frame.f_code.co_filename, frame.f_lineno))
        return line

    sys.settrace(enter)
    try:
        act()
    finally:
        sys.settrace(None)
    return reached


def main() -> None:
    """Fuzz every target in turn until the time is up; save what fails, once for each place."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--seconds", type=float, default=600)
    options.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    options.add_argument("--save", type=Path, default=Path("fuzz"), help="for inputs that fail")
    chosen = options.parse_args()
    home = Path(tempfile.mkdtemp(prefix="fuzz-"))
    draw, targets = random.Random(chosen.seed), Targets(home)
    inputs = {name: [path.read_bytes()] for name, (path, _) in targets.read.items()}
    reached: dict[str, set[tuple[str, int]]] = {name: set() for name in inputs}
    failed: dict[tuple[str, str], Path] = {}
    end, tried = time.monotonic() + chosen.seconds, 0
    while time.monotonic() < end:
        name = list(inputs)[tried % len(inputs)]
        content = changed(draw.choice(inputs[name]), draw)
        tried += 1
        try:
            lines = lines_reached(lambda n=name, c=content: targets.check(n, c))
        except Exception as error:
            place = _place(error)
            if (name, place) not in failed:
                folder = chosen.save / name
                folder.mkdir(parents=True, exist_ok=True)
                failed[name, place] = folder / f"{len(failed)}"
                failed[name, place].write_bytes(content)
                print(f"{failed[name, place]}: {type(error).__name__}: {error} at {place}"[:500])
            continue
        if lines - reached[name]:
            reached[name] |= lines
            inputs[name].append(content)
    shutil.rmtree(home)
    kept, found = sum(map(len, inputs.values())), len(set().union(*reached.values()))
    print(
        f"Fuzzed with seed {chosen.seed}: {tried:,} inputs, {kept:,} kept, {found:,} lines "
        f"reached, {len(failed)} failed."
    )
    sys.exit(bool(failed))


def _place(error: BaseException) -> str:
    """Return the last line of the package that an error went through."""
    place, traced = "", error.__traceback__
    while traced is not None:
        file = traced.tb_frame.f_code.co_filename
        if file.startswith(SOURCE):
            place = f"{Path(file).relative_to(SOURCE)}:{traced.tb_lineno}"
        traced = traced.tb_next
    return place


if __name__ == "__main__":
    main()
