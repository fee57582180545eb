"""The page on the second setting: its table, figure and the numbers of its sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pytest
from prose import sentences, unexplained
from study_records import StudyRecords, ends, is_as_claimed

from bas_opd.model.base import small_base
from bas_opd.reproduce.arms import BASE
from bas_opd.reproduce.catalogue import cost_figure
from bas_opd.reproduce.policies import base_hash
from bas_opd.reproduce.table import folder_table, replace_table
from bas_opd.stats.intervals import Interval

DOCS = Path(__file__).parents[2] / "docs"
FILE = DOCS / "second-setting.md"
FOLDER = DOCS / "results/second"
RECORDS = StudyRecords(FOLDER)
FIRST = StudyRecords(DOCS / "results/prompts")
ROLLOUTS = StudyRecords(DOCS / "results/finesearch2")
OURS = "prompts56-covering"
OTHERS = ("full", "prompts56-random", "prompts36")


def computed() -> Iterator[str]:
    """Yield the parts of sentences that the records determine."""
    gap, share = RECORDS.gap, RECORDS.share
    steps = {len(run.steps.loss) for run in RECORDS.results if run.steps}
    yield f"Each run has {steps.pop()} steps"
    yield f"{ {run.jobs for run in RECORDS.results}.pop() } runs in parallel"
    before = [f"{FIRST.gap(OURS, arm).mean:+.1f}" for arm in OTHERS]
    yield f"differences were {before[0]}, {before[1]} and {before[2]} points"
    full, chance, less = (gap(OURS, arm) for arm in OTHERS)
    gain = gap("full", BASE)
    yield (
        f"{full.mean:.1f} points above full querying (95 % CI {ends(full)}), which gains "
        f"{gain.mean:.1f} points over the base (95 % CI {ends(gain)})"
    )
    yield (
        f"{100 * share(OURS, 'calls'):.1f} % of the calls and has "
        f"{100 * share(OURS, 'processed_tokens'):.1f} % of the processed tokens and "
        f"{100 * share(OURS, 'total_tokens'):.0f} % of the total tokens"
    )
    yield f"{chance.mean:.1f} points above prompts56-random (95 % CI {ends(chance)})"
    yield (
        f"processes {share(OURS, 'processed_tokens', 'prompts56-random'):.2f} times as many "
        f"teacher tokens and scores {share(OURS, 'scored_tokens', 'prompts56-random'):.2f} times"
    )
    yield (
        f"{less.mean:.1f} points above prompts36 (95 % CI {ends(less)}), which has "
        f"{share('prompts36', 'total_tokens', OURS):.2f} times its total tokens"
    )
    there, here = (records.gap("prompts56-random", "full") for records in (FIRST, RECORDS))
    yield (
        f"{-there.mean:.1f} points below full querying at the first base, is {here.mean:.1f} above "
        f"it here (95 % CI {ends(here, '+.1f')})"
    )
    seconds = [seconds_a_step(arm) for arm in (OURS, "full", "prompts36")]
    yield "a step takes {:.2f} s, that of full {:.2f} s and that of prompts36 {:.2f} s".format(
        *seconds
    )
    examples = RECORDS.study.declared.train
    passes = [36 * 111 / examples, 56 * 111 / examples, 28 * 111 / examples]
    assert [round(n) for n in passes[1:]] == [2, 1]
    yield f"prompts36 {passes[0]:.1f} times"


def seconds_a_step(arm: str) -> float:
    runs = [run for run in RECORDS.arms[arm] if run.cost]
    return fmean(sum(run.cost.seconds.values()) / 111 for run in runs if run.cost)


GIVEN = (
    *("FineSearch 2", "One NVIDIA H200, 2026-11-16", "about 10 s of the GPU"),
    *("prompts56-covering", "Prompts56-covering", "prompts56-random", "prompts36"),
    *("The runs with seeds 140 to 147", "while 16 runs share the GPU", "With 56 prompts a step"),
    "(7.5 million parameters instead of 7.0), trained for 4,341 steps instead of 5,886",
    *("8 rollouts of each of 28 prompts", "one rollout of each of 56 prompts"),
    *("one rollout of each of 36 prompts", "the arms with 56 prompts have 0.0002"),
    *("full and prompts36 have 0.0004", "So 0.0004 may be too high"),
)
"""Settings, names, dates, and what was timed outside the records."""


def test_every_number_in_a_sentence_is_that_of_the_records_or_given() -> None:
    assert unexplained(sentences(FILE), {*computed(), *GIVEN}) == []


def test_table_and_figure_are_those_of_their_records() -> None:
    page = FILE.read_text(encoding="utf-8")
    assert replace_table(page, folder_table(FOLDER)) == page
    drawn = (DOCS / "figures/second.svg").read_text(encoding="utf-8")
    assert drawn == cost_figure(FOLDER)


def test_the_goals_are_reported_as_the_records_have_them() -> None:
    page = FILE.read_text(encoding="utf-8")
    assert RECORDS.verdicts() == {(OURS, arm): True for arm in OTHERS}
    rows = re.findall(r"^\| (.+?) \| ((?:not )?met.*|not run.*) \|$", page, re.MULTILINE)
    verdicts = [result.split(":")[0] for _, result in rows]
    assert verdicts == ["met", "met", "met", "not run", "met", "not met"]
    gain = RECORDS.gap("full", BASE)
    assert gain.mean < 12
    assert f"not met: {gain.mean:.1f} (95 % CI {ends(gain)})" in page
    assert f"met: {100 * RECORDS.share(OURS, 'processed_tokens'):.1f} %" in page
    assert RECORDS.share(OURS, "calls") <= 0.125
    assert RECORDS.share(OURS, "processed_tokens") <= 0.4


def test_what_is_said_without_a_number_holds_too() -> None:
    for arm in OTHERS:
        gap = RECORDS.gap(OURS, arm)
        adjusted = RECORDS.adjusted(OURS, arm)
        assert adjusted.mean > adjusted.half_width
        assert gap.mean > FIRST.gap(OURS, arm).mean
        assert FIRST.gap(OURS, arm).holds_zero == (arm != "prompts56-random")
    lengths = {
        arm: RECORDS.mean_cost(arm, "scored_tokens") / RECORDS.mean_cost(arm, "calls")
        for arm in (OURS, "prompts56-random")
    }
    assert lengths[OURS] > lengths["prompts56-random"]
    assert {len(RECORDS.arms[arm.name]) for arm in RECORDS.study.declared.arms} == {16}


def test_the_readme_says_the_same() -> None:
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    for name, rollouts, prompts in (
        ("random selection, no fewer calls", "random12", "prompts56-random"),
        ("full querying", "full", "full"),
        ("sampling less, same total tokens", "fewer3", "prompts36"),
    ):
        cells = (
            lead(ROLLOUTS.gap("covering12", rollouts)),
            *(lead(records.gap(OURS, prompts)) for records in (FIRST, RECORDS)),
        )
        assert f"| {name} | {' | '.join(cells)} |" in readme
    two = FIRST.gap(OURS, "prompts30-fewer2")
    assert f"({two.mean:+.1f} points, 95 % CI {ends(two)})" in sentences(DOCS.parent / "README.md")
    rates = {arm.name: arm.learning_rate for arm in RECORDS.study.declared.arms}
    assert rates[OURS] < rates["full"] == rates["prompts36"]
    assert ROLLOUTS.share("covering12", "calls", "random12") <= 1
    assert ROLLOUTS.share("fewer3", "total_tokens", "covering12") == pytest.approx(1, abs=0.05)


def lead(gap: Interval) -> str:
    return f"{gap.mean:+.1f} ({ends(gap, '+.1f' if gap.holds_zero else '.1f')})"


def test_it_has_the_arms_and_rates_of_the_first_setting_with_another_base() -> None:
    first = {arm.name: arm for arm in FIRST.study.declared.arms}
    for arm in RECORDS.study.declared.arms:
        assert arm.model_copy(update={"seeds": first[arm.name].seeds}) == first[arm.name]
        assert not set(arm.seeds) & set(first[arm.name].seeds)
    assert {result.base for result in RECORDS.results} == {base_hash(RECORDS.study.base)}
    assert base_hash(RECORDS.study.base) != base_hash(small_base("finesearch2"))


def test_every_result_is_of_the_settings_and_the_base_it_claims() -> None:
    assert all(map(is_as_claimed, RECORDS.results))
