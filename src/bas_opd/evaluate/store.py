"""Samples by key in a JSONL file: written once, found again, never asked for twice."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from bas_opd.errors import DataError

# Built once: `json.dumps` would build them anew for each of thousands of samples.
_sorted = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
_line = json.JSONEncoder(separators=(",", ":")).encode


def key_of(**parts: Any) -> str:
    """Return the hash of all that a sample depends on, named part by part."""
    return hashlib.sha256(_sorted(parts).encode()).hexdigest()


def write_whole(path: Path, text: str) -> None:
    """Put a text in the place of a file, whole or not at all."""
    staging = path.with_name(f".{path.name}.partial")
    try:
        staging.write_text(text, encoding="utf-8")
        staging.replace(path)
    except OSError:
        staging.unlink(missing_ok=True)
        raise


class SampleStore:
    """An append-only file of samples; one that was added survives a crash of the machine."""

    def __init__(self, path: Path) -> None:
        self._samples: dict[str, dict[str, Any]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()  # A crash cut it short, so nothing was built upon it.
        for number, line in enumerate(lines, start=1):
            sample = _parsed(line, f"{path}:{number}")
            self._samples[sample.pop("key")] = sample
        self._file = path.open("ab")
        self._file.truncate(sum(map(len, lines)))

    def __contains__(self, key: str) -> bool:
        return key in self._samples

    def __getitem__(self, key: str) -> dict[str, Any]:
        return self._samples[key]

    def __len__(self) -> int:
        return len(self._samples)

    def all(self) -> dict[str, dict[str, Any]]:
        """Return every sample by its key, in the order of the file."""
        return dict(self._samples)

    def add(self, samples: Mapping[str, Mapping[str, Any]]) -> None:
        """Append samples by their keys and wait until they are on disk."""
        for key, sample in samples.items():
            self._file.write(_line({"key": key, **sample}).encode("ascii") + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._samples |= {key: dict(sample) for key, sample in samples.items()}

    def __enter__(self) -> SampleStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()


def _parsed(line: bytes, where: str) -> dict[str, Any]:
    try:
        sample = json.loads(line)
        if not isinstance(sample["key"], str):
            raise TypeError
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{where} is damaged. Remove that line, and the sample is made again."
        ) from error
    return sample
