"""Files that are complete or absent, and their hashes. Needs neither torch nor safetensors."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def sha256(path: Path) -> str:
    """Return the hash of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_of(value: Any) -> str:
    """Return the hash of plain data; the order of keys does not matter."""
    return hashlib.sha256(_sorted(value).encode()).hexdigest()


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def staging_path(path: Path) -> Path:
    """Return where the next content of a path is written before it replaces the old one."""
    return path.with_name(f".{path.name}.partial")


def write_text(path: Path, text: str) -> None:
    """Replace a file atomically, and wait until it is on disk."""
    staging = staging_path(path)
    try:
        staging.write_text(text, encoding="utf-8")
        sync(staging)
        os.replace(staging, path)
    except OSError:
        staging.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a JSON file atomically."""
    write_text(path, json.dumps(value, indent=1) + "\n")


# Built once: `json.dumps` would build it again for each of thousands of samples.
_sorted = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
