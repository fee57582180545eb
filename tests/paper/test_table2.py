"""The pages on the methods of Table 2: their tables, rates and the numbers of their sentences."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from prose import sentences, unexplained
from study_records import StudyRecords, ends, is_as_claimed

from bas_opd.data.views import TOLD
from bas_opd.model.base import small_base
from bas_opd.reproduce.arms import BASE, BASELINES
from bas_opd.reproduce.catalogue import cost_figure
from bas_opd.reproduce.policies import base_hash, best_rates, sweep_table
from bas_opd.reproduce.results import RunResult, read_results
from bas_opd.reproduce.study import Study, read_study
from bas_opd.reproduce.table import folder_table, replace_table

DOCS = Path(__file__).parents[2] / "docs"
SHORT, LONG = "table2", "table2-long"
"""The study that was run, and the one with the paper's steps."""
EITHER = pytest.mark.parametrize("name", [SHORT, LONG])
GIVEN = {
    SHORT: {
        *("Table 2", "FineSearch 2", "learned-25", "Learned-25", "for Qwen3.5-4B"),
        *("111 steps of 28 prompts", "Two cores of an AMD EPYC, 2026-11-18, torch 2.13.0"),
        *("one rollout of each of 16 prompts", "32 steps of 8 prompts are few"),
        *("The warm-up is 4 steps", "with 95 % confidence intervals", "bfloat16"),
    },
    LONG: {
        *("Table 2", "FineSearch 2", "One NVIDIA H200, 2026-11-16"),
        "after 32 steps of 8 prompts",
    },
}
"""Names, dates and settings."""
OPEN_ENDED = {"grpo-released", "opsd", "opsd-frozen"}
"""Whose lowest rate may be the best: with a teacher that misleads it is, however low."""


def folder(name: str) -> Path:
    return DOCS / "results" / name


def study(name: str) -> Study:
    return read_study(folder(name) / "study.toml")


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def has_run(name: str) -> bool:
    return any(folder(name).glob("*.json"))


def sweep(name: str) -> list[RunResult]:
    order = [arm.name for arm in study(name).arms]
    return sorted(read_results(folder(name) / "sweep"), key=lambda each: order.index(each.arm))


def chosen(trials: Sequence[RunResult]) -> dict[str, float]:
    """Return the best rate of each arm, as the table of the sweep has them."""
    lines = sweep_table(trials).splitlines()
    arms = [cell.strip() for cell in lines[0].split("|")[2:-1]]
    best = next(line for line in lines if line.startswith("| chosen"))
    found = dict(zip(arms, (float(cell) for cell in best.split("|")[2:-1]), strict=True))
    assert found == best_rates(trials)
    return found


def found() -> Iterator[str]:
    """Yield the parts of sentences that the records of the short study determine."""
    records = StudyRecords(folder(SHORT))

    def gained(arm: str) -> str:
        gap = records.gap(arm, BASE)
        return f"{gap.mean:.1f} ({ends(gap)})"

    yield (
        f"Over the base, full querying gains {gained('full')} points, learned-25 "
        f"{gained('learned25')} and covering selection among prompts {gained('covering-prompts')}"
    )
    yield (
        f"SFT on the self-teacher gains {gained('sft')}, GRPO {gained('grpo')}, or "
        f"{gained('grpo-released')} as the base code has it, and DAPO {gained('dapo')}"
    )
    told, frozen = (records.gap(arm, BASE) for arm in ("opsd", "opsd-frozen"))
    yield (
        f"OPSD changes this model by {told.mean:+.1f} ({ends(told, '+.1f')}) points, with a frozen "
        f"teacher {frozen.mean:+.1f} ({ends(frozen, '+.1f')})"
    )
    assert [pair for pair, met in records.verdicts().items() if met] == [("learned25", "opsd")]
    leads = [records.gap("learned25", arm) for arm in ("sft", "grpo", "grpo-released", "dapo")]
    shown = [f"{lead.mean:+.1f} ({ends(lead, '+.1f')})" for lead in leads]
    yield (
        f"Learned-25's lead is {shown[0]} over SFT, {shown[1]} over GRPO, {shown[2]} over GRPO as "
        f"the base code has it, and {shown[3]} over DAPO"
    )
    widest = max(lead.half_width for lead in leads)
    yield f"intervals reach up to {widest:.1f} points to each side"
    yield f"{ {run.jobs for run in records.results}.pop() } runs in parallel"
    (trial,) = read_results(folder(SHORT) / "left-out")
    assert (trial.arm, trial.learning_rate) == ("dapo", 1e-3)
    yield f"DAPO had reached no more than {100 * trial.accuracy:.1f} % at 0.001"


