"""Costs in the paper's layout."""

from __future__ import annotations

from pathlib import Path

from report_fixtures import synthetic_run
from synthetic_steps import PHASES

from bas_opd.data.records import PreparedSet
from bas_opd.report.costs import supervision_table, time_table, token_table
from bas_opd.report.run import read_run


def test_tokens_are_relative_to_full_querying_or_else_to_the_own_candidates(
    pictures: PreparedSet, tmp_path: Path
) -> None:
    run = read_run(synthetic_run(tmp_path / "run", pictures, steps=3))
    full = read_run(synthetic_run(tmp_path / "full", pictures, steps=3, policy="full", seed=1))
    scored = run.totals["scored_tokens"]
    for table, whole in (
        (supervision_table({"a": run}), run.totals["candidate_tokens"]),
        (supervision_table({"a": run}, {"a": full}), full.totals["scored_tokens"]),
    ):
        (row,) = table.rows
        assert row[table.header.index("tokens vs. full")] == f"{100 * scored / whole:.2f} %"
        assert len(table.quoted) == 4


def test_times_are_sums_and_means_over_steps(pictures: PreparedSet, tmp_path: Path) -> None:
    run = read_run(synthetic_run(tmp_path / "run", pictures, steps=4))
    table = time_table({"a": run})
    step = sum(PHASES.values())
    assert dict(zip(table.header, *table.rows, strict=True)) == {
        "policy": "a",
        "teacher sum": "2.00 s",
        "teacher / step": "0.50 s",
        "mean step": f"{step:.2f} s",
        "total step time": f"{4 * step:.2f} s",
    }


def test_every_row_has_a_cell_for_each_heading(pictures: PreparedSet, tmp_path: Path) -> None:
    runs = {"a": read_run(synthetic_run(tmp_path / "run", pictures, steps=0, planned=3))}
    for table in (supervision_table(runs), time_table(runs), token_table(runs, {})):
        assert {len(row) for row in (*table.rows, *table.quoted)} == {len(table.header)}
