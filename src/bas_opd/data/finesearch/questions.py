"""Questions about the objects of a scene, and their correct responses.

A response states only what the crop shows. It never states the position in the picture: a teacher
that sees the crop cannot know it, and distillation would unlearn it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bas_opd.data.finesearch.scenes import Placed


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question, its answer, and the sentences of longer correct responses."""

    text: str
    answer: str
    short: str
    reasoned: str
    long: str = ""
    """A whole description that ends with the answer; the first version has none."""

    @property
    def responses(self) -> tuple[str, ...]:
        """Return the styles: bare answer, short sentence, observation then answer, description."""
        styles = (
            self.answer.capitalize(),
            self.short,
            f"{self.reasoned} The answer is {self.answer}.",
            self.long,
        )
        return tuple(filter(None, styles))


def plate_question(plate: Placed) -> Question:
    name, colour = plate.thing.name, plate.thing.colour
    return Question(
        text=f"What colour is the plate under the {name}?",
        answer=colour,
        short=f"The plate is {colour}.",
        reasoned=_seen(plate),
    )


def choice_question(plate: Placed, first: str, second: str) -> Question:
    question = plate_question(plate)
    text = f"Is the plate under the {plate.thing.name} {first} or {second}?"
    return replace(question, text=text)


def position_question(one: Placed, two: Placed, *, first: bool) -> Question:
    asked, other = (one, two) if first else (two, one)
    if one.y == two.y:
        answer = "left" if asked.x < other.x else "right"
    else:
        answer = "above" if asked.y < other.y else "below"
    link = f"{answer} of" if one.y == two.y else answer
    a, b = asked.thing.name, other.thing.name
    return Question(
        text=f"Where is the {a}, seen from the {b}?",
        answer=answer,
        short=f"The {a} is {answer}.",
        reasoned=f"I see {_a(a)} {link} {_a(b)}.",
    )


def neighbour_question(one: Placed, two: Placed, *, first: bool) -> Question:
    sought, known = (one, two) if first else (two, one)
    name = sought.thing.name
    return Question(
        text=f"What is next to the {known.thing.name}?",
        answer=name,
        short=f"It is {_a(name)}.",
        reasoned=f"I see {_a(known.thing.name)} and {_a(name)}.",
    )


def reading_question(placed: Placed) -> Question:
    """Ask for the number on a sign or the digit on a note."""
    shape, colour, written = placed.thing.shape, placed.thing.colour, placed.thing.name
    asked = "What number is on" if shape == "sign" else "Which digit is written on"
    return Question(
        text=f"{asked} the {colour} {shape}?",
        answer=written,
        short=f"The {shape} says {written}.",
        reasoned=f"I see {_a(colour)} {shape} with {written}.",
    )


def count_question(name: str, block: Sequence[Placed]) -> Question:
    many = sum(placed.thing.name == name for placed in block)
    return Question(
        text=f"How many plates carry {_a(name)}?",
        answer=str(many),
        short=f"I count {many}.",
        reasoned=f"I see {_a(name)} on {many}.",
    )


def existence_question(name: str, plate: Placed | None = None) -> Question:
    """Ask whether there is an object; without its plate there is none."""
    answer = "no" if plate is None else "yes"
    return Question(
        text=f"Is there {_a(name)}?",
        answer=answer,
        short=f"I say {answer}.",
        reasoned=f"I see no {name}." if plate is None else _seen(plate),
    )


def _seen(plate: Placed) -> str:
    return f"I see {_a(plate.thing.name)} on {_a(plate.thing.colour)} plate."


def _a(name: str) -> str:
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
