"""A question of any benchmark, and the output of any model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from bas_opd.data.images import decode_image

if TYPE_CHECKING:
    from PIL import Image

Form = Literal["choice", "yes_no", "short"]
"""How an answer is read: one of some options, yes or no, or a few words."""
View = Literal["full", "crop"]
"""What the model sees: the full picture, or the privileged crop of a prepared set."""


@dataclass(frozen=True)
class Picture:
    """The picture of a question; its file is read when it is asked for."""

    read: Callable[[], bytes]
    """Returns the bytes of the file, not yet checked."""
    name: str
    """Where it is, for errors: "in rows.parquet, row 3"."""

    @cached_property
    def key(self) -> str:
        """The same for questions about the same picture; it is read, but not decoded."""
        return hashlib.sha256(self.read()).hexdigest()

    def decode(self) -> Image.Image:
        """Return the picture, upright, in RGB."""
        return decode_image(self.read(), name=self.name)

    def __call__(self) -> bytes:
        """Return the bytes of the file after checking that they can be decoded."""
        data = self.read()
        decode_image(data, name=self.name)
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question of a benchmark."""

    id: str
    picture: Picture
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
