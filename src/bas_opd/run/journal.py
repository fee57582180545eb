"""The journal of teacher calls: what was asked, whether or not its step is on record.

A step that a kill cut short is taken again, and its calls are made again. The ledger charges each
step once; the journal, appended before each call and never truncated, has what was really made.
Needs no torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bas_opd import disk
from bas_opd.errors import DataError
from bas_opd.files import append_json, drop_cut_line

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeCalls:
    """Calls that were made, as far as the journal knows."""

    charged_before: int
    """Calls of the steps that were on record when the journal was begun."""
    made: int
    """Calls since then."""

    def repeated(self, charged: int) -> int:
        """Return the calls beyond those that the ledger charges: lost in a kill, or made again."""
        return self.charged_before + self.made - charged


class CallJournal:
    """Appends the number of calls to a file before they are made."""

    def __init__(self, path: Path, *, check: Callable[[], None] = lambda: None) -> None:
        """`check` raises if the file is no longer the run's."""
        self._path, self._check = path, check

    def begin(self, charged: int) -> None:
        """Start the journal, unless there is one; `charged` calls are on record already."""
        if not self._path.exists() or not drop_cut_line(self._path, self._check):
            self._append({"schema_version": SCHEMA_VERSION, "charged_before": charged})
            disk.sync(self._path.parent)

    def write(self, step: int, calls: int) -> None:
        """Add the calls of a step, and wait until they are on disk."""
        self._append({"step": step, "calls": calls})

    def _append(self, line: dict[str, int]) -> None:
        self._check()
        append_json(self._path, line)


def read_journal(path: Path) -> MadeCalls | None:
    """Return what a journal counts; None if there is none, as in runs of version 0.1."""
    before, made = None, 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    break  # It is being written, or a kill cut it short.
                event = _parse(line, f"{path}:{number}")
                if before is None:
                    before = event["charged_before"]
                else:
                    made += event["calls"]
    except FileNotFoundError:
        return None
    except KeyError as error:
        raise DataError(f"{path} is damaged: a line lacks {error}. Restore the file.") from error
    return None if before is None else MadeCalls(charged_before=before, made=made)


def with_repeated(totals: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the totals of a ledger with the calls beyond it, where a journal has them."""
    made = read_journal(path)
    return {**totals, **({} if made is None else {"repeated": made.repeated(totals["calls"])})}


def _parse(line: bytes, where: str) -> dict[str, int]:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is damaged: {error}. Restore the file.") from None
    if not isinstance(event, dict) or not all(type(each) is int for each in event.values()):
        raise DataError(f"{where} is no line of a journal of calls. Restore the file.")
    return event
