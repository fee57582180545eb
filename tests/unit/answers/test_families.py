"""Families of outputs, each in many wordings: some that give an answer, some that give none.

A line of `families.txt` is `READER | OUTPUT => READING`. The reader is `yn`, `short` with its
reference, or the name of a set of options; `cut` and `ended` behind it are what the generator says
of the output. In an output, `{a|b}` stands for either. `0` is a reading without an answer: left to
the judge, or none.
"""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

from bas_opd.answers import Answer, choice, short, yes_no

OPTIONS = {
    "COL": {"A": "red", "B": "blue", "C": "green", "D": "pink"},
    "POL": {"A": "Yes", "B": "No"},
    "ORD": {"A": "the second image", "B": "the third image"},
    "BOX": {"A": "Box A", "B": "Box B"},
    "CLOSER": {"A": "A is closer", "B": "B is closer"},
    "PIC": {"A": "picture A", "B": "picture B", "C": "picture C", "D": "picture D"},
    "LET": {"A": "C", "B": "B", "C": "D", "D": "A"},
    "LET2": {"A": "A", "B": "B", "C": "C", "D": "D"},
    "NEG": {"A": "-1", "B": "-2", "C": "1", "D": "2"},
    "ANG": {"A": "30°", "B": "45°", "C": "60°", "D": "90°"},
    "ROOTS": {"A": "$2$", "B": "$2\\sqrt{3}$", "C": "$3$", "D": "$6\\pi$"},
    "ANI": {"A": "cat", "B": "dog", "C": "bird", "D": "horse"},
    "FRUIT": {"A": "apple", "B": "orange", "C": "banana", "D": "grape"},
    "MAT": {"A": "cotton", "B": "wood", "C": "metal", "D": "glass"},
    "MOOD": {"A": "happy", "B": "sad", "C": "angry", "D": "tired"},
    "NUM": {"A": "2", "B": "3", "C": "4", "D": "5"},
    "YEAR": {"A": "1990", "B": "1995", "C": "2000", "D": "2005"},
    "GRAY": {"A": "red", "B": "blue", "C": "gray", "D": "black"},
    "WHO": {"A": "man", "B": "woman", "C": "boy", "D": "girl"},
    "HAND": {"A": "Left-hand side", "B": "Right-hand side", "C": "In the middle"},
    "SIDE": {"A": "left", "B": "right"},
    "TASK": {"A": "The man is walking a dog.", "B": "The man is riding a bike."},
    "MED": {
        "A": "Alzheimer's disease",
        "B": "Lewy body",
        "C": "Huntington",
        "D": "ALS",
        "E": "MS",
        "F": "CJD",
        "G": "Parkinson's",
        "H": "Pick's Disease",
    },
}
CUT = {"cut": True, "ended": False}
EITHER = re.compile(r"\{([^{}]*\|[^{}]*)\}")


def families() -> list[object]:
    cases, family = [], ""
    for line in Path(__file__).with_name("families.txt").read_text("utf-8").splitlines():
        if line.startswith("# "):
            family = line[2:]
        elif line:
            reader, _, rest = line.partition(" | ")
            output, _, due = rest.rpartition("=>")
            output = output[:-1].replace("\\n", "\n")
            cases.append(pytest.param(reader, output, due.strip(), id=f"{family}: {output[:60]!r}"))
    return cases


def wordings(output: str) -> list[str]:
    """Expand the choices of a template."""
    parts = EITHER.split(output)
    choices = [part.split("|") if place % 2 else [part] for place, part in enumerate(parts)]
    return ["".join(chosen) for chosen in product(*choices)]


def read(reader: str, output: str) -> Answer:
    name, *words = reader.split()
    was_cut = CUT.get(words[-1]) if words else None
    if was_cut is not None:
        words.pop()
    if name == "yn":
        return yes_no(output, was_cut=was_cut)
    if name == "short":
        return short(output, " ".join(words), was_cut=was_cut)
    return choice(output, OPTIONS[name], was_cut=was_cut)


def reading(answer: Answer, due: str) -> str:
    if answer.value is None:
        return "-" if answer.status == "none" and due == "-" else "0"
    return {True: "right", False: "wrong"}.get(answer.value, str(answer.value))  # type: ignore[arg-type]


@pytest.mark.parametrize(("reader", "output", "due"), families())
def test_an_output_is_read_as_the_others_of_its_family(reader: str, output: str, due: str) -> None:
    readings = {said: reading(read(reader, said), due) for said in wordings(output)}
    assert {said: value for said, value in readings.items() if value != due} == {}
