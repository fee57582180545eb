"""A fixed part of what `make fuzz` does: what it has found, and a sample of changes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from fuzz import CORPUS, Targets, changed

FOUND = sorted(path for path in CORPUS.rglob("*") if path.is_file())
SAMPLE = 40


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Targets:
    return Targets(tmp_path_factory.mktemp("fuzz"))


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_was_found_once_is_a_sentence_now(path: Path, targets: Targets) -> None:
    targets.check(path.parent.name, path.read_bytes())


def test_a_sample_of_changes_is_a_sentence(targets: Targets) -> None:
    draw = random.Random(0)
    for name, (path, _) in targets.read.items():
        whole = path.read_bytes()
        for _ in range(SAMPLE):
            targets.check(name, changed(whole, draw))
