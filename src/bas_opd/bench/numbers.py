"""The JSON file of a benchmark: checked before it measures, written after each part."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bas_opd.errors import ConfigError
from bas_opd.files import write_text
from bas_opd.run.state import environment, gpu_kernels


def machine() -> dict[str, Any]:
    """Return where and when numbers were measured."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {
            **{name: each for name, each in environment().items() if name != "platform"},
            **gpu_kernels(),
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 2),
        },
    }


def command_line(program: str, words: Sequence[str]) -> str:
    """Return the command that was typed, without the file of its numbers."""
    kept = list(words)
    for at, word in enumerate(words):
        if word == "--json" or word.startswith("--json="):
            del kept[at : at + (1 if "=" in word else 2)]
            break
    return " ".join([program, *map(shlex.quote, kept)])


def check_output(path: Path) -> None:
    """Raise if the numbers could not be saved; called before anything is timed."""
    folder = path.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK) or path.is_dir():
        raise ConfigError(
            f"The numbers cannot be written to {path}. Name a file with --json, in a folder that "
            "exists and can be written to."
        )


def save(numbers: Mapping[str, Any], path: Path) -> None:
    """Write the numbers to a JSON file."""
    write_text(path, json.dumps(numbers, indent=2) + "\n")
