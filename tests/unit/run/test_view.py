from __future__ import annotations

from typing import Any

import pytest
from synthetic_rewards import POLICY_STEP
from synthetic_steps import A_STEP

from bas_opd.run.record import StepRecord, parse_step
from bas_opd.run.view import WIDTH, RunView, legend


def step(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "event": "step",
        "step": number,
        "examples": ["e"],
        "per_prompt": 4,
        "prompt_tokens": [20],
        "response_tokens": [10] * 4,
        "student_tokens": 0,
        "feature_names": [],
        "features": [[]] * 4,
        "has_entropy": True,
        "query_ratio": "0.25",
        "scored": [0, 1],
        "processed_tokens": 0,
        "prefilled_prompts": 0,
        "learned": True,
        "dropped_labels": 0,
        "candidates": [0, 1, 2, 3],
        "candidate_tokens": 40,
        "budget": 2,
        "calls": 2,
        "selected": [0, 1],
        "explored": [1],
        "scores": [0.4, 0.3, 0.2, 0.1],
        "utility": [0.5, 0.25],
        "scored_tokens": 10,
        "overrun": 0,
        "loss": float(number),
        "is_valid": True,
        "seconds": {"rollout": 3.0, "teacher": 1.0},
        **changes,
    }


def watched(*events: dict[str, Any]) -> RunView:
    run = RunView(title="learned, query ratio 0.25", total=4)
    for event in events:
        run.add(parse_step(event))
    return run


def test_counts_are_sums_and_the_worst_overrun_stays() -> None:
    run = watched(step(0, overrun=2), step(1))
    ledger = run.ledger
    assert (ledger.candidates, ledger.candidate_tokens) == (8, 80)
    assert (ledger.calls, ledger.scored_tokens, ledger.overrun) == (4, 20, 2)
    assert "over budget, worst step 2" in "\n".join(run.lines())


def test_the_time_left_follows_from_the_pace_of_the_last_steps() -> None:
    assert watched(step(0)).line().endswith("4.0 s  eta 12 s")
    slow = watched(step(0), step(1, seconds={"rollout": 8.0}))
    assert slow.line().endswith("8.0 s  eta 12 s")


def test_a_view_shows_the_last_step_curves_and_shares_of_time() -> None:
    text = "\n".join(watched(step(0), step(1), step(2)).lines())
    assert "learned, query ratio 0.25" in text
    assert "step 3/4  loss 2.0000  queries 2/2 (1 explored)  tokens 10 (25.0 % of full)" in text
    assert "loss              ▁▅█  2 (0 to 2)" in text
    assert "utility, ranked   ▁▁▁  0.5 (0.5 to 0.5)" in text
    assert "time 12 s: rollout 75%, teacher 25%" in text


def test_a_view_says_what_a_budget_in_tokens_counts() -> None:
    tokens = step(0, budget_kind="scored_tokens", budget=12, costs=[5] * 4)
    assert "queries 2, 10/12 scored tokens (1 explored)" in watched(tokens).line()


def test_a_loss_that_is_not_known_leaves_a_gap() -> None:
    run = watched(step(0), step(1, loss=None, is_valid=False), step(2))
    text = "\n".join(run.lines())
    assert "▁ █" in text
    assert "skipped, not finite: 1" in text


def test_a_long_run_keeps_only_its_last_steps() -> None:
    run = watched(*(step(number) for number in range(WIDTH + 5)))
    assert len(run.recent) == WIDTH
    assert run.done == WIDTH + 5


def test_before_the_first_step_that_is_said() -> None:
    assert watched().lines() == ("No step is on record yet.",)


def line(**changes: Any) -> str:
    view = RunView(total=111)
    view.add(A_STEP.model_copy(update=changes))
    return view.line()


def test_a_step_is_one_line() -> None:
    assert line() == (
        "step 37/111  loss 0.0412  queries 56/56 (6 explored)  tokens 3,081 (15.9 % of full)  "
        "u 5.5e-3 / 3.1e-3  41 s  eta 51 m"
    )


def test_what_is_not_known_is_left_out() -> None:
    warm_up = line(explored=[], scores=[None] * 224)
    assert "explored" not in warm_up
    assert "  u " not in warm_up
    assert "loss" not in line(loss=None)
    assert "loss" not in line(loss=float("nan"))


def test_a_step_that_changed_nothing_says_why() -> None:
    assert "skipped: the loss or its gradient is not finite" in line(is_valid=False, loss=None)
    idle = line(selected=[], utility=[], explored=[], calls=0, scored_tokens=0, is_valid=False)
    assert "empty: no row was selected" in idle


