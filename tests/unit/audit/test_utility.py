"""Diagnostics of a utility audit, against cases worked out by hand."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from audit_fixtures import PROVENANCE

from bas_opd.audit.records import Candidate, UtilityAudit
from bas_opd.audit.summary import utility_text
from bas_opd.audit.utility import CURVE, diagnose
from bas_opd.errors import DataError
from bas_opd.select.build import build_selector
from bas_opd.types import FEATURES, Candidates

Row = tuple[float, float | None, float | None]
"""Utility, predicted, entropy."""


def audit(*batches: list[Row], kinds: list[str] | None = None, **changes: Any) -> UtilityAudit:
    candidates = [
        Candidate(
            batch=number,
            row=row,
            example=f"e{row}",
            kind=kinds[row] if kinds else "",
            tokens=3,
            predicted=predicted,
            entropy=entropy,
            utility=utility,
        )
        for number, batch in enumerate(batches)
        for row, (utility, predicted, entropy) in enumerate(batch)
    ]
    values = {**PROVENANCE, "step": 5, "dropped": 0, **changes}
    return UtilityAudit(**values, candidates=candidates)


# Falling utility; predictions rank 2nd, 1st, 4th, 3rd; entropies are upside down.
FOUR: list[Row] = [(4.0, 0.3, 0.1), (3.0, 0.4, 0.2), (2.0, 0.1, 0.3), (1.0, 0.2, 0.4)]


def shares(found: Any, ratio: str) -> dict[str, float]:
    (capture,) = (each for each in found.captures if each.ratio == ratio)
    return {ranking: share.value for ranking, share in capture.shares.items()}


def test_each_ranking_captures_what_it_ranks_first() -> None:
    found = diagnose(audit(FOUR, FOUR))
    assert shares(found, "0.25") == pytest.approx(
        {"oracle": 0.4, "learned": 0.3, "entropy": 0.1, "random": 0.25}
    )
    assert shares(found, "0.5") == pytest.approx(
        {"oracle": 0.7, "learned": 0.7, "entropy": 0.3, "random": 0.5}
    )
    # floor(0.1 * 4) is no query at all, for chance as for the others.
    assert set(shares(found, "0.1").values()) == {0.0}


def test_coverage_and_repeated_texts_stand_beside_capture() -> None:
    """Two prompts of two rollouts; the second prompt's have the same text."""
    found = audit(FOUR, query_ratio="0.5")
    candidates = [
        each.model_copy(update={"example": "ab"[place // 2], "text": (0, 1, 0, 0)[place]})
        for place, each in enumerate(found.candidates)
    ]
    found = found.model_copy(update={"candidates": candidates})
    (half,) = (each for each in diagnose(found).captures if each.ratio == "0.5")
    # The oracle takes both rows of a, entropy both of b; at random, 1 - 1/6 of each prompt.
    assert half.prompts == pytest.approx(
        {"oracle": 0.5, "learned": 0.5, "entropy": 0.5, "random": 5 / 6}
    )
    # Of six pairs one is the two rows with the same text: half of its rows are repeated.
    assert half.repeated == pytest.approx(
        {"oracle": 0, "learned": 0, "entropy": 0.5, "random": 1 / 12}
    )
    text = utility_text(found)
    assert "Prompts that a ranking asks about at least once, %:" in text
    assert "Rows whose text was already selected from the same prompt, %:" in text
    (half,) = (each for each in diagnose(audit(FOUR)).captures if each.ratio == "0.5")
    assert half.prompts["oracle"] == 0.5
    assert half.repeated == {}
    assert "already selected" not in utility_text(audit(FOUR))


def test_a_batch_is_ranked_by_itself_with_its_own_budget() -> None:
    """Pooled, the budget would go to the rows of the first batch alone."""
    rich: list[Row] = [(u * 10, None, None) for u, _, _ in FOUR]
    poor: list[Row] = [(u, None, None) for u, _, _ in (*FOUR, *FOUR)]
    found = diagnose(audit(rich, poor))
    # 1 of 4 rows and 2 of 8: 40 of 40 + 30 + 20 + 10, and 4 + 4 of 20.
    assert shares(found, "0.25")["oracle"] == pytest.approx((40 + 8) / 120)
    assert shares(found, "0.25")["random"] == pytest.approx(0.25)


def test_the_runs_own_budget_is_among_those_shown_once() -> None:
    assert [c.ratio for c in diagnose(audit(FOUR)).captures] == ["0.1", "0.25", "0.5"]
    own = diagnose(audit(FOUR, query_ratio="0.75"))
    assert [c.ratio for c in own.captures] == ["0.1", "0.25", "0.5", "0.75"]
    assert [c.ratio for c in diagnose(audit(FOUR, query_ratio="0.50")).captures][-1] == "0.5"


def test_the_curve_rises_from_nothing_to_everything_under_the_oracle() -> None:
    draws = random.Random(0)
    rows: list[Row] = [(draws.random(), draws.random(), draws.random()) for _ in range(50)]
    curve = diagnose(audit(rows, rows[:30])).curve
    for ranking, values in curve.items():
        assert len(values) == len(CURVE) == 101
        assert (values[0], values[-1]) == (0.0, pytest.approx(1.0))
        assert list(values) == sorted(values)
        oracle = curve["oracle"]
        assert all(v <= o + 1e-12 for v, o in zip(values, oracle, strict=True)), ranking


def test_a_ranking_without_scores_is_absent_and_not_made_up() -> None:
    found = diagnose(audit([(u, None, None) for u, _, _ in FOUR]))
    assert set(found.curve) == {"oracle", "random"}
    assert found.prediction is None
    assert [(k.captured, k.selected_share) for k in found.kinds] == [(None, None)]


def test_a_row_without_a_score_comes_last_and_ties_go_to_the_lower_row() -> None:
    rows: list[Row] = [(8.0, None, 0.0), (4.0, 0.5, 0.0), (2.0, 0.5, 0.0), (1.0, 0.1, 0.0)]
    found = diagnose(audit(rows))
    assert shares(found, "0.25")["learned"] == pytest.approx(4 / 15)
    assert shares(found, "0.25")["entropy"] == pytest.approx(8 / 15)


def falling(scale: float) -> list[Row]:
    """Eight rows whose predictions rank them by utility: quarters of 8, 6, 4 and 2 at scale 1."""
    return [(scale * (9 - i), -float(i), None) for i in range(8)]


def test_bands_are_quarters_of_the_predicted_rank_and_ten_batches_that_agree_are_significant() -> (
    None
):
    found = diagnose(audit(*(falling(1 + i / 10) for i in range(10))))
    assert found.prediction is not None
    bands = found.prediction.bands
    assert bands is not None
    mean_scale = 1.45
    assert [b.utility.value for b in bands] == pytest.approx(
        [mean_scale * u for u in (8.5, 6.5, 4.5, 2.5)]
    )
    assert [b.p_above_next for b in bands] == [3 / 1024, 3 / 1024, 3 / 1024, None]
    assert all(b.utility.low < b.utility.value < b.utility.high for b in bands)
    upside_down = audit(*([(-u + 10, p, e) for u, p, e in falling(1)] for _ in range(10)))
    prediction = diagnose(upside_down).prediction
    assert prediction is not None
    assert prediction.bands is not None
    assert [b.p_above_next for b in prediction.bands] == [1.0, 1.0, 1.0, None]


def test_three_candidates_make_no_four_bands() -> None:
    prediction = diagnose(audit(FOUR, FOUR[:3])).prediction
    assert prediction is not None
    assert prediction.bands is None


def test_correlation_within_batches_does_not_see_what_tells_batches_apart() -> None:
    # Within each batch predictions are upside down; between the two they are right.
    low: list[Row] = [(1.0, 0.3, None), (2.0, 0.2, None), (3.0, 0.1, None)]
    high: list[Row] = [(u + 10, (p or 0) + 10, None) for u, p, _ in low]
    prediction = diagnose(audit(low, high)).prediction
    assert prediction is not None
    assert prediction.correlation.within is not None
    assert prediction.correlation.within.mean == pytest.approx(-1.0)
    assert prediction.correlation.pooled == pytest.approx(19 / 35)
    constant = diagnose(audit([(u, 0.5, None) for u, _, _ in FOUR])).prediction
    assert constant is not None
    assert (constant.correlation.within, constant.correlation.pooled) == (None, None)


def test_calibration_bins_hold_every_prediction_once_in_rising_order() -> None:
    rows: list[Row] = [(2.0 * i, float(i), None) for i in range(25)]
    prediction = diagnose(audit(rows)).prediction
    assert prediction is not None
    bins = prediction.calibration
    assert sum(each.n for each in bins) == 25
    assert {each.n for each in bins} == {2, 3}
    assert [each.observed for each in bins] == pytest.approx([2 * each.predicted for each in bins])
    assert [each.predicted for each in bins] == sorted(each.predicted for each in bins)


def test_a_kind_has_its_own_share_of_the_choice() -> None:
    found = diagnose(audit(FOUR, kinds=["a", "b", "a", "b"], query_ratio="0.5"))
    a, b = found.kinds
    assert (a.kind, a.n, a.utility) == ("a", 2, 3.0)
    assert (a.captured, a.selected_share) == (pytest.approx(4 / 6), 0.5)
    assert (b.utility, b.captured) == (2.0, pytest.approx(3 / 4))


def test_an_audit_without_any_utility_is_refused() -> None:
    with pytest.raises(DataError, match="nothing to capture"):
        diagnose(audit([(0.0, 1.0, None)]))


COVERED: list[tuple[str, int, int, float, float]] = [
    # Example, text, tokens, predicted, utility. By predictions alone the prompt a has the first
    # three rows; a row that repeats a text is worth nothing to a policy that covers.
    ("a", 0, 4, 0.9, 8.0),
    ("a", 0, 4, 0.8, 7.0),
    ("a", 1, 4, 0.7, 6.0),
    ("b", 0, 4, 0.2, 2.0),
    ("b", 1, 8, 0.3, 3.0),
    ("c", 0, 1, 0.6, 1.0),
    ("c", 0, 1, 0.5, 1.0),
    ("d", 0, 4, 0.1, 4.0),
]


def covered(policy: str, *, coverage: bool = False) -> UtilityAudit:
    rows = [
        Candidate(
            batch=0,
            row=row,
            example=example,
            kind=example,
            tokens=tokens,
            predicted=predicted,
            entropy=None,
            utility=utility,
            text=text,
        )
        for row, (example, text, tokens, predicted, utility) in enumerate(COVERED)
    ]
    values = {**PROVENANCE, "policy": policy, "coverage": coverage, "query_ratio": "0.5"}
    return UtilityAudit(**values, step=5, dropped=0, candidates=rows)


def test_the_choice_of_a_covering_policy_is_a_ranking_of_its_own() -> None:
    found = diagnose(covered("covering"))
    (half,) = (each for each in found.captures if each.ratio == "0.5")
    # Predicted utility times tokens: 3.6, 3.2, 2.8, 0.8, 2.4, 0.6, 0.5, 0.4. Row 0 opens a, row 4
    # b, row 5 c; of d's row (the lowest) and a second text of a, the latter adds more.
    assert half.shares["covering"].value == pytest.approx((8 + 3 + 1 + 6) / 32)
    assert half.shares["learned"].value == pytest.approx((8 + 7 + 6 + 1) / 32)
    assert (half.prompts["covering"], half.prompts["learned"]) == (0.75, 0.5)
    assert (half.repeated["covering"], half.repeated["learned"]) == (0.0, 0.25)
    selected = {each.kind: each.selected_share for each in found.kinds}
    assert selected == {"a": 0.5, "b": 0.25, "c": 0.25, "d": 0.0}
    # Two rows repeat others: they are never chosen, and the rest of the budget stays unspent.
    assert found.curve["covering"][-1] == pytest.approx((32 - 7 - 1) / 32)
    assert found.curve["learned"][-1] == pytest.approx(1)
    assert "covering  learned" in utility_text(covered("covering"))


def test_to_cover_all_predictions_below_0_are_the_same() -> None:
    rows: list[Row] = [(4.0, -0.3, None), (3.0, -0.2, None), (2.0, -0.1, None), (1.0, -0.4, None)]
    found = shares(diagnose(audit(rows, policy="covering")), "0.25")
    assert (found["covering"], found["learned"]) == pytest.approx((0.4, 0.2))


def test_other_policies_have_no_covering_ranking() -> None:
    found = diagnose(covered("regressed"))
    assert "covering" not in found.curve
    assert {each.kind: each.selected_share for each in found.kinds}["a"] == 0.75


def test_a_policy_that_coverage_is_laid_over_has_one_by_its_own_score() -> None:
    found = diagnose(covered("learned", coverage=True))
    (half,) = (each for each in found.captures if each.ratio == "0.5")
    # By predictions, whatever the tokens: rows 0, 5 and 4 open a, c and b; then a's second text.
    assert half.shares["covering"].value == pytest.approx((8 + 1 + 3 + 6) / 32)
    (quarter,) = (each for each in found.captures if each.ratio == "0.25")
    assert quarter.shares["covering"].value == pytest.approx((8 + 1) / 32)
    assert list(found.curve) == ["oracle", "covering", "learned", "random"]
    assert {each.kind: each.selected_share for each in found.kinds}["a"] == 0.5
    text = utility_text(covered("learned", coverage=True))
    assert "(learned, covering, budget 0.5)" in text
    assert "covering  learned" in text
    assert "(covering, budget 0.5)" in utility_text(covered("covering", coverage=True))


@pytest.mark.parametrize("policy", ["random", "entropy"])
def test_coverage_without_known_scores_has_no_ranking(policy: str) -> None:
    """Random selection has none, and that of entropy goes by the likelihood here."""
    found = covered(policy, coverage=True)
    blank = [each.model_copy(update={"predicted": None}) for each in found.candidates]
    found = found.model_copy(update={"candidates": blank})
    assert list(diagnose(found).curve) == ["oracle", "random"]


@pytest.mark.parametrize(
    ("policy", "settings"),
    [
        ("covering", {}),
        ("learned", {"coverage": True, "exploration": 0}),
        ("regressed", {"coverage": True, "exploration": 0}),
        ("entropy", {"coverage": True}),
    ],
)
def test_it_is_what_the_selector_of_such_a_run_chooses(
    policy: str, settings: dict[str, Any]
) -> None:
    """The utilities are powers of two, so that a captured sum names its rows."""
    generator = torch.Generator().manual_seed(3)
    values = torch.randint(1, 9, (16, 6), generator=generator).double()
    candidates = Candidates(
        rows=tuple(range(16)),
        values=values,
        prompts=tuple(row // 4 for row in range(16)),
        texts=tuple(row % 3 for row in range(16)),
    )
    selector = build_selector(policy, replay_start=4, **settings)
    selector.select(candidates, 8, step=0)
    selector.learn(candidates, {row: float(values[row, 0]) / 90 for row in range(16)}, step=0)
    predicted = selector.predicted_utility(candidates)
    tokens = values[:, FEATURES.index("response_tokens")].tolist()
    rows = [
        Candidate(
            batch=0,
            row=row,
            example=f"e{row // 4}",
            kind="",
            tokens=int(tokens[row]),
            predicted=predicted[row],
            entropy=float(values[row, FEATURES.index("mean_entropy")]),
            utility=2.0**row,
            text=row % 3,
        )
        for row in range(16)
    ]
    coverage = settings.get("coverage", False)
    values_of = {**PROVENANCE, "policy": policy, "coverage": coverage, "step": 1, "dropped": 0}
    found = diagnose(UtilityAudit(**values_of, candidates=rows))
    for ratio, k in (("0.25", 4), ("0.5", 8)):
        chosen = selector.select(candidates, k, step=1).rows
        assert len(chosen) == k
        assert shares(found, ratio)["covering"] == sum(2.0**row for row in chosen) / (2.0**16 - 1)
