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

_encoded = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def key_of(**parts: Any) -> str:
    """Return the hash of all that a sample depends on, named part by part."""
    return hashlib.sha256(_encoded(parts).encode()).hexdigest()


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

    def add(self, samples: Mapping[str, Mapping[str, Any]]) -> None:
        """Append samples by their keys and wait until they are on disk."""
        for key, sample in samples.items():
            line = json.dumps({"key": key, **sample}, separators=(",", ":")).encode("ascii")
            self._file.write(line + b"\n")
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
