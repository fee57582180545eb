"""What a whole reproduction is made of: which runs, trained on what, judged by what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from result_fixtures import answered
from shapes import make_pictures

from bas_opd.data.records import PreparedSet
from bas_opd.reproduce import policies
from bas_opd.reproduce.policies import Request, reproduce
from bas_opd.reproduce.results import Run, write_result


class Silent:
    """Ignores progress."""

    def start(self, total: int, what: str = "steps", *, done: int = 0) -> None: ...
    def advance(self, count: int = 1) -> None: ...
    def message(self, text: str) -> None: ...


@pytest.fixture
def request_(tmp_path: Path) -> Request:
    (tmp_path / "base").mkdir()
    (tmp_path / "base/model.safetensors").write_bytes(b"weights")
    return Request(
        out=tmp_path / "out",
        scale="small",
        arms=("full",),
        seeds=2,
        jobs=1,
        device="cpu",
        data=None,
        base=tmp_path / "base",
        train_n=6,
        test_n=5,
        rates=None,
        overrides=("run.steps=1", "rollout.prompts_per_step=2"),
    )


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The runs that would be made; pictures stand in for FineSearch, and results are made up."""
    runs: list[Run] = []

    def draw(place: Path, *, split: str, n: int, **_: Any) -> Any:
        return make_pictures(place, n=n, seed=["train", "val", "test"].index(split))

    def run_all(given: Sequence[Run], **_: Any) -> None:
        runs.extend(given)
        for run in given:
            run.result.parent.mkdir(parents=True, exist_ok=True)
            kinds = [each.kind for each in PreparedSet.load(run.questions).examples]
            write_result(run.result, answered(run, kinds, lambda place: place % 2 == 0))

    monkeypatch.setattr("bas_opd.data.finesearch.make_finesearch", draw)
    monkeypatch.setattr(policies, "run_all", run_all)
    return runs


def drawn(request: Request) -> list[str]:
    return sorted(path.name for path in (request.out / "data").iterdir())


def test_the_table_is_evaluated_on_test_and_val_is_not_touched(
    request_: Request, begun: list[Run]
) -> None:
    assert "5 test questions" in reproduce(request_, Silent())
    assert [run.name for run in begun] == ["full-0", "full-1"]
    for run in begun:
        assert run.planned.split == "test"
        assert run.questions == request_.out / "data/test"
        assert run.config.data.path == str(request_.out / "data/train")
    assert drawn(request_) == ["test", "train"]


def test_a_learning_rate_is_evaluated_on_val_and_test_is_not_even_drawn(
    request_: Request, begun: list[Run]
) -> None:
    assert "5 val questions" in reproduce(replace(request_, rates="1e-4,3e-4"), Silent())
    val = PreparedSet.load(request_.out / "data/val")
    assert [run.name for run in begun] == ["base", "full-0-lr0.0001", "full-0-lr0.0003"]
    for run in begun:
        assert run.planned.split == "val"
        assert (run.questions, run.planned.questions) == (val.folder, val.fingerprint)
        assert run.config.data.path == str(request_.out / "data/train")
    assert drawn(request_) == ["train", "val"]
