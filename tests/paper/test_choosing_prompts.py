"""The page on choosing among prompts: its table, figure, rates and the numbers of its sentences."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from prose import sentences, unexplained
from study_records import StudyRecords, ends, is_as_claimed

from bas_opd.reproduce.arms import BASE
from bas_opd.reproduce.catalogue import cost_figure
from bas_opd.reproduce.policies import sweep_table
from bas_opd.reproduce.results import read_results
from bas_opd.reproduce.table import folder_table, replace_table

DOCS = Path(__file__).parents[2] / "docs"
FILE = DOCS / "choosing-prompts.md"
FOLDER = DOCS / "results/prompts"
RECORDS = StudyRecords(FOLDER)
SECOND = StudyRecords(DOCS / "results/second")
SWEEP = [r for those in RECORDS.by_arm(read_results(FOLDER / "sweep")).values() for r in those]
OURS = "prompts56-covering"


def computed() -> Iterator[str]:
    """Yield the parts of sentences that the records determine."""
    gap, share = RECORDS.gap, RECORDS.share
    steps = {len(run.steps.loss) for run in RECORDS.results if run.steps}
    yield f"Each run has {steps.pop()} steps"
    yield f"{ {run.jobs for run in RECORDS.results}.pop() } runs in parallel"
    chance = gap(OURS, "prompts56-random")
    yield f"{chance.mean:.1f} points above prompts56-random (95 % CI {ends(chance)})"
    yield (
        f"processes {share(OURS, 'processed_tokens', 'prompts56-random'):.2f} times as many "
        "teacher tokens"
    )
    two, one, full = (gap(OURS, arm) for arm in ("prompts30-fewer2", "prompts36", "full"))
    yield (
        f"{two.mean:.1f} points above prompts30-fewer2 (95 % CI {ends(two)}), which has "
        f"{share('prompts30-fewer2', 'total_tokens', OURS):.2f} times its total tokens"
    )
    yield (
        f"{one.mean:.1f} points above prompts36 ({ends(one, '+.1f')}), which has "
        f"{share('prompts36', 'total_tokens', OURS):.2f} times its total tokens"
    )
    yield f"{-full.mean:.1f} points below it (95 % CI {ends(full, '+.1f')})"
    yield f"full querying's gain, {0.1 * gap('full', BASE).mean:.1f} points, was allowed"
    yield (
        f"{100 * share(OURS, 'calls'):.1f} % of the calls and has "
        f"{100 * share(OURS, 'processed_tokens'):.1f} % of the processed tokens and "
        f"{100 * share(OURS, 'total_tokens'):.0f} % of the total tokens"
    )
    full, chance, one = (SECOND.gap(OURS, arm) for arm in ("full", "prompts56-random", "prompts36"))
    yield (
        f"{full.mean:.1f} points above full (95 % CI {ends(full)}), {chance.mean:.1f} above "
        f"prompts56-random ({ends(chance)}) and {one.mean:.1f} above prompts36 ({ends(one)})"
    )
    pilots = (FOLDER / "development.csv").read_text(encoding="utf-8").splitlines()
    yield f"after {len(pilots) - 1} runs with seeds 34 to 38"
    bases = [
        records.arms[BASE][0] for records in (RECORDS, StudyRecords(DOCS / "results/finesearch2"))
    ]
    here, there = (
        100 * fmean(kind.correct / kind.n for kind in base.kinds.values()) for base in bases
    )
    apart = sum(one != other for one, other in zip(*(base.outcomes for base in bases), strict=True))
    yield (
        f"The base has {here:.1f} % here and {there:.1f} % in the first study: {apart} of its "
        f"{bases[0].n:,} answers"
    )
    found = {
        arm: fmean(
            float(row["mean_of_kinds"]) for row in csv.DictReader(pilots) if row["arm"] == arm
        )
        for arm in (
            "56 prompts x 1, covering 0.5, correctness, decay",
            "56 prompts x 1, covering 0.5, decay",
        )
    }
    yield "{:.1f} % with it and {:.1f} % without, five seeds each".format(*found.values())
    yield sweep_table(SWEEP).splitlines()[-1]


GIVEN = (
    *("FineSearch 2", "One NVIDIA H200, 2026-11-16", "about 8 s of the GPU"),
    *("prompts56-covering", "Prompts56-covering", "prompts56-random"),
    *("prompts36", "prompts30-fewer2"),
    *("one rollout of each of 56 prompts", "The arms with 56 prompts"),
    *("8 rollouts of each of 28 prompts", "of each of 36 prompts", "or two of each of 30"),
    *("a learning rate of 0.0002, the others 0.0004", "With 56 prompts a step"),
)
"""Settings, names, dates, and what was timed outside the records."""


def test_every_number_in_a_sentence_is_that_of_the_records_or_given() -> None:
    assert unexplained(sentences(FILE), {*computed(), *GIVEN}) == []


def test_table_figure_and_rates_are_those_of_their_records() -> None:
    page = FILE.read_text(encoding="utf-8")
    assert replace_table(page, folder_table(FOLDER)) == page
    drawn = (DOCS / "figures/prompts.svg").read_text(encoding="utf-8")
    assert drawn == cost_figure(FOLDER)
    assert sweep_table(SWEEP) in page
    table = sweep_table(SWEEP).splitlines()
    arms = [cell.strip() for cell in table[0].split("|")[2:-1]]
    chosen = next(line for line in table if line.startswith("| chosen"))
    best = dict(zip(arms, (float(cell) for cell in chosen.split("|")[2:-1]), strict=True))
    assert {arm.name: arm.learning_rate for arm in RECORDS.study.declared.arms} == best


def test_the_goals_are_reported_as_the_records_have_them() -> None:
    page = FILE.read_text(encoding="utf-8")
    assert RECORDS.verdicts() == {
        (OURS, "full"): False,
        (OURS, "prompts56-random"): True,
        (OURS, "prompts36"): False,
        (OURS, "prompts30-fewer2"): True,
    }
    rows = re.findall(r"^\| (.+?) \| ((?:not )?met.*|not run|in part.*) \|$", page, re.MULTILINE)
    verdicts = [re.split(r":| \(", result)[0] for _, result in rows]
    assert verdicts == [
        *("not met", "met", "met", "met", "not met", "not met"),
        *("not run", "in part"),
    ]
    gain = RECORDS.gap("full", BASE)
    assert f"not met: {gain.mean:.1f} (95 % CI {ends(gain)})" in page
    assert f"met: {100 * RECORDS.share(OURS, 'processed_tokens'):.1f} %" in page
    assert RECORDS.share(OURS, "calls") <= 0.125
    assert RECORDS.share(OURS, "processed_tokens") <= 0.4


def test_what_is_said_without_a_number_holds_too() -> None:
    for arm in ("prompts56-random", "prompts36", "prompts30-fewer2"):
        gap = RECORDS.gap(arm, "full")
        assert not gap.holds_zero
        assert gap.mean < 0
    lengths = {
        arm: RECORDS.mean_cost(arm, "scored_tokens") / RECORDS.mean_cost(arm, "calls")
        for arm in (OURS, "prompts56-random")
    }
    assert lengths[OURS] > lengths["prompts56-random"]
    for arm in ("prompts56-random", "prompts30-fewer2"):
        assert not RECORDS.gap(OURS, arm).holds_zero
        assert RECORDS.adjusted(OURS, arm).holds_zero
    missed = -RECORDS.gap(OURS, "full").mean
    assert missed < 0.1 * RECORDS.gap("full", BASE).mean
    assert {len(RECORDS.arms[arm.name]) for arm in RECORDS.study.declared.arms} == {16}
    assert fmean(run.cost.overrun for run in RECORDS.results if run.cost) == 0


def test_every_result_is_of_the_settings_and_the_base_it_claims() -> None:
    assert all(map(is_as_claimed, RECORDS.results))
