"""What the selector did, on steps that can be counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from bas_opd.report.charts.model import Mark
from bas_opd.report.charts.training import step_drawing
from bas_opd.report.selection import (
    rank_bands,
    reach,
    shares_by_kind,
    shares_by_length,
    utility_by_step,
)
from bas_opd.run.record import QueryRecord
from bas_opd.select.rules import policy_rule


def step(number: int = 0, **changes: Any) -> QueryRecord:
    """Two prompts of four rollouts; rows 0 to 7 are candidates, ranked in their order."""
    values: dict[str, Any] = {
        "step": number,
        "examples": ["a", "b"],
        "per_prompt": 4,
        "prompt_tokens": [10, 10],
        "response_tokens": [1, 2, 3, 4, 5, 6, 7, 8],
        "candidates": list(range(8)),
        "candidate_tokens": 36,
        "feature_names": [],
        "features": [[]] * 8,
        "has_entropy": True,
        "query_ratio": "0.5",
        "budget": 4,
        "selected": [0, 1, 2, 6],
        "explored": [6],
        "scores": [8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0],
        "utility": [0.8, 0.4, 0.3, 0.1],
        "scored": [0, 1, 2, 6],
        "calls": 4,
        "overrun": 0,
        "scored_tokens": 13,
        "processed_tokens": 13,
        "prefilled_prompts": 2,
        "student_tokens": 13,
        "is_valid": True,
        "learned": True,
        "dropped_labels": 0,
        "seconds": {},
    }
    return QueryRecord(**{**values, **changes})


def test_utility_is_split_by_how_a_row_was_chosen() -> None:
    (found,) = utility_by_step([step()])
    assert found.ranked == pytest.approx(0.5)
    assert found.drawn == pytest.approx(0.1)
    assert found.mean == pytest.approx(0.4)


def test_without_scores_every_row_was_drawn() -> None:
    (found,) = utility_by_step([step(scores=[None] * 8, explored=[])])
    assert found.ranked is None
    assert found.drawn == pytest.approx(0.4)


def test_a_utility_that_is_not_known_counts_nowhere() -> None:
    assert utility_by_step([step(utility=[None] * 4)]) == []


def test_bands_are_quarters_of_the_ranking_and_average_over_steps() -> None:
    bands = rank_bands([step(0), step(1, utility=[0.6, 0.2, 0.3, 0.3])])
    assert [(band.name, band.rows) for band in bands] == [
        ("top 25 %", 4),
        ("25-50 %", 2),
        ("bottom 25 %", 2),
    ]
    assert bands[0].utility.mean == pytest.approx((0.6 + 0.4) / 2)
    assert bands[2].utility.mean == pytest.approx(0.2)


def test_steps_that_explored_nothing_have_no_bands() -> None:
    assert rank_bands([step(0, explored=[]), step(1, explored=[])]) == ()


def test_shares_of_kinds_are_of_candidates_and_of_selected_rows() -> None:
    kinds = shares_by_kind([step()], {"a": "count", "b": "colour"})
    assert kinds == {"count": (0.5, 0.75), "colour": (0.5, 0.25)}
    assert shares_by_kind([step()], {}) == {"no kind": (1.0, 1.0)}


def test_shares_of_lengths_add_up_and_every_row_has_its_place() -> None:
    lengths = shares_by_length([step()])
    assert list(lengths) == ["1-2 tokens", "3-4 tokens", "5-6 tokens", "7-8 tokens"]
    assert [share for share, _ in lengths.values()] == [0.25] * 4
    assert [share for _, share in lengths.values()] == [0.5, 0.25, 0.0, 0.25]


def test_equal_lengths_are_one_place() -> None:
    assert shares_by_length([step(response_tokens=[3] * 8)]) == {"3 tokens": (1.0, 1.0)}


def test_reach_counts_prompts_once() -> None:
    found = reach([step(0), step(1, selected=[0, 1], utility=[0.1, 0.1], explored=[])])
    assert (found.prompts_seen, found.prompts_asked) == (2, 2)
    assert found.per_step == pytest.approx(0.75)
    assert found.repeated is None


def test_a_text_selected_again_from_the_same_prompt_is_repeated() -> None:
    # Rows 0, 1, 2 are of the first prompt and have texts 0, 0, 1; row 6 is of the second.
    texts = [0, 0, 1, 2, 0, 1, 0, 1]
    assert reach([step(texts=texts)]).repeated == pytest.approx(0.25)
    assert reach([step(texts=[0, 1, 2, 3, 0, 1, 0, 1])]).repeated == 0
    assert reach([step(texts=texts), step(1)]).repeated is None


def test_a_drawn_step_shows_each_rollout_as_what_became_of_it() -> None:
    shown = step(candidates=list(range(7)), features=[[]] * 7, scores=[1.0] * 7)
    drawn = step_drawing(shown, policy_rule("learned"))
    marks = [shape for shape in drawn.panels[0].shapes if isinstance(shape, Mark)]
    assert [mark.style for mark in marks] == [
        *["ranked"] * 3,
        *["passed-over"] * 3,
        "explored",
        "no-crop",
    ]
    assert marks[0].size > marks[1].size
    assert "8 rollouts of 2 questions. 7 rollouts can be asked about." in drawn.label
    assert "cannot be asked" in [key.label for key in drawn.keys]
