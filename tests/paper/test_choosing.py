"""The page on choosing: its table, figure, learning rates and every number of its sentences."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev

import pytest
from prose import sentences, unexplained, without_tables
from study_records import StudyRecords, ends, is_as_claimed

from bas_opd.model.base import small_base
from bas_opd.reproduce.arms import BASE, arm_config
from bas_opd.reproduce.catalogue import cost_figure
from bas_opd.reproduce.policies import base_hash, sweep_table
from bas_opd.reproduce.results import read_results
from bas_opd.reproduce.table import folder_table, replace_table
from bas_opd.stats.crossed import seeds_needed

DOCS = Path(__file__).parents[2] / "docs"
FILE = DOCS / "does-choosing-pay.md"
FOLDER = DOCS / "results/finesearch2"
NEXT = DOCS / "results/prompts"
SECOND = DOCS / "results/second"
RECORDS = StudyRecords(FOLDER)
STUDY, RESULTS, ARMS = RECORDS.study, RECORDS.results, RECORDS.arms
gap, mean_cost, share = RECORDS.gap, RECORDS.mean_cost, RECORDS.share
SWEEP = [r for those in RECORDS.by_arm(read_results(FOLDER / "sweep")).values() for r in those]


def computed() -> Iterator[str]:
    """Yield the parts of sentences that the records determine."""
    steps = {len(run.steps.loss) for run in RESULTS if run.steps}
    config = arm_config("full", 0, ["model.path=x", "data.path=x"], task="finesearch2")
    yield f"{steps.pop()} steps of {config.rollout.prompts_per_step} prompts"
    yield f"{config.rollout.per_prompt} rollouts a prompt"
    yield f"{ {run.jobs for run in RESULTS}.pop() } runs in parallel"

    chance, same = gap("covering12", "random12"), gap("covering12", "random-processed")
    yield f"{chance.mean:.1f} points better than random12 (95 % CI {ends(chance)})"
    yield f"{same.mean:.1f} better than random-processed ({ends(same)})"
    asked = fmean(run.cost.prompts_asked or 0 for run in ARMS["covering12"] if run.cost)
    yield f"queries {100 * asked:.0f} % of the prompts"
    yield (
        f"{chance.mean:.1f} points above random selection with no fewer queries, and "
        f"{same.mean:.1f} above random selection with as many"
    )
    full = gap("covering12", "full")
    yield f"It is {-full.mean:.1f} points below it (95 % CI {ends(full, '+.1f')})"
    yield f"{-full.mean:.1f} points below it (95 % CI {ends(full, '+.1f')})"
    yield f"full querying's gain, {0.1 * gap('full', BASE).mean:.1f} points,"
    yield f"it was {fmean(pilot()):.1f} points above"
    less, half = gap("fewer3", "covering12"), gap("fewer2", "fewer4-covering")
    yield (
        f"Fewer3 costs {share('fewer3', 'total_tokens', 'covering12'):.2f} times as much as "
        f"covering12 and is {less.mean:.1f} points above it (95 % CI {ends(less, '+.1f')})"
    )
    yield (
        f"Fewer2 costs {share('fewer2', 'total_tokens', 'fewer4-covering'):.2f} times as much as "
        f"fewer4-covering and is {-half.mean:.1f} points below it ({ends(half, '+.1f')})"
    )
    calls = [gap(arm, "fewer1") for arm in ("covering12", "fewer4-covering")]
    yield (
        f"covering12 is {calls[0].mean:.1f} points above fewer1 (95 % CI {ends(calls[0], '+.1f')}) "
        f"and fewer4-covering {calls[1].mean:.1f} ({ends(calls[1], '+.1f')})"
    )
    four = gap("fewer4", "full")
    yield (
        f"Fewer4 has {100 * share('fewer4', 'total_tokens'):.0f} % of the total tokens of full "
        f"querying and is {-four.mean:.1f} points below it (95 % CI {ends(four, '+.1f')})"
    )
    entropy = gap("covering-entropy", "covering12")
    yield f"{-entropy.mean:.1f} points below covering12 (95 % CI {ends(entropy, '+.1f')})"
    one = gap("fewer1", "random12")
    yield f"Fewer1 is {one.mean:.1f} points above random12 (95 % CI {ends(one)})"

    below = [gap("random12", arm) for arm in PAPERS]
    yield (
        f"Entropy12 is {below[0].mean:.1f} points below random12 "
        f"(95 % CI {ends(below[0], '+.1f')}) and learned12 "
        f"{below[1].mean:.1f} ({ends(below[1], '+.1f')})"
    )
    (worse,) = {f"{-gap(arm, 'full').mean:.1f}" for arm in PAPERS}
    yield f"significantly worse, by {worse} points"
    length = [
        mean_cost(arm, "scored_tokens") / mean_cost(arm, "calls") for arm in (*PAPERS, "random12")
    ]
    yield (
        f"{length[0]:.0f} and {length[1]:.0f} tokens a query, where random12 has {length[2]:.0f}"
    )
    asked_of = [100 * mean_cost(arm, "prompts_asked") for arm in PAPERS]
    yield f"query {asked_of[0]:.0f} % and {asked_of[1]:.0f} % of the prompts"
    six, quarter, half_of = (gap(f"covering{n}", f"random{n}") for n in (6, 25, 50))
    yield (
        f"covering6 is {six.mean:.1f} points above random6 (95 % CI {ends(six)}), "
        f"covering25 {quarter.mean:.1f} above random25 ({ends(quarter, '+.1f')}), "
        f"covering50 {half_of.mean:.1f} above random50 ({ends(half_of, '+.1f')})"
    )

    grown = RECORDS.growth(("covering6", "random6"), ("covering50", "random50"))
    yield f"grows by {grown.mean:.1f} points (95 % CI {ends(grown, '+.1f')})"

    chosen = StudyRecords(NEXT)
    less, chance = (
        chosen.gap("prompts56-covering", arm) for arm in ("prompts30-fewer2", "prompts56-random")
    )
    yield (
        f"{less.mean:.1f} points above sampling two rollouts of each of 30 prompts at the same "
        f"total cost (95 % CI {ends(less)})"
    )
    elsewhere = StudyRecords(SECOND).gap("prompts56-covering", "full")
    yield f"it is {elsewhere.mean:.1f} points above full querying ({ends(elsewhere)})"
    yield f"{chance.mean:.1f} above random selection ({ends(chance)})"

    yield sweep_table(SWEEP).splitlines()[-1]
    yield f"All {len(development())} runs"
    yield f"had a standard deviation of {PILOT_DEVIATION} points over seeds"
    spread = stdev(
        100 * (mine.accuracy - theirs.accuracy)
        for mine, theirs in zip(ARMS["covering12"], ARMS["full"], strict=True)
    )
    yield f"at the learning rates below, that standard deviation is {spread:.1f}"
    tokens = [run.cost.candidate_tokens / run.cost.candidates for run in ARMS["full"] if run.cost]
    yield f"Responses have {fmean(tokens):.0f} tokens on average"


PAPERS = ("entropy12", "learned12")
"""The paper's policies at an eighth."""
PILOT_DEVIATION = 1.2
"""Of covering minus full on val, in points."""


