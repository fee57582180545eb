"""Accuracy at equal cost, against numbers worked out by hand."""

from __future__ import annotations

import pytest
from result_fixtures import cells, cost, result

from bas_opd.reproduce.cuts import cuts_table
from bas_opd.reproduce.results import Point, RunResult, Steps
from bas_opd.reproduce.table import policies_table

N = 4


def run(arm: str, seed: int, curve: tuple[float, ...], responses: int, tokens: int) -> RunResult:
    """A run of four steps that was evaluated before, after two and after four of them."""
    columns = Steps(
        loss=[0.5] * N,
        calls=[28] * N,
        scored_tokens=[250] * N,
        responses=[responses] * N,
        total_tokens=[tokens] * N,
        seconds=[1.0] * N,
    )
    points = [Point(step=2 * i, n=12, accuracy=value) for i, value in enumerate(curve)]
    return result(arm, seed, 5, steps=columns, curve=points)


@pytest.fixture
def arms() -> dict[str, list[RunResult]]:
    return {
        "base": [result("base", None, 4)],
        "full": [run("full", s, (0.3, 0.5, 0.6), 8, 1000) for s in (0, 1)],
        # Twice the responses and four times the tokens of a step.
        "dapo": [run("dapo", s, (0.3, 0.7, 0.9), 16, 4000) for s in (0, 1)],
    }


def test_each_arm_stands_where_its_cost_was_that_of_the_cheapest(
    arms: dict[str, list[RunResult]],
) -> None:
    table = cuts_table(arms)
    assert table is not None
    ((_, *full),) = cells(table, "full")
    assert full == ["4", "60.0", "-"] * 3
    ((_, *dapo),) = cells(table, "dapo")
    steps, responses, tokens = dapo[:3], dapo[3:6], dapo[6:]
    assert steps == ["4", "90.0", "+30.00"]
    assert responses == ["2", "70.0", "+10.00"]  # 32 responses, after two steps
    assert tokens == ["1", "50.0", "-10.00"]  # 4,000 tokens: after one, halfway from 0.3 to 0.7
    assert cells(table, "base") == []
    assert "after 32 sampled responses" in table
    assert "12 of the test questions" in table


def test_an_arm_that_costs_far_less_does_not_say_at_which_cost_to_compare(
    arms: dict[str, list[RunResult]],
) -> None:
    arms["covering12"] = [run("covering12", s, (0.3, 0.4, 0.5), 2, 500) for s in (0, 1)]
    table = cuts_table(arms)
    assert table is not None
    ((_, *full),) = cells(table, "full")
    assert full == ["4", "60.0", "-", "4", "60.0", "-", "2", "50.0", "-"]
    ((_, *cheap),) = cells(table, "covering12")
    assert cheap == ["4", "50.0", "-10.00", "4", "50.0", "-10.00", "4", "50.0", "+0.00"]
    assert "Of covering12, which cost less than a third of full querying's responses, it" in table
    assert "querying's tokens" not in table  # Half of them is enough.


def test_without_evaluations_during_training_there_is_no_such_table(
    arms: dict[str, list[RunResult]],
) -> None:
    arms["full"][0] = result("full", 0, 5)
    assert cuts_table(arms) is None
    assert cuts_table({"base": arms["base"]}) is None


def test_the_table_reads_an_arm_with_the_settings_of_its_study(
    arms: dict[str, list[RunResult]],
) -> None:
    """A fall of the learning rate that only a shorter warm-up leaves room for."""
    graded = cost(rewards=64, generated=0)
    falling = [
        each.model_copy(
            update={
                "cost": graded,
                "settings": [*each.settings, "optim.decay_until=8"],
                "overrides": [*each.overrides, "optim.warmup_steps=0"],
            }
        )
        for each in arms["full"]
    ]
    table = policies_table(
        [arms["base"][0].model_copy(update={"overrides": falling[0].overrides}), *falling]
    )
    assert "learns from" in table


def test_the_table_says_what_each_method_learned_from(arms: dict[str, list[RunResult]]) -> None:
    counted = {"rollouts": 64, "generated": 0, "deferred": 1, "reference_rows": 0}
    graded = cost(**counted, rewards=64, dropped_groups=3, updates=16)
    plain = cost(**counted, rewards=0, dropped_groups=0, updates=4)
    updated = [
        each.model_copy(update={"cost": graded if each.arm == "dapo" else plain})
        for each in (*arms["full"], *arms["dapo"])
    ]
    table = policies_table([*arms["base"], *updated])
    assert ["dapo", "answers", "64", "0", "64", "1", "0", "3", "16"] in cells(table, "dapo")
    assert ["full", "crops", "64", "0", "0", "1", "0", "0", "4"] in cells(table, "full")
    assert "equal responses" in table
    alone = [each for each in updated if each.arm == "full"]
    assert "learns from" not in policies_table([*arms["base"], *alone])
