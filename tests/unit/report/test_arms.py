from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from report_fixtures import evaluate, synthetic_run
from shapes import make_pictures

from bas_opd.data.records import PreparedSet
from bas_opd.errors import DataError
from bas_opd.report.arms import arm_key, arm_names, arms_of_runs
from bas_opd.report.run import Run, read_run


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedSet:
    return make_pictures(tmp_path_factory.mktemp("families") / "data", n=16, seed=1)


def run(path: Path, data: PreparedSet, *, seed: int = 0, policy: str = "learned") -> Run:
    evaluate(synthetic_run(path, data, seed=seed, policy=policy), [True, False] * 5)
    return read_run(path)


def without_overlap(run: Run) -> Run:
    distill = run.config.distill.model_copy(update={"use_overlap": False})
    return replace(run, config=run.config.model_copy(update={"distill": distill}))


def test_runs_that_differ_in_seeds_and_places_are_one_arm(
    tmp_path: Path, data: PreparedSet
) -> None:
    first, second = run(tmp_path / "a", data), run(tmp_path / "b", data, seed=1)
    assert arm_key(first) == arm_key(second)
    assert arm_key(first) != arm_key(without_overlap(second))


def test_runs_on_other_data_are_another_arm(tmp_path: Path, data: PreparedSet) -> None:
    other = make_pictures(tmp_path / "other", n=16, seed=2)
    assert arm_key(run(tmp_path / "a", data)) != arm_key(run(tmp_path / "b", other))


def test_an_ablation_is_named_by_what_it_changes(tmp_path: Path, data: PreparedSet) -> None:
    plain = run(tmp_path / "a", data)
    names = arm_names([plain, without_overlap(plain)])
    assert list(names.values()) == ["learned-25", "learned-25, distill.use_overlap=false"]


def test_another_teacher_is_named_without_the_folders_above_it(
    tmp_path: Path, data: PreparedSet
) -> None:
    settings = {"teacher": {"path": "/home/someone/models/big"}}
    other = read_run(synthetic_run(tmp_path / "b", data, settings=settings))
    names = arm_names([run(tmp_path / "a", data), other])
    assert names[arm_key(other)] == "learned-25, teacher.mode=frozen, teacher.path=…/models/big"


def test_ablations_are_arms_of_their_own_and_seeds_are_not(
    tmp_path: Path, data: PreparedSet
) -> None:
    plain, again = run(tmp_path / "a", data), run(tmp_path / "b", data, seed=1)
    full = run(tmp_path / "c", data, policy="full")
    arms = arms_of_runs([full, plain, without_overlap(plain), again])
    assert [(arm.name, arm.seeds) for arm in arms] == [
        ("learned-25", 2),
        ("learned-25, distill.use_overlap=false", 1),
        ("full", 1),
    ]


def test_the_same_seed_twice_is_refused(tmp_path: Path, data: PreparedSet) -> None:
    with pytest.raises(DataError, match="have the same seeds"):
        arms_of_runs([run(tmp_path / "a", data), run(tmp_path / "b", data)])
