"""What is refused, and what is said, before a run starts."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from PIL import Image
from run_fixtures import Silent, small_config
from stage_fixtures import make_examples

from bas_opd.budget import smallest_ratio
from bas_opd.config import Config, load_config, preset
from bas_opd.data.records import PreparedSet
from bas_opd.errors import ConfigError, DataError
from bas_opd.run import loop
from bas_opd.run.forecast import (
    check_data,
    check_lengths,
    check_queries,
    check_run,
    never_ranks,
    seldom_asks,
    seldom_grades,
    undrawn_set,
)
from bas_opd.types import Crop, Example


def config(tmp_path: Path, *overrides: str) -> Config:
    return small_config(tmp_path, tmp_path / "model", *overrides)


@pytest.fixture
def batches(tmp_path: Path) -> list[tuple[Example, ...]]:
    """Five steps of three prompts with a crop and one without: 12 candidates each."""
    return [make_examples(tmp_path)] * 5


@pytest.mark.parametrize("ratio", ["0.01", "0.08333"])
def test_a_share_that_never_pays_for_a_query_is_refused_with_the_smallest_that_does(
    ratio: str, batches: list[tuple[Example, ...]], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"select\.query_ratio to at least 0\.08334, or"):
        check_queries(config(tmp_path, f"select.query_ratio={ratio}"), batches)
    check_queries(config(tmp_path, "select.query_ratio=0.08334"), batches)


def test_one_step_with_a_query_is_enough(
    batches: list[tuple[Example, ...]], tmp_path: Path
) -> None:
    fewer = [batches[0][:1]] * 4
    settings = config(tmp_path, "select.query_ratio=0.1")
    check_queries(settings, [*fewer, batches[0]])
    with pytest.raises(ConfigError, match=r"at least 0\.25, or"):
        check_queries(settings, fewer)


def test_a_budget_that_pays_for_no_query_in_most_steps_is_named(
    batches: list[tuple[Example, ...]], tmp_path: Path
) -> None:
    fewer = [batches[0][:1]] * 4
    settings = config(tmp_path, "select.query_ratio=0.1")
    named = seldom_asks(settings, [*fewer, batches[0]])
    assert named.startswith("In 4 of 5 steps K pays for no query")
    assert seldom_asks(settings, batches) == ""
    assert seldom_asks(settings, [*fewer, *fewer[:1], *batches]) == ""  # in half of them


def test_in_tokens_a_share_is_refused_only_if_it_can_pay_for_nothing(
    batches: list[tuple[Example, ...]], tmp_path: Path
) -> None:
    scored = config(tmp_path, "select.query_ratio=0.02", "select.budget=scored_tokens")
    check_queries(scored, batches)  # 12 responses of at most 5 tokens: K may be 1
    with pytest.raises(ConfigError, match=r"at least 0\.01667"):
        check_queries(
            config(tmp_path, "select.query_ratio=0.01", "select.budget=scored_tokens"), batches
        )
    # Three prompts of 100 tokens and 12 responses: at most 348 tokens, of which a query takes 100.
    processed = "select.budget=processed_tokens"
    check_queries(config(tmp_path, "select.query_ratio=0.29", processed), batches, lambda _: 100)
    with pytest.raises(ConfigError, match=r"at least 0\.2874"):
        check_queries(
            config(tmp_path, "select.query_ratio=0.28", processed), batches, lambda _: 100
        )


def test_the_smallest_ratio_is_rounded_up() -> None:
    assert smallest_ratio(1, 224) == Decimal("0.004465")
    assert smallest_ratio(1, 32) == Decimal("0.03125")


def test_a_policy_that_would_never_rank_a_row_is_named(
    batches: list[tuple[Example, ...]], tmp_path: Path
) -> None:
    """Three queries a step: 12 labels before the last step."""
    assert never_ranks(config(tmp_path, "select.replay_start=12"), batches) == ""
    late = never_ranks(config(tmp_path, "select.replay_start=13"), batches)
    assert "its steps bring at most 12 before the last" in late
    assert never_ranks(config(tmp_path, "select.policy=random"), batches) == ""
    tokens = ("select.replay_start=48", "select.budget=scored_tokens")
    assert never_ranks(config(tmp_path, *tokens), batches) == ""


def test_a_run_is_refused_or_warned_of_at_its_start(small_qwen35: Path, tmp_path: Path) -> None:
    console = Silent()
    with pytest.raises(ConfigError, match="K pays for no query"):
        loop.train(small_config(tmp_path, small_qwen35, "select.query_ratio=0.01"), console)
    dear = ("select.query_ratio=0.05", "select.budget=processed_tokens")
    with pytest.raises(ConfigError, match="K pays for no query"):
        loop.train(small_config(tmp_path, small_qwen35, *dear), console)
    late = ("select.replay_start=99", "run.steps=1")
    loop.train(small_config(tmp_path, small_qwen35, *late), console)
    assert any("will rank no row of this run" in message for message in console.messages)


def test_correctness_needs_answers(small_qwen35: Path, tmp_path: Path) -> None:
    settings = small_config(
        tmp_path, small_qwen35, "select.policy=covering", "select.correctness=true"
    )
    data = loop.PreparedSet.load(tmp_path / "data")
    check_data(settings, data)
    blank = tuple(replace(example, answer="") for example in data.examples)
    with pytest.raises(DataError, match="has an answer to compare responses with"):
        check_data(settings, replace(data, examples=blank))


def of_method(name: str, *overrides: str) -> Config:
    rows = ("rollout.prompts_per_step=2", "rollout.per_prompt=2", "run.steps=3")
    return load_config(preset(name), ["model.path=m", "data.path=d", *rows, *overrides])


def test_a_method_without_queries_has_no_notice_of_them(tmp_path: Path) -> None:
    batches = [make_examples(tmp_path)[:2]] * 3
    assert seldom_asks(of_method("sft", "rollout.per_prompt=1"), batches) == ""
    assert seldom_asks(of_method("learned25", "rollout.per_prompt=1"), batches) != ""


@pytest.mark.parametrize("name", ["full", "sft", "grpo", "dapo", "opsd"])
def test_a_set_that_is_not_drawn_has_all_that_a_method_may_need(tmp_path: Path, name: str) -> None:
    settings = ("grpo.updates_per_step=1",) if name == "dapo" else ()
    assert len(check_run(of_method(name, *settings), undrawn_set(tmp_path, 8))) == 3


@pytest.mark.parametrize("name", ["grpo", "dapo", "sft", "sft-unfiltered", "opsd", "learned25"])
def test_answers_that_no_rule_can_grade_are_counted_before_a_run(tmp_path: Path, name: str) -> None:
    updates = ("grpo.updates_per_step=1",) if name in ("grpo", "dapo") else ()
    settings = of_method(name, *updates)
    examples = [replace(each, answer="red") for each in make_examples(tmp_path)]
    data = PreparedSet(folder=tmp_path, examples=tuple(examples), fingerprint="")
    assert seldom_grades(settings, data) == ""
    blank = replace(examples[2], answer="")
    data = replace(data, examples=(*examples[:2], blank, examples[3]))
    said = (
        f"No rule can grade the answers of 1 example, such as {blank.id!r}, of 4: they are not "
        "sampled."
    )
    grades = name in ("grpo", "dapo", "sft")
    assert seldom_grades(settings, data) == (said if grades else "")


@pytest.mark.parametrize("name", ["grpo", "dapo", "opsd", "learned25", "sft"])
def test_a_crop_that_is_too_long_matters_only_where_it_is_shown(tmp_path: Path, name: str) -> None:
    updates = ("grpo.updates_per_step=1",) if name in ("grpo", "dapo") else ()
    example = make_examples(tmp_path)[0]
    large = tmp_path / "crop.png"
    Image.new("RGB", (400, 400)).save(large)
    shown = replace(example, crop=Crop(area=0.1, image=large))
    data = PreparedSet(folder=tmp_path, examples=(shown,), fingerprint="")
    settings = of_method(name, *updates, "data.max_prompt_tokens=200", "run.steps=1")

    def length(size: tuple[int, int], question: str) -> int:
        return size[0]

    if name in ("learned25", "sft"):
        with pytest.raises(DataError, match="more than the 200 allowed"):
            check_lengths(settings, data, length)
    else:
        check_lengths(settings, data, length)
