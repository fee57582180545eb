"""What is drawn to train on and to judge by."""

from __future__ import annotations

import os
from itertools import cycle
from pathlib import Path

import pytest

from bas_opd.data.records import PreparedSet, read_manifest
from bas_opd.model.base import LEARNT_KINDS
from bas_opd.reproduce.sets import Sizes, questions, training_set

SIZES = Sizes(train=16, val=17, test=18)


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


def test_training_draws_the_train_split_and_nothing_to_judge_by(tmp_path: Path) -> None:
    made = training_set(tmp_path, SIZES)
    assert made.folder == tmp_path / "train"
    check(made.folder, "train", 16)
    assert [path.name for path in tmp_path.iterdir()] == ["train"]


@pytest.mark.parametrize(("split", "n"), [("val", 17), ("test", 18)])
def test_judging_draws_the_split_that_is_asked_for_and_no_other(
    tmp_path: Path, split: str, n: int
) -> None:
    asked = questions(tmp_path, split, SIZES)  # pyright: ignore[reportArgumentType]
    assert (asked.folder, asked.split, asked.task) == (tmp_path / split, split, "FineSearch")
    assert asked.fingerprint == PreparedSet.load(asked.folder).fingerprint
    check(asked.folder, split, n)
    assert [path.name for path in tmp_path.iterdir()] == [split]
