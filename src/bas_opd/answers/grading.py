"""Whether a response is right, as a signal for selection: by rule alone, no judge is asked."""

from __future__ import annotations

from bas_opd.answers.short import short
from bas_opd.types import Grade


def grade(output: str, reference: str) -> Grade:
    """Read a response as evaluation reads a short answer; unread where no rule can decide."""
    answer = short(output, reference)
    if answer.status != "answered":
        return "unread"
    return "right" if answer.value is True else "wrong"
