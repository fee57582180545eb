"""What a benchmark asks, whichever benchmark it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Form = Literal["choice", "yes_no", "short"]
"""How an answer is read: one of some options, yes or no, or a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One sample of a benchmark."""

    id: str
    picture: Callable[[], bytes]
    """Gives the picture file's bytes; called when the question is asked."""
    prompt: str
    """The text of the one user message, besides the picture."""
    form: Form
    reference: str
    """The right answer: a letter, yes or no, or words."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Letter -> text, for a choice."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """What aggregates go by: category, split, cycle, pair, source."""
