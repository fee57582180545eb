"""Grades are read again from records as they were read in training."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bas_opd.answers import answer_key
from bas_opd.config import load_config, preset
from bas_opd.run.regrading import generation_problems

LONG = (
    "There is no dog in this picture, which shows a quiet street with several parked cars and a "
    "tall building on the left"
)
CONFIG = load_config(
    preset("sft"), ["model.path=m", "data.path=d", "rollout.per_prompt=1", "run.output=o"]
)


@pytest.mark.parametrize(
    ("question", "answer", "response"),
    [
        ("Is there a dog in the picture?", "no", LONG),
        ("How many cups are there?", "3", "The answer is 3,"),
        ("Which is it?\nA. a cat\nB. a dog", "B", "It is B. a dog, which lies beside the old door"),
    ],
)
@pytest.mark.parametrize("length", [26, 1024])
def test_a_response_that_ended_is_read_as_one_that_ended(
    question: str, answer: str, response: str, length: int
) -> None:
    key = answer_key(question, answer)
    assert key is not None
    grade = key.grade(response, was_cut=False)
    assert grade == "right"
    shown = SimpleNamespace(row=0, question=question, answer=answer, response=response)
    step: Any = SimpleNamespace(
        per_prompt=1,
        grades=[grade],
        judged=[],
        response_tokens=[length],
        rows=[0],
        generated=1,
        examples=["a"],
        shown=[shown],
        student_prompt_tokens=None,
    )
    assert list(generation_problems(step, CONFIG, by_last_word=False)) == []
    step.grades, step.rows = ["wrong"], []
    problems = list(generation_problems(step, CONFIG, by_last_word=False))
    # At the limit the records do not say whether it was cut.
    assert any("reads as right" in each for each in problems) == (length < 1024)