def test_a_step_without_candidates_has_no_share() -> None:
    assert "tokens 0  " in line(candidate_tokens=0, scored_tokens=0)


def test_rows_without_a_label_do_not_enter_the_mean() -> None:
    few = {"selected": [0, 1, 2], "explored": [2], "utility": [0.5, None, 0.25]}
    assert A_STEP.model_copy(update=few).mean_utility == (0.5, 0.25)
    few["utility"] = [0.5, None, None]
    assert A_STEP.model_copy(update=few).mean_utility == (0.5, None)


def test_a_step_of_a_method_without_queries_has_its_core_alone() -> None:
    plain = StepRecord.model_validate(A_STEP.model_dump(include=set(StepRecord.model_fields)))
    view = RunView(total=38)
    view.add(plain)
    assert view.line() == "step 37/38  loss 0.0412  41 s  eta 41 s"


def rewarded(**changes: Any) -> RunView:
    view = RunView(total=9)
    for number in range(3):
        view.add(parse_step({**POLICY_STEP, "step": number, **changes}))
    return view


def test_a_step_with_rewards_leads_with_them_and_not_with_its_loss() -> None:
    assert rewarded().line() == (
        "step 3/9  reward 0.250  right 1/4  KL 0.0012  gradient 0.8  2.0 s  eta 12 s"
    )


def test_a_line_names_clipping_rounds_and_unread_responses_where_there_are_any() -> None:
    changes = {
        "kl": None,
        "clip_share": 0.021,
        "rounds": [1, 1],
        "kept": [0],
        "grades": ["right", "unread", "wrong", "wrong"],
    }
    assert rewarded(**changes).line() == (
        "step 3/9  reward 0.250  right 1/4  deferred 1  gradient 0.8  clipped 2.1 %  "
        "rounds 2, kept 1/2  2.0 s  eta 12 s"
    )


def test_a_step_whose_rewards_are_equal_says_so() -> None:
    assert rewarded(rows=[], is_valid=False, updates=[], kl=None).line() == (
        "step 3/9  empty: no prompt has rewards that differ  reward 0.250  right 1/4  2.0 s  "
        "eta 12 s"
    )


def test_records_from_before_kl_was_on_record_still_have_a_line() -> None:
    old = {name: value for name, value in POLICY_STEP.items() if name != "kl"}
    view = RunView(total=9)
    view.add(parse_step(old))
    assert "reward 0.250  right 1/4  gradient 0.8" in view.line()


def test_a_view_draws_the_curves_of_rewards() -> None:
    names = [line.split("  ")[0] for line in rewarded().lines()[2:-1]]
    assert names == ["reward", "KL", "gradient norm", "response tokens"]
    shaped = rewarded(rewards=[0.5, 0.0, 0.0, 0.0]).lines()
    assert [line.split("  ")[0] for line in shaped[2:4]] == ["reward", "right"]
    curves = "\n".join(rewarded(clip_share=0.5, rounds=[1, 1], kept=[0]).lines())
    assert "prompts kept      ▁▁▁  0.5" in curves
    assert "clipped           ▁▁▁  0.5" in curves
    assert "rounds            ▁▁▁  2" in curves


@pytest.mark.parametrize(
    "changes", [{}, {"kl": None, "clip_share": 0.1}, {"rounds": [1, 1], "kept": [0]}]
)
def test_a_legend_explains_what_is_shown_and_nothing_else(changes: dict[str, Any]) -> None:
    record = parse_step({**POLICY_STEP, **changes})
    view = RunView(total=9)
    view.add(record)
    shown = view.line()
    words = legend(record, set())
    for word in ("reward", "right", "KL", "gradient", "clipped", "rounds", "deferred", "queries"):
        assert (f"{word} is " in words or f"{word} are " in words) == (f"  {word} " in shown), word


def test_a_word_is_explained_when_it_first_appears_and_only_then() -> None:
    explained: set[str] = set()
    early = A_STEP.model_copy(update={"scores": [None] * 224, "explored": []})
    assert legend(early, explained) == (
        "In the line of a step, queries are teacher calls made / allowed (K) and tokens are those "
        "the teacher scored."
    )
    assert legend(early, explained) == ""
    assert legend(A_STEP, explained) == (
        "In the line of a step, u is the mean utility of rows chosen by score / at random."
    )
