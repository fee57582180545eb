"""outputs.jsonl and scores.jsonl of a benchmark: one JSON line per question, found by its key."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bas_opd.errors import DataError
from bas_opd.evaluate.benchmarks import Scored
from bas_opd.evaluate.questions import Output, Question, Sample
from bas_opd.files import hash_of, write_text

if TYPE_CHECKING:
    from bas_opd.evaluate.judge import Verdict

OUTPUTS, SCORES = "outputs.jsonl", "scores.jsonl"

Line = Mapping[str, Any]

# Built once: `json.dumps` would build it again for each of thousands of samples.
_encode = json.JSONEncoder(separators=(",", ":")).encode


def read_samples(path: Path) -> dict[str, dict[str, Any]]:
    """Return every sample by its key, in the order of the file; none if there is no file.

    An unfinished last line is left out: a crash cut it short, so nothing depends on it.
    """
    return _parsed(path, _whole_lines(path))


def write_samples(path: Path, samples: Mapping[str, Line]) -> None:
    """Replace a file of samples atomically."""
    write_text(path, "".join(_text(key, sample) for key, sample in samples.items()))


class SampleStore:
    """An append-only file of samples; each is on disk when `add` returns."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = _whole_lines(path)
        self._samples = _parsed(path, lines)
        self._file = path.open("ab")
        self._file.truncate(sum(map(len, lines)))

    def __contains__(self, key: str) -> bool:
        return key in self._samples

    def __getitem__(self, key: str) -> dict[str, Any]:
        return self._samples[key]

    def add(self, key: str, sample: Line) -> None:
        """Append a sample and wait until it is on disk."""
        self._file.write(_text(key, sample).encode("ascii"))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._samples[key] = dict(sample)

    def __enter__(self) -> SampleStore:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkScores:
    """The verdicts on all answers to a benchmark, and the request parameters that were dropped."""

    scored: tuple[Scored, ...]
    fallbacks: tuple[str, ...]
    """What had to be left out or renamed for the model to answer."""
    judge_fallbacks: tuple[str, ...]
    """The same for the judge."""

    @classmethod
    def of(cls, lines: Iterable[tuple[Question, Line]]) -> BenchmarkScores:
        """Read the lines of a benchmark's questions."""
        pairs = list(lines)
        return cls(
            scored=tuple(_scored(question, line) for question, line in pairs),
            fallbacks=_distinct(line["fallback"] for _, line in pairs),
            judge_fallbacks=_distinct(line["judge_fallback"] for _, line in pairs),
        )


def output_line(question: Question, output: Output) -> dict[str, Any]:
    """Return an output as a line of `outputs.jsonl`."""
    return {
        "id": question.id,
        "output": output.text,
        "is_cut": output.is_cut,
        "note": output.note,
        "refusal": output.refusal,
    }


def output_of(line: Line) -> Output:
    """Return the output of a line of `outputs.jsonl`."""
    return Output(
        text=line["output"],
        is_cut=line["is_cut"],
        note=line["note"],
        refusal=line.get("refusal", ""),  # Answers of an earlier version have none.
    )


def score_line(sample: Sample, scored: Scored, verdict: Verdict | None = None) -> Line:
    """Return a verdict as a line of `scores.jsonl`."""
    return {
        "id": scored.id,
        "outcome": scored.outcome,
        "source": scored.source,
        "value": scored.value,
        "note": scored.note,
        "reference": sample.question.reference,
        "output": digest(sample.output),
        "fallback": sample.output.note,
        "judge": "" if verdict is None else verdict.text,
        "judge_fallback": "" if verdict is None else "; ".join(verdict.fallbacks),
        "reason": sample.output.refusal if verdict is None else verdict.reason,
    }


def digest(output: Output) -> str:
    """Return a hash of an output: a verdict is valid for this output only."""
    return hash_of({"text": output.text, "is_cut": output.is_cut, "refusal": output.refusal})


def damaged(path: Path, line: int) -> DataError:
    """Return the error for a line that cannot be read."""
    return DataError(f"{path}:{line} is damaged. Remove that line and run `bas-opd eval` again.")


def _scored(question: Question, line: Line) -> Scored:
    return Scored(
        id=question.id,
        outcome=line["outcome"],
        source=line["source"],
        groups=question.groups,
        value=line["value"],
        note=line["note"],
    )


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({text for text in texts if text}))


def _text(key: str, sample: Line) -> str:
    return _encode({"key": key, **sample}) + "\n"


def _whole_lines(path: Path) -> list[bytes]:
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return lines[:-1] if lines and not lines[-1].endswith(b"\n") else lines


def _parsed(path: Path, lines: Iterable[bytes]) -> dict[str, dict[str, Any]]:
    samples: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(lines, start=1):
        try:
            sample = json.loads(line)
            key = sample.pop("key")
            if not isinstance(key, str):
                raise TypeError
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise damaged(path, number) from error
        samples[key] = sample
    return samples
