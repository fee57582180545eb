"""What the page of the selector study says, in tables and in words, against its records."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy
from prose import sentences, unexplained

from bas_opd.reproduce.results import RunResult, read_results
from bas_opd.stats.intervals import mean_interval
from bas_opd.text import plus_minus

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "selector-study.md"
TEXT = sentences(PAGE)
RESULTS = read_results(DOCS / "results/policies")
CHOSEN = "ridge, cubes, roots, long memory"
ENTRANTS = (
    *("oracle", "random", "entropy", "learned", "learned, no exploration"),
    *("learned, 20 updates, rate 1e-2", "learned, 20 updates, all labels", "network"),
    *("network, logarithms", "ridge", "ridge, 10 % random", "ridge, bonus"),
    *("ridge, sibling columns", "ridge, token columns", "ridge, all columns and kind"),
    *("ridge, per token", "process", "stumps", "ridge, square roots"),
    *("ridge, roots, long memory", CHOSEN),
)
"""The rows of the table of entrants, by their names in the records."""


@cache
def record(name: str) -> Any:
    return json.loads((DOCS / "results/selector" / f"{name}.json").read_text(encoding="utf-8"))


def scores(name: str) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in record(name)["scores"]}


def runs(arm: str) -> list[RunResult]:
    found = [result for result in RESULTS if result.arm == arm]
    return sorted(found, key=lambda result: result.seed or 0)


def rows(first: str) -> list[list[str]]:
    """The cells of the table whose header begins with a word, without marks of bold."""
    lines = iter(PAGE.read_text(encoding="utf-8").replace("*", "").splitlines())
    next(line for line in lines if line.startswith(f"| {first} |"))
    next(lines)
    found = []
    for line in lines:
        if not line.startswith("|"):
            return found
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def test_the_confirmation_is_that_of_its_records() -> None:
    found = scores("confirmed")
    names = ("oracle", CHOSEN, "learned", "entropy", "random")
    for (_, capture, share, gain), name in zip(rows("selector"), names, strict=True):
        each = found[name]
        assert capture == f"{each['capture']:.3f} ± {each['interval']:.3f}"
        assert share == ("1" if name == "oracle" else f"{each['of_oracle']:.3f}")
        assert gain == (
            "-" if name == "learned" else f"{each['gain']:+.3f} ± {each['gain_interval']:.3f}"
        )


def test_the_entrants_are_those_of_their_records() -> None:
    found = scores("studied")
    for (_, capture, share, gain, spent), name in zip(rows("entrant"), ENTRANTS, strict=True):
        each = found[name]
        assert capture == f"{each['capture']:.3f}"
        assert share == ("1" if name == "oracle" else f"{each['of_oracle']:.3f}")
        assert gain == ("-" if name == "learned" else f"{each['gain']:+.3f}")
        if spent:
            took = each["milliseconds"]
            assert spent == (f"{took:.0f}" if took >= 10 else f"{took:.1f}")


def test_what_was_picked_is_that_of_its_records() -> None:
    found = record("picked")["picked"]
    names = ("random", "entropy", "learned", CHOSEN, "oracle")
    for cells, name in zip(rows("selected by"), names, strict=True):
        each = found[name]
        assert cells[1:] == [
            f"{each['capture']:.2f}",
            f"{100 * each['prompts']:.0f} %",
            f"{each['effective_prompts']:.1f}",
            f"{100 * each['distinct_responses']:.0f} %",
            f"{each['tokens']:.0f}",
            f"{100 * each['short']:.0f} %",
        ]


def percent(share: float) -> str:
    """A share that is on record with four digits, in whole percent; a half goes up."""
    return f"{100 * share + 1e-9:.0f} %"


def test_the_kinds_are_those_of_the_records() -> None:
    picked = record("picked")
    by_learned, by_chosen = (picked["picked"][name]["kinds"] for name in ("learned", CHOSEN))
    candidates = Counter[str]()
    for seed in (100, 101):
        with numpy.load(DOCS / f"results/selector/seed-{seed}.npz", allow_pickle=False) as log:
            candidates.update(str(log["kind_names"][kind]) for kind in log["kind"])

    def gain(arm: str, reference: str, kind: str) -> str:
        means = [fmean(r.kinds[kind].accuracy for r in runs(each)) for each in (arm, reference)]
        return f"{100 * (means[0] - means[1]):+.1f}"

    for kind, share, utility, learned, chosen, full, minus_random in rows("kind"):
        assert share == f"{100 * candidates[kind] / candidates.total():.0f} %"
        assert utility == percent(picked["utility_by_kind"][kind])
        assert learned == percent(by_learned[kind])
        digits = 0 if by_chosen[kind] >= 0.005 else 1
        assert chosen == f"{100 * by_chosen[kind]:.{digits}f} %"
        assert full == gain("full", "base", kind)
        assert minus_random == gain("learned25", "random25", kind)
        assert float(minus_random) <= 0


def computed() -> Iterator[str]:
    """Yield the parts of sentences that the records determine."""
    found, picked = scores("studied"), record("picked")
    capture = {name: each["capture"] for name, each in found.items()}
    with numpy.load(DOCS / "results/selector/seed-100.npz", allow_pickle=False) as log:
        settings = json.loads(str(log["settings"]))
        steps, count, utility = len(log["candidates"]), len(log["utility"]), log["utility"].mean()
    batch = settings["rollout"]
    per_prompt = batch["per_prompt"]
    yield f"({steps} steps of {batch['prompts_per_step']} prompts x {per_prompt} rollouts, "
    yield f"not converged in {steps} steps"
    yield f"The utilities are near {utility:.2f}"
    yield f"from {capture['learned']:.3f} to {capture['network']:.2f}."
    yield f"reaches {capture['ridge']:.2f};"
    yield f"and cubes add {capture[CHOSEN] - capture['ridge']:.2f}"
    yield f"costs a regression {capture['ridge'] - capture['ridge, 10 % random']:.2f} "
    yield f"on all {count:,} utilities of seed 100"
    yield f"captures {found[CHOSEN]['captures'][1]:.3f} there"
    yield f"about {count / steps / per_prompt:.0f} per step"
    yield f"{100 * picked['variance_between_prompts']:.0f} % of its variance"
    yield f"({found[CHOSEN]['milliseconds']:.1f} ms)"
    yield f"from only {100 * picked['picked'][CHOSEN]['prompts']:.0f} % of the pictures"

    mean = {
        arm: plus_minus(mean_interval([run.accuracy for run in runs(arm)]), ".1f", 100)
        for arm in (
            "base",
            "full",
            "learned10",
            "learned25",
            "learned50",
            "random25",
            "entropy25",
            "regressed25",
        )
    }
    short = {arm: text.split(" ")[0] for arm, text in mean.items()}
    yield f"of learned-25 is {mean['learned25']} and that of random-25 {mean['random25']},"
    yield f"reaches {mean['regressed25']}, compared with {mean['learned25']} for"
    yield f"and {mean['random25']} for random-25"
    order = ("learned10", "learned25", "entropy25", "learned50", "random25")
    shares = [
        f"{arm[:-2]}-{arm[-2:]} {100 * prompts(arm) / prompts('full'):.0f} %" for arm in order
    ]
    yield ", ".join(shares)
    yield f"{', '.join(short[arm] for arm in order)}; full {short['full']}"


def prompts(arm: str) -> float:
    """Prompt tokens that the teacher read: the last token of a response is never fed to it."""
    costs = [run.cost for run in runs(arm) if run.cost]
    return fmean(each.processed_tokens - (each.scored_tokens - each.calls) for each in costs)


GIVEN = (
    *("learning rate 1e-4,", "training seeds 100, 101, 102,", "H200", "(Eq. 9)", "2026-11-15"),
    *("seeds 100 and 101", "seed 102", "seed 101", "95 %", "The goal of 0.9", "The gap to 0.9"),
    *("1 / sum of squared", "(12 % would be expected", "87 tokens", "random-25", "learned-25"),
    *("entropy-25", " 1. ", " 2. ", " 3. "),
    # Made by `recipes.selector_study.ceiling`, which leaves no record.
    *("captures 0.690 of", "(0.837 of the oracle)", "0.683 to 0.696"),
)
"""Settings, names and places; what follows from no record."""


def test_every_number_in_a_sentence_is_that_of_the_records_or_given() -> None:
    assert unexplained(TEXT, {*computed(), *GIVEN}) == []


def test_what_is_said_without_a_figure_holds_too() -> None:
    assert "Forty-six entrants" in TEXT
    assert len([name for name in scores("studied") if not name.startswith("oracle")]) == 46
    kinds = record("picked")["picked"]
    ratio = kinds["learned"]["kinds"]["number"] / kinds["random"]["kinds"]["number"]
    assert "two and a half times as often as random" in TEXT
    assert round(2 * ratio) == 5
