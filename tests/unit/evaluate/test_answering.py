from __future__ import annotations

import io
from typing import Any

import pytest
from PIL import Image

from bas_opd.evaluate.answering import LocalAnswerer
from bas_opd.evaluate.questions import Question
from bas_opd.model.base import small_base
from bas_opd.run import state


def picture() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(file, "PNG")
    return file.getvalue()


QUESTION = Question(
    id="q", picture=picture, prompt="What colour is it?", form="short", reference="red"
)


def test_the_model_is_loaded_once_for_all_benchmarks_and_not_before_a_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[Any] = []
    load = state.load_policy
    monkeypatch.setattr(state, "load_policy", lambda config: loaded.append(0) or load(config))
    answerer = LocalAnswerer(folder=small_base(), device="cpu", max_response_tokens=3)
    assert answerer.identity
    assert loaded == []
    first = list(answerer.answers([QUESTION]))
    assert list(answerer.answers([QUESTION])) == first
    assert loaded == [0]


def test_temperature_and_seed_are_on_record() -> None:
    answerer = LocalAnswerer(folder=small_base())
    assert "temperature 0, seed 42" in answerer.settings["decoding"]