@EITHER
def test_every_number_in_a_sentence_is_that_of_the_study_or_given(name: str) -> None:
    declared = study(name).declared
    assert {len(arm.seeds) for arm in declared.arms} == {8}
    computed = {sweep_table(sweep(name)).splitlines()[-1]}
    if name == SHORT:
        prompts, every, on = 8, declared.evaluate_every, declared.evaluate_on
        computed |= {
            *found(),
            f"It is short: {declared.steps} steps of {prompts} prompts",
            f"Each run has {declared.steps} steps of {prompts} prompts by 8 rollouts",
            f"every {every} steps on {on} of the test questions",
        }
    else:
        computed.add(f"the paper's {declared.steps} steps of 28 prompts")
    text = sentences(DOCS / f"{name}.md").replace("one NVIDIA", "One NVIDIA")
    given = {each for each in GIVEN[name] if each in text}
    assert unexplained(text, computed | given) == []


@EITHER
def test_table_and_rates_are_those_of_their_records(name: str) -> None:
    table = folder_table(folder(name)) if has_run(name) else "Not run yet.\n"
    assert replace_table(page(name), table) == page(name)
    assert sweep_table(sweep(name)) in page(name)
    declared = {arm.name: arm.learning_rate for arm in study(name).declared.arms}
    assert declared == chosen(sweep(name))


@EITHER
def test_all_have_as_many_trials_and_only_some_are_best_at_an_end(name: str) -> None:
    rates = {
        arm: {each.learning_rate for each in sweep(name) if each.arm == arm}
        for arm in chosen(sweep(name))
    }
    if name == SHORT or study(name).declared.draft:  # Three have more in the long one.
        assert {len(each) for each in rates.values()} == {4}
    at_end = {
        arm
        for arm, best in chosen(sweep(name)).items()
        if best in (min(rates[arm]), max(rates[arm]))
    }
    assert at_end <= OPEN_ENDED
    assert (at_end == OPEN_ENDED) == study(name).declared.draft


def test_the_pages_say_what_was_run_and_show_its_figure() -> None:
    assert has_run(SHORT)
    assert not study(SHORT).declared.draft
    assert "](figures/table2.svg)" in page(SHORT)
    drawn = (DOCS / "figures/table2.svg").read_text("utf-8")
    assert drawn == cost_figure(folder(SHORT))
    assert ("**In short.** Not run yet" in page(LONG)) == (not has_run(LONG))
    assert ("is for a GPU and not run yet" in page(SHORT)) == (not has_run(LONG))
    assert ("are left to try" in page(LONG)) == study(LONG).declared.draft


@EITHER
def test_the_trials_have_a_seed_that_the_study_does_not_use(name: str) -> None:
    used = {seed for arm in study(name).declared.arms for seed in arm.seeds}
    tried = {result.seed for result in sweep(name) if result.arm != BASE}
    assert {result.split for result in sweep(name)} == {"val"}
    assert tried == {25}
    assert not tried & used


@EITHER
def test_every_result_is_of_the_settings_and_the_base_it_claims(name: str) -> None:
    runs = read_results(folder(name)) if has_run(name) else []
    for results in (sweep(name), runs):
        assert len({(result.train, result.questions) for result in results}) <= 1
    for result in (*sweep(name), *runs):
        assert result.base == base_hash(small_base("finesearch2"))
        assert is_as_claimed(result)


@EITHER
def test_opsd_is_worse_than_the_base(name: str) -> None:
    (base,) = (result for result in sweep(name) if result.arm == BASE)
    opsd = [result for result in sweep(name) if result.preset in ("opsd", "opsd-frozen")]
    assert max(result.accuracy for result in opsd) < base.accuracy
    compared = {each.against for each in study(name).declared.comparisons}
    assert {arm.name for arm in BASELINES} - compared == {"sft-unfiltered", "opsd-frozen"}


def test_the_teacher_of_opsd_is_worse_than_its_student() -> None:
    lines = (folder(SHORT) / "told.jsonl").read_text(encoding="utf-8").splitlines()
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
