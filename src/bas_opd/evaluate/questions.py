"""A question of any benchmark, and the output of any model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

Form = Literal["choice", "yes_no", "short"]
"""How an answer is read: one of some options, yes or no, or a few words."""
View = Literal["full", "crop"]
"""What the model sees: the full picture, or the privileged crop of a prepared set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question of a benchmark."""

    id: str
    picture: Callable[[], bytes]
    """Returns the bytes of the picture file; called when the question is asked."""
    prompt: str
    """The text of the one user message, besides the picture."""
    form: Form
    reference: str
    """The right answer: a letter, yes or no, or words."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Letter -> text, for a choice."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """What results are grouped by: category, split, cycle, pair, source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A model's answer to one question."""

    text: str
    is_cut: bool | None
    """Whether it reached the token limit before it ended; None if the generator does not say."""
    note: str = ""
    """Request parameters that had to be left out or renamed, if any."""
    refusal: str = ""
    """Why a server refused to answer, if so; then there is no text."""
