from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report_fixtures import evaluate

from bas_opd.evaluate import results
from bas_opd.evaluate.benchmarks import Scored, benchmark
from bas_opd.evaluate.benchmarks.benchmark import LoadedSet
from bas_opd.evaluate.evaluation import Evaluation
from bas_opd.evaluate.questions import Output, Picture, Question
from bas_opd.evaluate.results import REPORT, read_evaluation, report_entry, write_report
from bas_opd.evaluate.samples import SCORES, score_line


def result(name: str, *, correct: int = 3, judge: str = "") -> dict[str, Any]:
    """What the report holds of a benchmark of four questions."""
    questions = tuple(
        Question(
            id=str(n),
            picture=Picture(lambda: b"", name="none"),
            prompt="",
            form="choice",
            reference="A",
            groups={"category": "x"},
        )
        for n in range(4)
    )
    loaded = LoadedSet(
        benchmark=name,
        folder=Path(),
        questions=questions,
        fingerprint=f"of {name}",
        is_partial=True,
    )
    each = Evaluation(benchmark=benchmark(name), loaded=loaded, model="m", folder=Path())
    output = Output(text="A", is_cut=False)
    scored = [Scored(id=str(n), outcome="correct" if n < correct else "wrong") for n in range(4)]
    lines = [score_line(q, output, s) for q, s in zip(questions, scored, strict=True)]
    made = report_entry(each, None, lines)
    return {**made, "judge": {"model": judge} if judge else None}


def write(out: Path, *entries: dict[str, Any], weights: str = "w") -> tuple[str, dict[str, Any]]:
    settings = {"weights": weights}
    text = write_report(out, model="mine", settings=settings, weights=None, entries=entries)
    assert (out / "report.md").read_text() == text
    return text, json.loads((out / "report.json").read_text())


def names(report: dict[str, Any]) -> list[str]:
    return [each["benchmark"] for each in report["benchmarks"]]


def test_what_was_found_out_about_the_same_model_stays_in_the_report(tmp_path: Path) -> None:
    write(tmp_path, result("mmstar", judge="one"))
    text, report = write(tmp_path, result("vstar", judge="two"))
    assert names(report) == ["vstar", "mmstar"]
    assert "**V*Bench**" in text
    assert "**MMStar**" in text
    assert text.count("75.00") >= 2
    assert report["judge"] == "two, one"
    assert [each["judge"]["model"] for each in report["benchmarks"]] == ["two", "one"]


def test_a_benchmark_that_is_evaluated_again_is_replaced(tmp_path: Path) -> None:
    write(tmp_path, result("vstar", correct=1))
    _, report = write(tmp_path, result("vstar", correct=4))
    assert [each["primary"]["correct"] for each in report["benchmarks"]] == [4]


def test_another_model_never_stands_in_this_ones_report(tmp_path: Path) -> None:
    write(tmp_path, result("vstar"))
    _, report = write(tmp_path, result("mmstar"), weights="others")
    assert names(report) == ["mmstar"]


def test_what_another_parser_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, result("vstar"))
    monkeypatch.setattr(results, "PARSER_VERSION", "another")
    _, report = write(tmp_path, result("mmstar"))
    assert names(report) == ["mmstar"]


@pytest.mark.parametrize("damage", ["", "[]", '{"identity": 1}'])
def test_a_damaged_report_is_replaced(damage: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(damage)
    _, report = write(tmp_path, result("vstar"))
    assert names(report) == ["vstar"]


def test_verdicts_of_other_models_and_judges_beside_them_are_passed_over(tmp_path: Path) -> None:
    """Scores of several evaluations share a file; their keys begin differently."""
    evaluate(tmp_path, [True, False] * 3)
    folder = tmp_path / "eval"
    scores = folder / "finesearch" / SCORES
    lines = [json.loads(line) for line in scores.read_text().splitlines()]
    mine = [{**line, "key": f"mine:{line['id']}"} for line in lines]
    foreign = [{**line, "key": f"other:{line['id']}", "outcome": "wrong"} for line in lines]
    scores.write_text("".join(f"{json.dumps(line)}\n" for line in (*foreign, *mine)))
    report = json.loads((folder / REPORT).read_text())
    report["benchmarks"][0]["scores"] = ["mine"]
    (folder / REPORT).write_text(json.dumps(report))
    found = read_evaluation(folder)
    assert found is not None
    assert [each.is_correct for each in found.results[0].scored] == [True, False] * 3


def test_verdicts_that_are_not_as_many_as_the_summary_counts_are_none(tmp_path: Path) -> None:
    evaluate(tmp_path, [True, False] * 3)
    scores = tmp_path / "eval" / "finesearch" / SCORES
    scores.write_text("".join(scores.read_text().splitlines(keepends=True)[:-1]))
    found = read_evaluation(tmp_path / "eval")
    assert found is not None
    assert found.results[0].scored == ()
