from __future__ import annotations

import json
from pathlib import Path

import pytest
from report_fixtures import evaluate, synthetic_run
from shapes import make_pictures
from typer.testing import CliRunner

from bas_opd.cli.main import app
from bas_opd.data.records import PreparedSet
from bas_opd.report.comparison import compare_runs
from bas_opd.report.pages.comparison_text import comparison_text
from bas_opd.report.run import read_run

ALL_RIGHT, HALF_RIGHT = [True] * 40, [True, False] * 20


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedSet:
    return make_pictures(tmp_path_factory.mktemp("compared") / "data", n=16, seed=1)


@pytest.fixture
def runs(tmp_path: Path, data: PreparedSet) -> list[Path]:
    full = synthetic_run(tmp_path / "full", data, policy="full")
    learned = synthetic_run(tmp_path / "learned", data)
    evaluate(full, ALL_RIGHT)
    evaluate(learned, HALF_RIGHT)
    return [full, learned]


def text(runs: list[Path]) -> str:
    return comparison_text(compare_runs([read_run(run) for run in runs]))


def test_each_run_has_a_line_with_its_cost_and_accuracy(runs: list[Path]) -> None:
    header, full, learned = text(runs).splitlines()[:3]
    assert header.split()[:2] == ["run", "steps"]
    assert full.startswith("1 full ")
    assert "100.0 %" in full
    assert "100.0 %  88.6 to 100.0" in full  # the mean of two kinds, twenty questions each
    assert "25.0 %" in learned
    assert "50.0 %" in learned


def test_a_difference_has_its_interval_and_its_significance(runs: list[Path]) -> None:
    sentence = next(line for line in text(runs).splitlines() if line.startswith("- "))
    assert "full" in sentence
    assert "learned-25" in sentence
    assert "-50.0 points" in sentence
    assert sentence.endswith("a loss for these two runs.")


def test_seeds_of_one_policy_are_summed_up(
    tmp_path: Path, data: PreparedSet, runs: list[Path]
) -> None:
    other = synthetic_run(tmp_path / "again", data, seed=1)
    evaluate(other, ALL_RIGHT)
    assert "learned-25 over 2 seeds: 75.0 ± 317.7 % (mean of kinds)" in text([*runs, other])


def test_what_stands_in_the_way_is_said(tmp_path: Path, data: PreparedSet) -> None:
    runs = [synthetic_run(tmp_path / name, data, policy=name) for name in ("random", "entropy")]
    assert "Not evaluated: random-25, entropy-25" in text(runs)
    assert "No run has full querying" in text(runs)


def test_what_the_teacher_processed_stands_beside_what_it_scored(runs: list[Path]) -> None:
    header, full, learned = text(runs).splitlines()[:3]
    assert header.split().count("processed") == 1
    full_tokens, tokens = (read_run(run).totals["processed_tokens"] for run in runs)
    assert f"{full_tokens:,} (100.0 %)" in full
    assert f"{tokens:,} ({100 * tokens / full_tokens:.1f} %)" in learned


def test_an_interval_that_is_not_known_is_none_in_json(tmp_path: Path, data: PreparedSet) -> None:
    runs = [synthetic_run(tmp_path / name, data, policy=name) for name in ("learned", "full")]
    for run, right in zip(runs, (True, False), strict=True):
        evaluate(run, [right])
    result = CliRunner().invoke(app, ["compare", *map(str, runs), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["pairs"][0]["half_width"] is None
    assert "(all questions, 1 question, 95 % CI unknown" in text(runs)


def test_the_command_prints_text_or_json_and_wants_two_runs(runs: list[Path]) -> None:
    names = [str(run) for run in runs]
    told = CliRunner().invoke(app, ["compare", *names])
    assert told.exit_code == 0
    assert told.stdout == f"{text(runs)}\n"
    numbers = json.loads(CliRunner().invoke(app, ["compare", *names, "--json"]).stdout)
    assert [run["calls"] for run in numbers["runs"]] == [
        read_run(run).totals["calls"] for run in runs
    ]
    assert numbers["pairs"][0]["difference"] == -0.5
    assert numbers["pairs"][0]["only_b"] == 20
    (told,) = numbers["runs"][1]["benchmarks"]
    assert (told["benchmark"], told["deferred"], told["judge"]) == ("finesearch", 0, None)
    alone = CliRunner().invoke(app, ["compare", names[0]])
    assert alone.exit_code == 2
    assert "two runs or more" in alone.stderr
