"""The page on the methods of Table 2: its table, its rates and the numbers of its sentences."""

from __future__ import annotations

import json
from pathlib import Path

from prose import sentences, unexplained
from study_records import is_as_claimed

from bas_opd.data.views import TOLD
from bas_opd.model.base import small_base
from bas_opd.reproduce.arms import BASE, BASELINES
from bas_opd.reproduce.catalogue import cost_figure
from bas_opd.reproduce.policies import base_hash, best_rates, sweep_table
from bas_opd.reproduce.results import read_results
from bas_opd.reproduce.study import read_study
from bas_opd.reproduce.table import folder_table, replace_table

DOCS = Path(__file__).parents[2] / "docs"
FILE = DOCS / "table2.md"
FOLDER = DOCS / "results/table2"
STUDY = read_study(FOLDER / "study.toml")
ORDER = [arm.name for arm in STUDY.arms]
SWEEP = sorted(read_results(FOLDER / "sweep"), key=lambda result: ORDER.index(result.arm))
GIVEN = (
    *("Table 2", "FineSearch 2", "learned-25", "with Qwen3.5-4B", "for Qwen3.5-4B"),
    "One NVIDIA H200, 2026-11-16",
)
"""Names and dates."""


def chosen() -> dict[str, float]:
    """Return the best rate of each arm, as the table of the sweep has them."""
    lines = sweep_table(SWEEP).splitlines()
    arms = [cell.strip() for cell in lines[0].split("|")[2:-1]]
    best = next(line for line in lines if line.startswith("| chosen"))
    found = dict(zip(arms, (float(cell) for cell in best.split("|")[2:-1]), strict=True))
    assert found == best_rates(SWEEP)
    return found


def test_every_number_in_a_sentence_is_that_of_the_study_or_given() -> None:
    declared = STUDY.declared
    assert {len(arm.seeds) for arm in declared.arms} == {8}
    computed = {
        f"Each run has {declared.steps} steps",
        f"every {declared.evaluate_every} steps on {declared.evaluate_on} of the test questions",
        sweep_table(SWEEP).splitlines()[-1],
    }
    text = sentences(FILE).replace("one NVIDIA", "One NVIDIA")
    given = {each for each in GIVEN if each in text}
    assert unexplained(text, computed | given) == []


def test_table_and_rates_are_those_of_their_records() -> None:
    page = FILE.read_text(encoding="utf-8")
    table = folder_table(FOLDER) if any(FOLDER.glob("*.json")) else "Not run yet.\n"
    assert replace_table(page, table) == page
    assert sweep_table(SWEEP) in page
    assert {arm.name: arm.learning_rate for arm in STUDY.declared.arms} == chosen()


def test_an_arm_whose_best_rate_is_its_lowest_or_highest_leaves_the_study_a_draft() -> None:
    open_ended = []
    for arm, best in chosen().items():
        rates = {result.learning_rate for result in SWEEP if result.arm == arm}
        assert len(rates) >= 4
        if best in (min(rates), max(rates)):
            open_ended.append(arm)
    if STUDY.declared.draft:
        assert open_ended == ["grpo-released", "opsd", "opsd-frozen"]
    # With a teacher that misleads, the lowest rate is the best however low it is.
    assert set(open_ended) <= {"grpo-released", "opsd", "opsd-frozen"}


def test_the_pages_say_whether_it_was_run_and_show_its_figure() -> None:
    has_run = any(FOLDER.glob("*.json"))
    for page, sentence in (
        (FILE, "**In short.** Not run yet"),
        (DOCS / "methods.md", "the results are not there yet"),
        (DOCS.parent / "README.md", "Their results are not yet published"),
    ):
        assert (sentence in " ".join(page.read_text("utf-8").split())) == (not has_run), page
    page = FILE.read_text("utf-8")
    assert ("are left to try" in page) == STUDY.declared.draft
    if has_run:
        assert not STUDY.declared.draft
        assert "](figures/table2.svg)" in page
        assert (DOCS / "figures/table2.svg").read_text("utf-8") == cost_figure(FOLDER)


def test_the_trials_have_a_seed_that_the_study_does_not_use() -> None:
    used = {seed for arm in STUDY.declared.arms for seed in arm.seeds}
    tried = {result.seed for result in SWEEP if result.arm != BASE}
    assert {result.split for result in SWEEP} == {"val"}
    assert tried == {25}
    assert not tried & used


def test_every_trial_is_of_the_settings_and_the_base_it_claims() -> None:
    assert len({(result.train, result.questions) for result in SWEEP}) == 1
    for result in SWEEP:
        assert result.base == base_hash(small_base("finesearch2"))
        assert is_as_claimed(result)


def test_opsd_is_worse_than_the_base_and_its_teacher_worse_than_the_student() -> None:
    (base,) = (result for result in SWEEP if result.arm == BASE)
    opsd = [result for result in SWEEP if result.preset in ("opsd", "opsd-frozen")]
    assert max(result.accuracy for result in opsd) < base.accuracy
    lines = (FOLDER / "told.jsonl").read_text(encoding="utf-8").splitlines()
    plain, told, *others = map(json.loads, lines)
    assert "told" not in plain
    assert told["told"] == TOLD
    name = "mean of learnt kinds"
    methods = " ".join((DOCS / "methods.md").read_text(encoding="utf-8").split())
    assert (
        f"it answers {100 * told[name]:.1f} % of {told['n']} val questions right, "
        f"against {100 * plain[name]:.1f} % without the answer"
    ) in methods
    most = max(other[name] for other in others)
    assert f"the best of these {len(others)} reaches {100 * most:.1f} %" in methods
    compared = {each.against for each in STUDY.declared.comparisons}
    assert {arm.name for arm in BASELINES} - compared == {"sft-unfiltered", "opsd-frozen"}
