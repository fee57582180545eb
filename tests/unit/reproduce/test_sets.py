"""What is drawn to train on and to judge by."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Literal

import pytest
from shapes import make_pictures

from bas_opd.data.records import PreparedSet, read_manifest
from bas_opd.errors import DataError
from bas_opd.model.base import LEARNT_KINDS
from bas_opd.reproduce.policies import Request, common_inputs, plan_runs, seeded


class Messages(list[str]):
    """Progress that keeps its messages."""

    def start(self, total: int, what: str = "steps", *, done: int = 0) -> None: ...
    def advance(self, count: int = 1) -> None: ...
    def message(self, text: str) -> None:
        self.append(text)


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few pictures are drawn before another process has started."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)


def check(folder: Path, split: str, n: int) -> None:
    """Small things, the kinds the base has learnt in turn, the first seed, and n of them."""
    expected = [
        (f"{split}-small-0-{index:06d}{side}", kind)
        for index, kind in zip(range(n), cycle(LEARNT_KINDS), strict=False)
        for side in (("-a", "-b") if kind == "pair" else ("",))
    ]
    drawn = PreparedSet.load(folder).examples
    assert [(example.id, example.kind) for example in drawn] == expected[:n]
    manifest = read_manifest(folder)
    assert set(manifest.kinds) == set(LEARNT_KINDS)
    assert f"split {split}, size small, seed 0" in manifest.source


@pytest.mark.parametrize(("split", "n"), [("val", 17), ("test", 17)])
def test_the_train_split_and_the_questions_asked_for_are_drawn_and_no_other(
    tmp_path: Path, split: Literal["val", "test"], n: int
) -> None:
    request = Request(out=tmp_path, base=tmp_path, train_n=16, test_n=n)
    messages = Messages()
    inputs = common_inputs(request, messages, split=split)
    folder = tmp_path / "data"
    assert (inputs.train.folder, inputs.questions.folder) == (folder / "train", folder / split)
    check(folder / "train", "train", 16)
    check(folder / split, split, n)
    assert sorted(path.name for path in folder.iterdir()) == sorted(["train", split])
    assert messages == [f"Drawing {folder / 'train'}.", f"Drawing {folder / split}."]
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (run,) = plan_runs(inputs, tmp_path, seeded(["base"], 1))
    assert (run.planned.split, run.planned.task) == (split, "FineSearch")
    assert run.planned.questions == PreparedSet.load(folder / split).fingerprint


def test_a_split_that_is_there_is_used_if_it_has_the_size(tmp_path: Path) -> None:
    made = make_pictures(tmp_path / "train", n=4, seed=0)
    make_pictures(tmp_path / "val", n=3, seed=0)
    request = Request(out=tmp_path / "out", data=tmp_path, base=tmp_path, train_n=4, test_n=3)
    assert common_inputs(request, Messages(), split="val").train.fingerprint == made.fingerprint
    with pytest.raises(DataError, match=r"train has 4 examples, but 5"):
        common_inputs(replace(request, train_n=5), Messages(), split="val")
