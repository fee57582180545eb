"""The questions of FineSearch 2: correct grammar, and responses from one word to more than sixty.

As in the first version, a response states only what the crop shows. The longest one describes all
of it before it answers, so that a wrong reading of the picture appears long before the answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from bas_opd.data.finesearch.questions import Question
from bas_opd.data.finesearch.scenes import Placed

_PLURAL = ("cherries", "grapes")
_NUMBERS = ("no", "one", "two", "three", "four")
_ORDER = ("first", "second", "third", "fourth")


def plate_question(plate: Placed) -> Question:
    return _about_plate(plate, f"What colour is the plate under the {plate.thing.name}?")


def choice_question(plate: Placed, first: str, second: str) -> Question:
    return _about_plate(plate, f"Is the plate under the {plate.thing.name} {first} or {second}?")


def _about_plate(plate: Placed, text: str) -> Question:
    name, colour = plate.thing.name, plate.thing.colour
    return Question(
        text=text,
        answer=colour,
        short=f"The plate is {colour}.",
        reasoned=f"I see {_on_plate(plate)}.",
        long=(
            f"Let me look at it closely. I see one round plate with a thin dark rim. In the middle "
            f"of the plate I see {_a(name)}. All around the {name} I can see the plate, and what I "
            f"see there is {colour}. So the plate under the {name} is {colour}. The answer is "
            f"{colour}."
        ),
    )


def neighbour_question(one: Placed, two: Placed, *, first: bool) -> Question:
    sought, known = (one, two) if first else (two, one)
    name = sought.thing.name
    return Question(
        text=f"What is next to the {known.thing.name}?",
        answer=name,
        short=f"{'They are' if name in _PLURAL else 'It is'} {_a(name)}.",
        reasoned=f"I see {_a(known.thing.name)} and {_a(name)}.",
        long=(
            f"{_two_plates(known, sought)} So the thing that I see next to the "
            f"{known.thing.name} on the {known.thing.colour} plate is the {name} on the "
            f"{sought.thing.colour} plate. The answer is {name}."
        ),
    )


def beside_question(name: str, known: Placed, other: Placed) -> Question:
    """Ask whether a thing is next to a known one; what is there may be something else."""
    found = other.thing.name
    answer = "yes" if found == name else "no"
    given = "" if found == name else f"I see {_a(found)} there and not {_a(name)}. "
    return Question(
        text=f"{_be(name).capitalize()} there {_a(name)} next to the {known.thing.name}?",
        answer=answer,
        short=f"I say {answer}.",
        reasoned=f"I see {_a(known.thing.name)} and {_a(found)}.",
        long=(
            f"{_two_plates(known, other)} So next to the {known.thing.name} there {_be(found)} "
            f"{_a(found)} on the {other.thing.colour} plate. {given}The answer is {answer}."
        ),
    )


def reading_question(placed: Placed) -> Question:
    """Ask for the number on a sign or the digit on a note."""
    shape, colour, written = placed.thing.shape, placed.thing.colour, placed.thing.name
    if shape == "sign":
        asked, what = "What number is on", "number"
        parts = f"The first digit is {written[0]}. The second digit is {written[1]}."
    else:
        asked, what = "Which digit is written on", "digit"
        parts = f"It is written by hand, and I can read {written}."
    return Question(
        text=f"{asked} the {colour} {shape}?",
        answer=written,
        short=f"The {shape} says {written}.",
        reasoned=f"I see {_a(colour)} {shape} with {written}.",
        long=(
            f"Let me look at it closely. I see one {shape} with a thick {colour} rim, so this is "
            f"the {colour} {shape}. In the middle of the {shape} I see a {what} in black. {parts} "
            f"So the {what} on the {colour} {shape} is {written}. The answer is {written}."
        ),
    )


def count_question(name: str, block: Sequence[Placed]) -> Question:
    """Ask how many plates of a block carry a thing."""
    found = [placed.thing.name for placed in block]
    many = found.count(name)
    listed = " ".join(
        f"The {order} plate is {placed.thing.colour} and carries {_a(placed.thing.name)}."
        for order, placed in zip(_ORDER, block, strict=True)
    )
    carry = "carries" if many == 1 else "carry"
    return Question(
        text=f"How many plates carry {_a(name)}?",
        answer=str(many),
        short=f"I count {many}.",
        reasoned=f"I see {_a(name)} on {_NUMBERS[many]} of the plates.",
        long=(
            f"Let me look at it closely. I see {_NUMBERS[len(block)]} plates. {listed} So "
            f"{_NUMBERS[many]} of the {_NUMBERS[len(block)]} plates {carry} {_a(name)}. "
            f"The answer is {many}."
        ),
    )


def _two_plates(one: Placed, other: Placed) -> str:
    return (
        "Let me look at it closely. I see two round plates next to each other. One of the plates "
        f"is {one.thing.colour} and carries {_a(one.thing.name)}. The other plate is "
        f"{other.thing.colour} and carries {_a(other.thing.name)}."
    )


def _on_plate(plate: Placed) -> str:
    return f"{_a(plate.thing.name)} on {_a(plate.thing.colour)} plate"


def _a(name: str) -> str:
    if name in _PLURAL:
        return name
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _be(name: str) -> str:
    return "are" if name in _PLURAL else "is"
