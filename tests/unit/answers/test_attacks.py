"""Outputs written to mislead a reader, and the bars that readings of them must keep.

In `attacks.jsonl`, `due` is a person's reading: a value where an output is clear, `?` where it is
not, `-` where it gives no answer, and `?B` where readers may differ: B, or a case for the judge.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bas_opd.answers import Answer, choice, short, yes_no

ATTACKS: list[dict[str, Any]] = [
    json.loads(line)
    for line in Path(__file__).with_name("attacks.jsonl").read_text("utf-8").splitlines()
]
READERS = ("choice", "yes_no", "short")


def read(attack: dict[str, Any]) -> Answer:
    if attack["reader"] == "choice":
        return choice(attack["output"], attack["options"])
    if attack["reader"] == "short":
        return short(attack["output"], attack["reference"])
    return yes_no(attack["output"])


def verdict(answer: Answer) -> str | None:
    """Give a value as the file spells it; None where none was read."""
    names = {True: "right", False: "wrong"}
    return names[answer.value] if isinstance(answer.value, bool) else answer.value


def clear(reader: str) -> Iterator[tuple[dict[str, Any], Answer]]:
    for attack in ATTACKS:
        if attack["reader"] == reader and attack["due"][0] not in "?-":
            yield attack, read(attack)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: repr(attack["output"][:50]))
def test_a_reading_is_a_persons_reading_or_none(attack: dict[str, Any]) -> None:
    assert verdict(read(attack)) in (None, attack["due"].lstrip("?-"))


@pytest.mark.parametrize("reader", READERS)
def test_at_most_a_tenth_of_clear_outputs_is_deferred(reader: str) -> None:
    statuses = [answer.status for _, answer in clear(reader)]
    assert len(statuses) > 100
    assert statuses.count("deferred") <= len(statuses) / 10


@pytest.mark.parametrize("reader", READERS)
def test_no_clear_output_is_taken_for_no_answer(reader: str) -> None:
    assert [attack["output"] for attack, answer in clear(reader) if answer.status == "none"] == []
