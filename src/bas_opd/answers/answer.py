"""What a parser read in one output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PARSER_VERSION = "7"
"""Part of the key of every stored verdict: raise it whenever a parser changes."""

Status = Literal["answered", "deferred", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an output commits to.

    `answered` has a value. `deferred` leaves a text that may hold an answer to the judge. `none`
    is an output without one: empty, cut off, refused, or set on something that was not offered.
    """

    value: str | bool | None
    status: Status


DEFERRED = Answer(value=None, status="deferred")
NONE = Answer(value=None, status="none")


def answered(value: str | bool) -> Answer:
    """Return an answer that was read from the text."""
    return Answer(value=value, status="answered")
