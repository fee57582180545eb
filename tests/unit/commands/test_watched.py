from __future__ import annotations

from typing import Any

from bas_opd.commands.watched import WIDTH, Watched

STARTED: dict[str, Any] = {
    "event": "started",
    "steps": 4,
    "config": {"select": {"policy": "learned", "query_ratio": "0.25"}},
}


def step(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "event": "step",
        "step": number,
        "examples": ["e"],
        "per_prompt": 4,
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


def watched(*events: dict[str, Any]) -> Watched:
    run = Watched()
    for event in (STARTED, *events):
        run.add(event)
    return run


def test_counts_are_sums_and_the_worst_overrun_stays() -> None:
    run = watched(step(0, overrun=2), step(1))
    ledger = run.ledger
    assert (ledger.candidates, ledger.candidate_tokens) == (8, 80)
    assert (ledger.calls, ledger.scored_tokens, ledger.overrun) == (4, 20, 2)
    assert "over budget, worst step 2" in "\n".join(run.lines())


def test_the_time_left_follows_from_the_pace_of_the_last_steps() -> None:
    assert watched(step(0)).remaining == 3 * 4.0
    slow = watched(step(0), step(1, seconds={"rollout": 8.0}))
    assert slow.remaining == 2 * 6.0


def test_a_view_shows_the_last_step_curves_and_shares_of_time() -> None:
    text = "\n".join(watched(step(0), step(1), step(2)).lines())
    assert "learned, query ratio 0.25" in text
    assert "step 3/4  loss 2.0000  queries 2/2 (1 explored)  tokens 10 (25.0 % of full)" in text
    assert "loss              ▁▅█  2 (0 to 2)" in text
    assert "utility, ranked   ▁▁▁  0.5 (0.5 to 0.5)" in text
    assert "time 12 s: rollout 75%, teacher 25%" in text


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


def test_a_finished_run_is_known_by_its_ledger() -> None:
    run = watched(step(0))
    assert run.totals is None
    run.add({"event": "finished", "totals": {"steps": 1}})
    assert run.totals == {"steps": 1}
