"""What the page of results says in words, worked out again from the records."""

from __future__ import annotations

from pathlib import Path

import pytest

from bas_opd.data.finesearch import sample
from bas_opd.model.base import LEARNT_KINDS
from bas_opd.reproduce.arms import arm_config
from bas_opd.reproduce.results import RunResult, identity, read_results
from bas_opd.stats.intervals import mean_interval, paired_difference

ROOT = Path(__file__).parents[2]
PAGE = " ".join((ROOT / "docs/results.md").read_text(encoding="utf-8").split())
RESULTS = read_results(ROOT / "docs/results/policies")


def runs(arm: str) -> list[RunResult]:
    found = [result for result in RESULTS if result.arm == arm]
    return sorted(found, key=lambda result: result.seed or 0)


def without_existence(result: RunResult) -> float:
    kept = [count.accuracy for kind, count in result.kinds.items() if kind != "existence"]
    return sum(kept) / len(kept)


@pytest.mark.parametrize("arm", ["full", "random25", "learned25", "entropy25", "learned10"])
def test_the_gains_without_existence_are_as_stated(arm: str) -> None:
    (base,) = runs("base")
    gain = mean_interval(
        [100 * (without_existence(run) - without_existence(base)) for run in runs(arm)]
    )
    assert f"{arm} {gain.mean:.1f} ± {gain.half_width:.1f}" in PAGE


def test_the_ablation_without_ranking_is_as_far_below_learned25_as_stated() -> None:
    lower, upper = runs("learned25-without-ranking"), runs("learned25")
    gap = paired_difference([100 * r.accuracy for r in upper], [100 * r.accuracy for r in lower])
    assert f"{gap.mean:.1f} ± {gap.half_width:.1f} points below it" in PAGE


def test_existence_forgets_to_say_no_as_far_as_stated() -> None:
    answers = _existence_answers(RESULTS[0].n)
    shares = {
        arm: [
            {
                word: sum(run.outcomes[place] == "1" for place in places) / len(places)
                for word, places in answers.items()
            }
            for run in runs(arm)
        ]
        for arm in ("base", "full")
    }
    (base,) = shares["base"]
    assert f'base {base["yes"]:.1%} of "yes" and {base["no"]:.1%} of "no"' in PAGE
    no = [share["no"] for share in shares["full"]]
    yes = [share["yes"] for share in shares["full"]]
    assert f'{100 * min(yes):.0f} to {100 * max(yes):.0f} % of "yes"' in PAGE
    assert f'{100 * min(no):.0f} to {100 * max(no):.0f} % of "no"' in PAGE


def _existence_answers(n: int) -> dict[str, list[int]]:
    """The places of the test set's questions about existence, by their answer."""
    places: dict[str, list[int]] = {"yes": [], "no": []}
    row = index = 0
    while row < n:
        for one in sample("test", "small", 0, index, LEARNT_KINDS[index % len(LEARNT_KINDS)]):
            if one.kind == "existence" and row < n:
                places[one.question.answer].append(row)
            row += 1
        index += 1
    return places


def test_every_published_result_is_of_the_settings_it_claims() -> None:
    places = ["model.path=x", "model.device=auto", "data.path=x", "run.output=x"]
    for result in RESULTS:
        config = arm_config(result.arm, result.seed or 0, [*result.overrides, *places])
        if result.seed is not None:
            assert result.identity == identity(
                config, train=result.train, questions=result.questions, base=result.base
            )
