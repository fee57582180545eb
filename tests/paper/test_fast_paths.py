"""The page on fast paths: its table, and the numbers of its sentences."""

from __future__ import annotations

from pathlib import Path

from prose import sentences, unexplained
from study_records import StudyRecords, ends, is_as_claimed

from bas_opd.model.base import small_base
from bas_opd.reproduce.arms import BASE
from bas_opd.reproduce.policies import base_hash
from bas_opd.reproduce.table import folder_table, replace_table

DOCS = Path(__file__).parents[2] / "docs"
FILE = DOCS / "fast-paths.md"
RECORDS = StudyRecords(DOCS / "results/kernels")
FAST, PLAIN = "full", "full-reference"
GIVEN = {
    "FineSearch 2",
    "NVIDIA H200 in bfloat16",
    "a head in bfloat16",
    "in float32",
    "in float32 on a CPU",
    "all of it in float32",
    "more than 90 % of the gain",
    "64 steps of 8 prompts by 8 rollouts",
    "2026-11-19",
    "Qwen3-VL",
    "Qwen3.5-4B",
}


def test_every_number_in_a_sentence_is_that_of_the_records_or_given() -> None:
    lead, gain = RECORDS.gap(FAST, PLAIN), RECORDS.gap(PLAIN, BASE)
    lowest = lead.half_width - lead.mean
    assert {len(run.steps.loss) for run in RECORDS.results if run.steps} == {64}
    found = {
        f"answers {lead.mean:.1f} points more questions",
        f"(95 % CI {ends(lead, '+.1f')})",
        f"with {gain.n} seeds",
        f"64 steps gain {gain.mean:.1f} points over the base",
        f"more than {lowest:.2f} points, which is {100 * lowest / gain.mean:.0f} % of that",
    }
    assert unexplained(sentences(FILE), found | GIVEN) == []


def test_its_table_and_verdict_are_those_of_the_records() -> None:
    page = FILE.read_text(encoding="utf-8")
    assert replace_table(page, folder_table(RECORDS.study.path.parent)) == page
    assert RECORDS.verdicts() == {(FAST, PLAIN): True}
    assert RECORDS.gap(FAST, PLAIN).holds_zero


def test_every_result_is_of_the_settings_and_device_it_claims() -> None:
    assert len(RECORDS.results) == 17
    for result in RECORDS.results:
        assert result.base == base_hash(small_base("finesearch2"))
        assert is_as_claimed(result)
        assert result.device == ("NVIDIA H200" if result.arm == FAST else "CPU")
        assert ("model.kernels=reference" in result.settings) == (result.arm == PLAIN)
