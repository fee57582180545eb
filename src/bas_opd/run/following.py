"""The records of a run while another process writes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bas_opd.errors import DataError
from bas_opd.run.record import read_line


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What the records gained since they were last read."""

    is_anew: bool
    """Whether these are the records from the first: a resumed run cuts its file back."""
    events: tuple[dict[str, Any], ...]


class RecordFollower:
    """Reads whole lines as they come, and notices when the file was cut back or begun anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._forget()

    def read(self) -> News:
        """Return the events that were added; a line that is still being written waits."""
        if not self._path.exists():
            self._forget()
            return News(is_anew=True, events=())
        is_anew = self._place == 0
        try:
            return News(is_anew=is_anew, events=self._added())
        except DataError:
            if is_anew:
                raise
        # What was read before is no longer in the file, so neither is its place.
        self._forget()
        return News(is_anew=True, events=self._added())

    def _added(self) -> tuple[dict[str, Any], ...]:
        events = []
        with self._path.open("rb") as file:
            file.seek(self._place - len(self._last))
            if file.read(len(self._last)) != self._last:
                raise DataError(f"{self._path} was cut back.")
            while (line := file.readline()).endswith(b"\n"):
                where = f"{self._path}:{self._lines + 1}"
                event, self._chain = read_line(line, where, after=self._chain)
                self._place += len(line)
                self._lines += 1
                self._last = line
                events.append(event)
        return tuple(events)

    def _forget(self) -> None:
        self._place, self._lines, self._chain, self._last = 0, 0, "", b""
