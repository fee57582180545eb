"""Costs in the paper's layout."""

from __future__ import annotations

from pathlib import Path

from report_fixtures import synthetic_run
from synthetic_steps import PHASES

from bas_opd.data.records import PreparedSet
from bas_opd.report.costs import SUPERVISION_HEADER, TIME_HEADER, supervision_table, time_table
from bas_opd.report.run import read_run


def test_tokens_are_relative_to_full_querying_or_else_to_the_own_candidates(
    pictures: PreparedSet, tmp_path: Path
) -> None:
    run = read_run(synthetic_run(tmp_path / "run", pictures, steps=3))
    full = read_run(synthetic_run(tmp_path / "full", pictures, steps=3, policy="full", seed=1))
    place = SUPERVISION_HEADER.index("tokens vs. full")
    scored = run.totals["scored_tokens"]
    for table, whole in (
        (supervision_table({"a": run}), run.totals["candidate_tokens"]),
        (supervision_table({"a": run}, {"a": full}), full.totals["scored_tokens"]),
    ):
        assert table[0].cells[place] == f"{100 * scored / whole:.2f} %"
        assert [row.is_quoted for row in table] == [False, True, True, True, True]


def test_times_are_sums_and_means_over_steps(pictures: PreparedSet, tmp_path: Path) -> None:
    run = read_run(synthetic_run(tmp_path / "run", pictures, steps=4))
    row = time_table({"a": run})[0]
    step = sum(PHASES.values())
    assert dict(zip(TIME_HEADER, row.cells, strict=True)) == {
        "policy": "a",
        "teacher sum": "2.00 s",
        "teacher / step": "0.50 s",
        "mean step": f"{step:.2f} s",
        "total step time": f"{4 * step:.2f} s",
    }


def test_every_row_has_a_cell_for_each_heading(pictures: PreparedSet, tmp_path: Path) -> None:
    runs = {"a": read_run(synthetic_run(tmp_path / "run", pictures, steps=0, planned=3))}
    assert {len(row.cells) for row in supervision_table(runs)} == {len(SUPERVISION_HEADER)}
    assert {len(row.cells) for row in time_table(runs)} == {len(TIME_HEADER)}
