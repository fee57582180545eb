"""Seeds of a policy: who counts as one, and what they say together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pytest
from page_fixtures import comparison_of, words_of
from report_fixtures import evaluate, synthetic_run
from shapes import make_pictures

from bas_opd.data.records import PreparedSet
from bas_opd.report.comparison import RunComparison, compare_runs, findings, headline
from bas_opd.report.pages.comparison_text import comparison_data
from bas_opd.report.run import read_run

Make = Callable[..., Path]


@pytest.fixture
def made(pictures: PreparedSet, tmp_path: Path) -> Make:
    def make(policy: str, seed: int, right: int, data: PreparedSet = pictures) -> Path:
        path = synthetic_run(
            tmp_path / f"{policy}-{seed}-{right}", data, steps=3, policy=policy, seed=seed
        )
        # Both kinds of question alike, so that the mean over kinds is the plain share.
        evaluate(path, [number // 2 < right for number in range(40)])
        return path

    return make


def compared(*paths: Path) -> RunComparison:
    return compare_runs([read_run(path) for path in paths])


def test_a_copy_of_a_run_is_no_second_seed(made: Make) -> None:
    comparison = compared(made("learned", 0, 10), made("learned", 0, 12), made("full", 0, 9))
    assert comparison.groups == ()
    assert any("have the same seed of learned-25" in note for note in comparison.notes)


def test_runs_on_other_data_are_no_seeds_of_each_other(made: Make, tmp_path: Path) -> None:
    other = make_pictures(tmp_path / "other", n=24, seed=9)
    comparison = compared(made("learned", 0, 10), made("learned", 1, 12, other))
    assert comparison.groups == ()


def test_policies_are_compared_over_the_seeds_they_share(made: Make) -> None:
    right = {"learned": (12, 16, 11, 3), "full": (10, 10, 10), "random": (9, 12, 11)}
    paths = [
        made(policy, seed, each) for policy, row in right.items() for seed, each in enumerate(row)
    ]
    contrasts = compared(*paths).contrasts
    assert [(each.a, each.b) for each in contrasts] == [
        ("learned-25", "full"),
        ("random-25", "full"),
        ("learned-25", "random-25"),
    ]
    # The fourth seed of the learned policy has no partner.
    assert [each.difference.n for each in contrasts] == [3, 3, 3]
    assert contrasts[0].difference.mean == pytest.approx(fmean([2, 6, 1]) / 20)
    assert contrasts[2].difference.mean == pytest.approx(fmean([3, 4, 0]) / 20)


def test_one_shared_seed_is_no_comparison_over_seeds(made: Make) -> None:
    paths = [made("learned", 0, 9), made("learned", 1, 9), made("full", 1, 8), made("full", 2, 8)]
    assert compared(*paths).contrasts == ()


def test_pairs_are_of_policies_and_never_of_two_seeds_of_one(made: Make) -> None:
    paths = [made(policy, seed, 9 + seed) for policy in ("learned", "full") for seed in (0, 1, 2)]
    pairs = compared(*paths).pairs
    assert [(pair.a.label, pair.b.label) for pair in pairs] == [
        (f"learned-{seed}-{9 + seed}", f"full-{seed}-{9 + seed}") for seed in (0, 1, 2)
    ]


def test_a_single_run_is_paired_with_every_seed_of_another_policy(made: Make) -> None:
    pairs = compared(made("learned", 0, 9), made("learned", 1, 8), made("full", 5, 7)).pairs
    assert len(pairs) == 2


def test_seeds_lead_and_their_difference_is_not_said_to_be_of_two_runs(
    made: Make, tmp_path: Path
) -> None:
    paths = [
        made(policy, seed, right + seed % 2)
        for policy, right in (("full", 5), ("learned", 15))
        for seed in (0, 1, 2)
    ]
    comparison = compared(*paths)
    lead = "learned-25 against full over 3 seeds: +50.0 points (mean of kinds, "
    assert headline(comparison).startswith(lead)
    assert headline(comparison).endswith(", a gain.")
    assert findings(comparison)[0] == headline(comparison)
    assert all(each.endswith("a gain for these two runs.") for each in findings(comparison)[1:])
    page, card = comparison_of(tmp_path / "out", *paths)
    assert "learned-25 - full mean of kinds 3 +50.0 +50.0 to +50.0" in words_of(page)
    assert lead in card
    data = comparison_data(comparison)
    assert data["over_seeds"] == [
        {
            "a": "learned-25",
            "b": "full",
            "metric": "mean of kinds",
            "difference": 0.5,
            "half_width": 0.0,
            "n": 3,
        }
    ]


def test_seeds_that_were_evaluated_differently_are_not_averaged(
    pictures: PreparedSet, tmp_path: Path
) -> None:
    paths = [synthetic_run(tmp_path / str(seed), pictures, steps=3, seed=seed) for seed in (0, 1)]
    for path, judge in zip(paths, ("one", "another"), strict=True):
        evaluate(path, [True] * 10, judged=2, judge=judge)
    (group,) = compared(*paths).groups
    assert group.accuracy is None
