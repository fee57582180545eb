from __future__ import annotations

import json
from pathlib import Path

from report_fixtures import evaluate

from bas_opd.report.evaluation import REPORT, SCORES, read_evaluation


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