def development() -> list[dict[str, str]]:
    with (FOLDER / "development.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def pilot() -> list[float]:
    """Covering minus full on val, at the seeds that both have at the same learning rate."""
    reached: dict[str, dict[str, float]] = {}
    for row in development():
        if row["learning_rate"] == "0.0001":
            reached.setdefault(row["arm"], {})[row["seed"]] = float(row["mean_of_kinds"])
    covering, full = reached["covering12"], reached["full"]
    return [covering[seed] - full[seed] for seed in covering if seed in full]


GIVEN = (
    *("FineSearch 2", "One NVIDIA H200, 2026-11-16", "about 7 s of the GPU", "the paper's 87"),
    "queries 24 %",
    *("random12", "covering12", "Covering12", "fewer1", "fewer4"),
    *("learned12", "random6", "random25", "random50"),
    *("covering6", "covering25", "covering50"),
    *(
        "12 % instead of 12.5 %",
        "below 40 % of the tokens",
        "39 % of full querying",
        "queries 24 %",
    ),
    *("one rollout of each of 56 prompts", "one rollout of each of 36 prompts"),
    *("with seeds 25 to 33", "ten seeds have 80 % power at a margin of 1.2 points"),
    *("those at 0.0001", "the arms at 0.0002", "one batch size, 111 steps"),
    "0.0002 is the highest rate",
    *("at 0.0002, random12", "the fewer arms at 0.0001"),
)
"""Settings, names, dates, and what is quoted from the paper or was timed outside the records."""


def test_every_number_in_a_sentence_is_that_of_the_records_or_given() -> None:
    assert unexplained(sentences(FILE), {*computed(), *GIVEN}) == []


def test_the_table_is_that_of_its_records() -> None:
    page = FILE.read_text(encoding="utf-8")
    assert replace_table(page, folder_table(FOLDER)) == page


def test_the_figure_is_that_of_its_records() -> None:
    drawn = (DOCS / "figures/finesearch2.svg").read_text(encoding="utf-8")
    assert drawn == cost_figure(FOLDER)


def test_the_goals_are_reported_as_the_records_have_them() -> None:
    page = FILE.read_text(encoding="utf-8")
    assert RECORDS.verdicts() == {
        ("covering12", "full"): False,
        ("covering12", "random12"): True,
        ("covering12", "random-processed"): True,
        ("covering12", "fewer3"): False,
        ("fewer4-covering", "fewer2"): False,
    }
    rows = re.findall(r"^\| (.+?) \| ((?:not )?met.*|not run.*) \|$", page, re.MULTILINE)
    verdicts = [re.split(r":| for| \(", result)[0] for _, result in rows]
    assert verdicts == [
        *("not met", "met", "met", "met", "not met", "not met"),
        *("met", "not run"),
    ]
    gain = gap("full", BASE)
    assert f"not met: {gain.mean:.1f} (95 % CI {ends(gain)})" in page
    assert f"met: {100 * share('covering12', 'processed_tokens'):.1f} %" in page
    assert share("covering12", "calls") <= 0.125
    assert share("covering12", "processed_tokens") <= 0.4


def test_what_is_said_without_a_number_holds_too() -> None:
    for arm, reference in (
        ("covering12", "full"),
        ("fewer3", "covering12"),
        ("fewer2", "fewer4-covering"),
        ("covering12", "fewer1"),
        ("fewer4-covering", "fewer1"),
        ("covering-entropy", "covering12"),
    ):
        assert gap(arm, reference).holds_zero
    for reference in ("random12", "random-processed"):
        found = RECORDS.adjusted("covering12", reference)
        assert found.mean - found.half_width > 0
    random = fmean(run.cost.prompts_asked or 0 for run in ARMS["random12"] if run.cost)
    assert random == pytest.approx(2 / 3, abs=0.02)
    assert share("random-processed", "processed_tokens", "covering12") == pytest.approx(1, abs=0.01)
    assert stdev(pilot()) == pytest.approx(PILOT_DEVIATION, abs=0.05)
    assert {len(ARMS[arm]) for arm in ("covering12", "full")} == {16}
    assert {len(ARMS[arm]) for arm in (*PAPERS, "covering6", "random50")} == {5}
    varied = {
        rate: fmean(
            stdev(run.accuracy for run in runs)
            for runs in ARMS.values()
            if len(runs) == 16 and runs[0].learning_rate == rate
        )
        for rate in (1e-4, 2e-4)
    }
    assert varied[1e-4] < varied[2e-4]
    for arm in PAPERS:
        assert gap(arm, "random12").holds_zero
        assert not gap(arm, "full").holds_zero
    assert seeds_needed(1.2, seed_deviation=PILOT_DEVIATION) == 10


def test_every_arm_has_the_learning_rate_that_did_best_on_val() -> None:
    assert {result.split for result in SWEEP} == {"val"}
    page = FILE.read_text(encoding="utf-8")
    assert sweep_table(SWEEP) in page
    table = sweep_table(SWEEP).splitlines()
    arms = [cell.strip() for cell in table[0].split("|")[2:-1]]
    chosen = next(line for line in table if line.startswith("| chosen"))
    best = dict(zip(arms, (float(cell) for cell in chosen.split("|")[2:-1]), strict=True))
    declared = {arm.name: arm.learning_rate for arm in STUDY.declared.arms}
    assert {arm: declared[arm] for arm in arms} == best
    trials = {(r.arm, r.learning_rate, r.seed) for r in SWEEP if r.arm != BASE}
    assert len(trials) == 3 * 2 * len(arms)


def columns(text: str) -> dict[str, dict[str, str]]:
    """Return the tables of arms in a text: column -> arm -> cell."""
    found: dict[str, dict[str, str]] = {}
    for table in re.findall(r"^\| arm \|.*\n(?:\|.*\n)+", text, re.MULTILINE):
        header, _, *rows = ([c.strip() for c in r.split("|")[1:-1]] for r in table.splitlines())
        for row in rows:
            for name, cell in zip(header[1:], row[1:], strict=True):
                found.setdefault(name.removesuffix(", %"), {})[row[0]] = cell
    return found


def test_every_cell_of_the_readmes_table_is_that_of_its_column_in_the_published_one() -> None:
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    shown = columns(readme[readme.index("## Does it work?") :])
    published = columns(FILE.read_text(encoding="utf-8"))
    assert shown.keys() >= {"mean of kinds", "calls", "total tokens"}
    assert {BASE, "full", "random12", "covering12", "fewer3"} <= shown["mean of kinds"].keys()
    for name, cells in shown.items():
        for arm, cell in cells.items():
            # The base has no line among the costs.
            assert cell == published[name].get(arm, ""), (name, arm)


def test_the_readme_says_the_same() -> None:
    readme = sentences(DOCS.parent / "README.md")
    gains = {arm: gap(arm, BASE).mean for arm in ("full", "covering12", "random12")}
    assert readme.count(f"full querying gains {gains['full']:.1f} points") == 2
    assert f"covering selection gains {gains['covering12']:.1f} of these points" in readme
    assert f"random selection {gains['random12']:.1f}, and one" in readme
    assert f"instead of eight {gap('fewer1', BASE).mean:.1f} (" in readme


def test_every_number_of_the_readmes_sentences_on_results_is_held() -> None:
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    section = readme[readme.index("## Does it work?") : readme.index("## Look at it")]
    two = StudyRecords(NEXT).gap("prompts56-covering", "prompts30-fewer2")
    learned = "(-1.2 points, 95 % CI -4.6 to +2.2)"  # held by test_results_prose.py
    assert {
        len(each.seeds)
        for folder in (FOLDER, NEXT, SECOND)
        for each in StudyRecords(folder).study.declared.arms
        if len(each.seeds) != 5  # of arms that the README does not name
    } == {16}
    held = {
        f"full querying gains {gap('full', BASE).mean:.1f} points",
        f"({two.mean:+.1f} points, 95 % CI {ends(two)})",
        learned,
        "Each study has 16 seeds",
        f"{STUDY.declared.steps} steps of 28 prompts and {STUDY.declared.test:,} test questions",
        *("7-million-parameter", "FineSearch 2", "one H200, 2026-11-16", "in points (95 % CI)"),
        *("one of 8 rollouts a prompt", "one rollout of each of 56", "one rollout of each of 36"),
        *("Random12 and covering12", "what covering12 costs", "fewer1 to fewer4", "in fewer4-cov"),
        "one to four rollouts a prompt instead of 8",
    }
    assert unexplained(without_tables(section), held) == []


def test_every_result_is_of_the_settings_and_the_base_it_claims() -> None:
    assert {result.base for result in RESULTS} == {base_hash(small_base("finesearch2"))}
    for result in RESULTS:
        assert is_as_claimed(result)
        assert result.seed is None or (result.cost and result.cost.overrun == 0)


def test_a_number_that_the_records_do_not_have_is_found() -> None:
    page = sentences(FILE)
    with pytest.raises(AssertionError, match="does not say"):
        unexplained(page.replace("0.9 points below", "0.1 points below"), {*computed()})
    (found,) = unexplained(f"{page} It gains 37 points.", {*computed(), *GIVEN})
    assert "gains 37 points" in found
