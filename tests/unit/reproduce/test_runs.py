"""Which runs there are, and which are left to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from result_fixtures import result
from shapes import make_pictures

from bas_opd.errors import BasOpdError, ConfigError, DataError, ModelError, RunDirectoryError
from bas_opd.reproduce import policies
from bas_opd.reproduce.policies import (
    Inputs,
    Request,
    is_settled,
    parse_rates,
    plan_runs,
    plan_sweep,
    run_all,
    seeded,
    sweep_table,
)
from bas_opd.reproduce.results import Run, write_result


class Recorded:
    """Progress that keeps what it receives."""

    def __init__(self) -> None:
        self.steps = self.total = 0
        self.messages: list[str] = []

    def start(self, total: int, what: str = "steps", *, done: int = 0) -> None:
        self.total = total

    def advance(self, count: int = 1) -> None:
        self.steps += count

    def message(self, text: str) -> None:
        self.messages.append(text)


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    base = tmp_path / "base"
    base.mkdir()
    (base / "model.safetensors").write_bytes(b"weights")
    return Inputs(
        request=Request(out=tmp_path, overrides=("run.steps=3",)),
        base=base,
        train=make_pictures(tmp_path / "train", n=4, seed=0),
        questions=make_pictures(tmp_path / "test", n=4, seed=1),
        split="test",
    )


def plan(tmp_path: Path, inputs: Inputs) -> list[Run]:
    return plan_runs(inputs, tmp_path / "results", seeded(["base", "full"], 2))


def settle(run: Run, **changes: object) -> None:
    run.result.parent.mkdir(exist_ok=True)
    plan = run.planned
    about = {"identity": plan.identity, **changes}
    write_result(run.result, result(plan.arm, plan.seed, 5, **about))


def test_runs_are_planned_seed_by_seed_and_the_base_once(tmp_path: Path, inputs: Inputs) -> None:
    runs = plan(tmp_path, inputs)
    assert [run.name for run in runs] == ["base", "full-0", "full-1"]
    assert [run.planned.seed for run in runs] == [None, 0, 1]
    assert [run.steps for run in runs] == [0, 3, 3]
    assert runs[2].config.run.output == str(tmp_path / "runs" / "full-1")
    assert len({run.planned.identity for run in runs[1:]}) == 2


def test_another_base_makes_other_runs(tmp_path: Path, inputs: Inputs) -> None:
    before = plan(tmp_path, inputs)[1].planned.identity
    (inputs.base / "model.safetensors").write_bytes(b"others")
    assert plan(tmp_path, inputs)[1].planned.identity != before
    (inputs.base / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no weights"):
        plan(tmp_path, inputs)


def test_a_whole_result_settles_its_run_and_a_damaged_one_is_left_to_the_user(
    tmp_path: Path, inputs: Inputs
) -> None:
    run = plan(tmp_path, inputs)[1]
    assert not is_settled(run)
    settle(run)
    assert is_settled(run)
    run.result.write_text(run.result.read_text()[:-30])
    with pytest.raises(DataError, match="Remove the file"):
        is_settled(run)


def test_the_result_of_another_run_is_never_replaced(tmp_path: Path, inputs: Inputs) -> None:
    run = plan(tmp_path, inputs)[1]
    settle(run, identity="another")
    with pytest.raises(RunDirectoryError, match=r"full-0\.json.*would be lost.*another --out"):
        is_settled(run)


def test_only_what_is_missing_is_run_and_failures_are_named_at_the_end(
    tmp_path: Path, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = plan(tmp_path, inputs)
    settle(runs[0])
    begun: list[Run] = []

    def pool(tasks, *, jobs, start, logs):
        begun.extend(tasks)
        yield tasks[0], "stepped", 2
        yield tasks[0], "failed", "It was refused."
        yield tasks[1], "done", "fine"

    monkeypatch.setattr(policies, "run_side_by_side", pool)
    progress = Recorded()
    with pytest.raises(BasOpdError, match=r"1 of 2 runs failed: full-0\..*same command"):
        run_all(runs, jobs=8, logs=tmp_path, progress=progress)
    assert [(run.name, run.jobs) for run in begun] == [("full-0", 2), ("full-1", 2)]
    assert progress.messages[0] == "1 of 3 results exist already."
    assert progress.messages[1].startswith("1/2 full-0: failed. It was refused.  eta ")
    assert progress.messages[2] == "2/2 full-1: fine"
    assert (progress.total, progress.steps) == (6, 5)


def test_the_longest_run_starts_first_and_the_others_keep_their_order(
    tmp_path: Path, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def pool(tasks, *, jobs, start, logs):
        begun.extend(run.name for run in tasks)
        yield from ((run, "done", "fine") for run in tasks)

    monkeypatch.setattr(policies, "run_side_by_side", pool)
    arms = seeded(["base", "fewer1", "full", "sft", "dapo"], 2)
    run_all(plan_runs(inputs, tmp_path, arms), jobs=2, logs=tmp_path, progress=Recorded())
    assert begun == [
        *("dapo-0", "dapo-1", "base"),
        *("fewer1-0", "full-0", "sft-0", "fewer1-1", "full-1", "sft-1"),
    ]


def test_a_sweep_has_every_rate_once_and_its_table_names_the_gain(
    tmp_path: Path, inputs: Inputs
) -> None:
    rates = parse_rates("1e-4,3e-5,0.0001")
    assert rates == (3e-5, 1e-4)
    runs = plan_sweep(inputs, tmp_path / "sweep", rates, seeded(["full", "random25"], 1))
    assert [run.name for run in runs] == [
        "base",
        *("full-0-lr3e-05", "random25-0-lr3e-05", "full-0-lr0.0001", "random25-0-lr0.0001"),
    ]
    made = []
    for run, right in zip(runs, (2, 5, 6, 7, 1), strict=True):
        rate, plan = run.config.optim.learning_rate, run.planned
        assert plan.learning_rate == rate
        made.append(result(plan.arm, plan.seed, right, learning_rate=rate, split="val"))
    table = sweep_table(made)
    assert "| 3e-05 | 45.00% (+15.00) | 50.00% (+20.00) |" in table
    assert "| 0.0001 | 55.00% (+25.00) | 25.00% (-5.00) |" in table
    assert "| chosen | 0.0001 | 3e-05 |" in table
    assert "20 val questions, 1 seed." in table
    lower = result("full", 0, 7, learning_rate=1e-5, split="val")
    table = sweep_table([*made, lower])
    assert "| 1e-05 | 55.00% (+25.00) | - |" in table
    assert "| chosen | 1e-05 | 3e-05 |" in table


@pytest.mark.parametrize("text", ["", "fast", "1e-4,", "-1", "nan", "inf"])
def test_what_is_no_learning_rate_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no list of learning rates"):
        parse_rates(text)
