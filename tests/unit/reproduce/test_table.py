"""The table of policies: what it says, and what it refuses to compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from result_fixtures import cells, cost, result

from bas_opd.errors import DataError
from bas_opd.reproduce.results import Count, RunResult
from bas_opd.reproduce.table import MARKERS, policies_table, replace_table, write_table


def three_seeds(arm: str, right: tuple[int, int, int]) -> list[RunResult]:
    return [result(arm, seed, colour) for seed, colour in enumerate(right)]


def test_an_entry_is_the_mean_over_seeds_with_its_interval() -> None:
    table = policies_table(three_seeds("full", (5, 6, 7)))
    accuracy, costs = cells(table, "full")
    # Means 0.45, 0.5, 0.55: t(0.975, 2) * 0.05 / sqrt(3) = 0.1242.
    assert accuracy[:5] == ["full", "3", "50.0 ± 12.4", "-", "50.0 ± 12.4"]
    assert accuracy[5:] == ["50.0 ± 12.4", "60.0 ± 24.8", "40.0"]
    tokens = ["1,000", "9,000", "4,500", "42,500"]
    assert costs == ["full", "112", *tokens, "1.5", "2.000", "1", "0"]


def test_costs_that_version_0_1_did_not_count_have_no_column() -> None:
    counted = {"student_tokens", "prefilled_tokens", "sampled_tokens", "total_tokens"}
    old = cost().model_copy(update=dict.fromkeys(counted))
    runs = [run.model_copy(update={"cost": old}) for run in three_seeds("full", (5, 6, 7))]
    table = policies_table(runs)
    assert "total tokens" not in table
    assert cells(table, "full")[1] == ["full", "112", "1,000", "9,000", "1.5", "2.000", "1", "0"]
    assert "total tokens" in policies_table([*runs, *three_seeds("fewer2", (5, 6, 7))])


def test_a_difference_is_paired_by_seed() -> None:
    full, other = three_seeds("full", (3, 6, 9)), three_seeds("random25", (2, 5, 8))
    table = policies_table([*other[::-1], *full])
    assert cells(table, "random25")[0][3] == "-5.00 ± 0.00"
    assert "- random25: -5.00 points against full querying (95 % CI -5.00 to -5.00, 3 seeds): " in (
        table
    )
    assert "significantly different." in table


def test_a_difference_that_may_be_zero_is_not_significant() -> None:
    full, other = three_seeds("full", (5, 6, 7)), three_seeds("random25", (7, 6, 6))
    line = next(
        line
        for line in policies_table([*full, *other]).splitlines()
        if line.startswith("- random25")
    )
    assert line.endswith("not significantly different.")
    assert "+1.67 points" in line


def test_only_seeds_that_both_have_are_compared() -> None:
    full, other = three_seeds("full", (5, 6, 7)), [result("random25", 2, 9)]
    table = policies_table([*full, *other])
    assert cells(table, "random25")[0][1:4] == ["1", "65.0", "+10.00"]
    assert "- random25: +10.00 points against full querying with one seed" in table


def test_the_base_is_evaluated_once_and_compared_with_every_seed() -> None:
    table = policies_table([*three_seeds("full", (5, 6, 7)), result("base", None, 2)])
    base = cells(table, "base")
    assert len(base) == 1
    assert base[0][1:4] == ["-", "30.0", "-20.00 ± 12.42"]
    assert table.index("| base |") < table.index("| full |")


def test_the_table_says_what_it_is_of_and_what_made_it() -> None:
    overrides = ["run.steps=2"]
    runs = [result("full", seed, 5, overrides=overrides) for seed in (0, 1)]
    table = policies_table(runs)
    assert "20 test questions, 2 steps a run, learning rate 5e-05" in table
    assert "--seeds 2 --train-n 3120 --test-n 20 --arms full run.steps=2`" in table
    assert "on CPU with 4 runs in parallel" in table
    alone = [run.model_copy(update={"jobs": 1}) for run in three_seeds("full", (5, 6, 7))]
    assert "on CPU with one run at a time." in policies_table(alone)


def test_pairs_are_in_the_table_where_there_are_any() -> None:
    assert "Pairs" not in policies_table([result("full", 0, 5)])
    table = policies_table([result("full", 0, 5, pairs=Count(n=8, correct=2))])
    assert "Pairs with both questions right, in %: full 25.0." in table


def test_an_overrun_of_one_seed_shows() -> None:
    over = result("full", 1, 5, cost=cost(overrun=3))
    assert cells(policies_table([result("full", 0, 5), over]), "full")[1][-1] == "3"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"questions": "other"}, "differ in questions"),
        ({"base": "other"}, "differ in base"),
        ({"learning_rate": 1e-4}, "differ in learning_rate"),
        ({"overrides": ["optim.warmup_steps=0"]}, "differ in overrides"),
        ({"train": "other"}, "differ in train"),
        ({"split": "val"}, "judged on val"),
        ({"seed": 0}, "Two results are of full with seed 0"),
        ({"arm": "other"}, "No arm is named other"),
    ],
)
def test_what_was_not_measured_alike_is_not_compared(
    changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(DataError, match=complaint):
        policies_table([result("full", 0, 5), result("full", 1, 5).model_copy(update=changes)])


def test_an_override_that_says_what_the_preset_says_is_no_difference() -> None:
    plain = result("full", 0, 5, overrides=[])
    spelt = result("full", 1, 5, overrides=["optim.learning_rate=1e-4"])
    table = policies_table([plain, spelt])
    assert "learning_rate=" not in table


def test_existence_is_left_out_of_the_mean_without_it() -> None:
    kinds = {"count": Count(n=10, correct=4), "existence": Count(n=10, correct=9)}
    outcomes = "1" * 13 + "0" * 7
    run = result("full", 0, 5).model_copy(update={"kinds": kinds, "outcomes": outcomes})
    header, row = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in policies_table([run]).splitlines()
        if line.startswith(("| arm | seeds", "| full | 1 |"))
    )
    assert row[header.index("without existence")] == "40.0"
    assert row[header.index("mean of kinds")] == "65.0"
    # In the second version a "no" has a crop.
    later = run.model_copy(update={"task": "FineSearch 2"})
    assert "without existence" not in policies_table([later])


def test_only_what_is_between_the_markers_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "results.md"
    page.write_text(f"before\n{MARKERS[0]}\nold\n{MARKERS[1]}\nafter \\1\n")
    write_table(page, "new \\1 |\n")
    write_table(page, "newer \\1 |\n")
    assert page.read_text() == f"before\n{MARKERS[0]}\nnewer \\1 |\n{MARKERS[1]}\nafter \\1\n"


@pytest.mark.parametrize(
    "page",
    ["nothing", MARKERS[0], "\n".join(MARKERS[::-1]), "\n".join(MARKERS * 2)],
)
def test_a_page_without_one_place_for_the_table_is_left_alone(page: str) -> None:
    with pytest.raises(DataError, match="one place for the table"):
        replace_table(page, "table")


def test_a_page_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be put into .*missing\.md"):
        write_table(tmp_path / "missing.md", "table\n")
