"""The page on engines: what it says of rollouts one step ahead is what the study found."""

from __future__ import annotations

from pathlib import Path

from prose import unexplained, without_tables
from study_records import StudyRecords, ends, is_as_claimed

from bas_opd.model.base import small_base
from bas_opd.reproduce.arms import BASE
from bas_opd.reproduce.policies import base_hash
from bas_opd.reproduce.table import folder_table, replace_table

DOCS = Path(__file__).parents[2] / "docs"
FOLDER = DOCS / "results/ahead"
PAGE = DOCS / "engines.md"
ON_POLICY, AHEAD = "full", "full-ahead"
GIVEN = {
    "FineSearch 2",
    "32 steps of 8 prompts by 8 rollouts",
    "Two cores of an AMD EPYC, 2026-11-18, torch 2.13.0, bfloat16",
    "95 % CI",
    "paper's 111 steps",
}


def section() -> str:
    text = PAGE.read_text(encoding="utf-8").partition("### What the lag costs\n")[2]
    return without_tables(
        text.partition("\n## ")[0].partition("```sh")[0] + text.partition("```\n")[2]
    )


def test_every_number_of_its_section_is_that_of_the_study_or_given() -> None:
    records = StudyRecords(FOLDER)
    lead, gain, late = (
        records.gap(*pair) for pair in ((ON_POLICY, AHEAD), (ON_POLICY, BASE), (AHEAD, BASE))
    )
    assert records.verdicts() == {(ON_POLICY, AHEAD): False}
    assert {len(run.steps.loss) for run in records.results if run.steps} == {32}
    assert 0.4 < lead.mean + lead.half_width < 0.6
    found = {
        f"leads by {lead.mean:.1f} points (95 % CI {ends(lead, '+.1f')})",
        f"{gain.mean:.1f} points over the base ({ends(gain)})",
        f"one step ahead {late.mean:.1f} ({ends(late)})",
        f"Each has {gain.n} seeds",
    }
    text = section()
    assert unexplained(text, found | GIVEN) == []


def test_its_table_is_that_of_the_records() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert replace_table(page, folder_table(FOLDER)) == page


def test_every_result_is_of_the_settings_it_claims_and_lags_as_its_arm() -> None:
    records = StudyRecords(FOLDER)
    assert len(records.results) == 17
    for result in records.results:
        assert result.base == base_hash(small_base("finesearch2"))
        assert is_as_claimed(result)
        assert ("rollout.ahead=1" in result.settings) == (result.arm == AHEAD)
