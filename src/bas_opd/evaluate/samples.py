"""outputs.jsonl and scores.jsonl of a benchmark: one JSON line per question, found by its key."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import TypeAdapter

from bas_opd import disk
from bas_opd.errors import DataError
from bas_opd.evaluate.benchmarks import Scored
from bas_opd.evaluate.questions import Output, Question
from bas_opd.files import hash_of, write_text

if TYPE_CHECKING:
    from bas_opd.evaluate.judge import Verdict

OUTPUTS, SCORES = "outputs.jsonl", "scores.jsonl"

Line = Mapping[str, Any]

_OUTPUT, _SCORED = TypeAdapter(Output), TypeAdapter(Scored)

# Built once: `json.dumps` would build it again for each of thousands of samples.
_encode = json.JSONEncoder(separators=(",", ":")).encode


def read_samples(path: Path) -> dict[str, dict[str, Any]]:
    """Return every sample by its key, in the order of the file; none if there is no file."""
    samples: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(whole_lines(path), start=1):
        try:
            sample = json.loads(line)
            key = sample.pop("key")
            if not isinstance(key, str):
                raise TypeError
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise damaged(path, number) from error
        samples[key] = sample
    return samples


def write_samples(path: Path, samples: Mapping[str, Line]) -> None:
    """Replace a file of samples atomically."""
    write_text(path, "".join(_text(key, sample) for key, sample in samples.items()))


class AppendedLines:
    """An append-only file of JSON lines; each is on disk when `append` returns.

    Safe to share between threads. One process at a time: `bas-opd eval` locks the folder.
    """

    def __init__(self, path: Path) -> None:
        """Open a file, and remove an unfinished last line."""
        disk.make_folder(path.parent, parents=True, exist_ok=True)
        size = sum(map(len, whole_lines(path)))
        self._file = disk.OpenFile(path, "ab")
        self._file.truncate(size)
        self._lock = threading.Lock()

    def append(self, key: str, content: Line) -> None:
        """Append a line and wait until it is on disk."""
        with self._lock:
            self._file.write(_text(key, content).encode("ascii"))
            self._file.sync()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def whole_lines(path: Path) -> list[bytes]:
    """Return the lines of a file, none if there is no file.

    An unfinished last line is left out: a crash cut it short, so nothing depends on it.
    """
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return lines[:-1] if lines and not lines[-1].endswith(b"\n") else lines


def output_line(question: Question, output: Output) -> dict[str, Any]:
    """Return an output as a line of `outputs.jsonl`."""
    line = asdict(output)
    return {"id": question.id, "output": line.pop("text"), **line}


def output_of(line: Line) -> Output:
    """Return the output of a line of `outputs.jsonl`; those of an early version lack a refusal."""
    return _OUTPUT.validate_python({**line, "text": line["output"]})


def score_line(
    question: Question, output: Output, scored: Scored, verdict: Verdict | None = None
) -> Line:
    """Return a verdict as a line of `scores.jsonl`."""
    return {
        **asdict(scored),
        "reference": question.reference,
        "output": digest(output),
        "fallback": output.note,
        "judge": "" if verdict is None else verdict.text,
        "judge_fallback": "" if verdict is None else "; ".join(verdict.fallbacks),
        "reason": output.refusal if verdict is None else verdict.reason,
    }


def scored_of(line: Line) -> Scored:
    """Return the verdict of a line of `scores.jsonl`; those of an early version lack groups."""
    return _SCORED.validate_python(line)


def scoring_of(score_key: str) -> str:
    """Return the part of a score's key that says of which model, set and judge it is."""
    return score_key.partition(":")[0]


def digest(output: Output) -> str:
    """Return a hash of an output: a verdict is valid for this output only."""
    return hash_of({"text": output.text, "is_cut": output.is_cut, "refusal": output.refusal})


def damaged(path: Path, line: int) -> DataError:
    """Return the error for a line that cannot be read."""
    return DataError(f"{path}:{line} is damaged. Remove that line and run `bas-opd eval` again.")


def _text(key: str, sample: Line) -> str:
    return _encode({"key": key, **sample}) + "\n"
