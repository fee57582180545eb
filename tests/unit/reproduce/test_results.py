"""Results as files: whole, checked, and tied to what made them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from result_fixtures import N, result, steps
from synthetic_steps import A_STEP

from bas_opd.errors import DataError
from bas_opd.evaluate.benchmarks.metric import ALL_QUESTIONS
from bas_opd.reproduce.arms import arm_config
from bas_opd.reproduce.results import Steps, identity, read_result, read_results, write_result

PATHS = ["model.path=m", "data.path=d", "run.output=o"]


def test_a_result_is_read_as_it_was_written_and_stays_small(tmp_path: Path) -> None:
    written = result("full", 0, 7)
    write_result(tmp_path / "full-0.json", written)
    assert read_result(tmp_path / "full-0.json") == written
    assert [path.name for path in tmp_path.iterdir()] == ["full-0.json"]
    assert len((tmp_path / "full-0.json").read_text().splitlines()) < 30
    assert read_results(tmp_path) == [written]


def test_accuracies_are_over_kinds_and_over_questions() -> None:
    uneven = result("full", 0, 7)
    assert uneven.accuracy == pytest.approx((0.7 + 0.4) / 2)
    assert uneven.measured(ALL_QUESTIONS) == pytest.approx(11 / N)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("outcomes", "1" * N),
        ("outcomes", "1" * 11),
        ("outcomes", "x" * N),
        ("n", N + 1),
        ("kinds", {"colour": {"n": 20, "correct": 21}}),
        ("steps", {"loss": [0.1], "calls": [1, 1], "scored_tokens": [1], "seconds": [1.0]}),
        ("steps", {"loss": [0.1], "calls": [1], "scored_tokens": [1], "seconds": [1.0]}),
        ("seed", "0"),
        ("schema_version", 2),
        ("more", 1),
    ],
)
def test_a_result_that_does_not_add_up_is_refused(tmp_path: Path, key: str, value: object) -> None:
    path = tmp_path / "full-0.json"
    write_result(path, result("full", 0, 7))
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(DataError, match=r"full-0\.json is damaged.*Remove the file"):
        read_result(path)


def test_a_result_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "full-0.json"
    write_result(path, result("full", 0, 7))
    path.write_text(path.read_text()[:-40])
    with pytest.raises(DataError, match="is damaged"):
        read_result(path)


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no results"):
        read_results(tmp_path)


def test_columns_are_the_steps_of_the_records_rounded() -> None:
    seconds = {"rollout": 1.23456, "teacher": 0.1}
    first = {"loss": 0.123456789, "calls": 3, "scored_tokens": 9, "seconds": seconds}
    last = {"loss": None, "calls": 0, "scored_tokens": 0, "seconds": {}}
    records = [A_STEP.model_copy(update=changes) for changes in (first, last)]
    assert Steps.of(records) == Steps(
        loss=[0.12346, None],
        calls=[3, 0],
        scored_tokens=[9, 0],
        responses=[len(A_STEP.response_tokens)] * 2,
        total_tokens=[A_STEP.token_costs["total_tokens"]] * 2,
        seconds=[1.335, 0.0],
    )
    assert steps().loss == [0.5, None]


def test_results_of_earlier_versions_keep_their_identity() -> None:
    # As it was before there were other methods.
    found = identity(arm_config("learned25", 0, PATHS), train="t", questions="q", base="b")
    assert found == "919532fe36229ac4d9ff3f5f4597589b185d155dbc7a53218ac3d23c25b46603"


def test_the_identity_is_of_what_was_run_not_of_where() -> None:
    here = identity(arm_config("full", 0, PATHS), train="t", questions="q", base="b")
    there = arm_config("full", 0, ["model.path=x", "data.path=y", "run.output=z"])
    assert identity(there, train="t", questions="q", base="b") == here
    others = [
        identity(arm_config("full", 1, PATHS), train="t", questions="q", base="b"),
        identity(arm_config("random25", 0, PATHS), train="t", questions="q", base="b"),
        identity(
            arm_config("full", 0, [*PATHS, "run.steps=3"]), train="t", questions="q", base="b"
        ),
        identity(arm_config("full", 0, PATHS), train="u", questions="q", base="b"),
        identity(arm_config("full", 0, PATHS), train="t", questions="r", base="b"),
        identity(arm_config("full", 0, PATHS), train="t", questions="q", base="c"),
    ]
    assert len({here, *others}) == 7
