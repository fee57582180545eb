from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from bas_opd.config import Config
from bas_opd.errors import ConfigError


def build(**sections: dict[str, Any]) -> Config:
    sections["model"] = {"path": "m", **sections.get("model", {})}
    sections["data"] = {"path": "d"}
    return Config.model_validate(sections)


def test_a_config_cannot_be_changed() -> None:
    config = build()
    with pytest.raises(ValidationError, match="frozen"):
        config.distill.k = 3  # type: ignore[misc]


def test_the_full_policy_asks_about_every_candidate() -> None:
    with pytest.raises(ValidationError, match=r"Set select\.query_ratio=1"):
        build(select={"policy": "full"})
    assert build(select={"policy": "full", "query_ratio": 1}).select.query_ratio == 1


def test_the_full_policy_has_nothing_to_cover() -> None:
    with pytest.raises(ValidationError, match="would leave out repeated responses"):
        build(select={"policy": "full", "query_ratio": 1, "coverage": True})


@pytest.mark.parametrize("policy", ["random", "entropy", "learned", "regressed"])
def test_correctness_is_refused_where_the_policy_does_not_use_it(policy: str) -> None:
    with pytest.raises(ValidationError, match=f"the {policy} policy does not use it"):
        build(select={"policy": policy, "correctness": True})
    assert build(select={"policy": "covering", "correctness": True})


def test_a_budget_counts_what_is_known_to_be_counted() -> None:
    with pytest.raises(ValidationError, match="'calls', 'scored_tokens' or 'processed_tokens'"):
        build(select={"budget": "tokens"})


def test_a_replay_that_could_never_start_is_refused() -> None:
    with pytest.raises(ValidationError, match="would never learn"):
        build(select={"replay_start": 97, "replay_capacity": 96})
    assert build(select={"replay_start": 96, "replay_capacity": 96})


def test_the_rate_falls_after_the_warm_up_only() -> None:
    with pytest.raises(ValidationError, match="the warm-up alone has 10 steps"):
        build(optim={"decay_until": 10})
    assert build(optim={"decay_until": 11})


def test_the_smallest_picture_is_not_larger_than_the_largest() -> None:
    with pytest.raises(ValidationError, match="min_pixels is 5, above"):
        build(model={"min_pixels": 5, "max_pixels": 4})
    assert build(model={"min_pixels": 4, "max_pixels": 4})


def test_processes_wait_a_week_at_most_for_each_other() -> None:
    longer = build(shard={"timeout_minutes": 10_081})  # Read of a run that was begun so.
    with pytest.raises(ConfigError, match=r"timeout_minutes is 10081, but may be 10,080 \(a week"):
        longer.check_limits()
    build(shard={"timeout_minutes": 10_080}).check_limits()


def test_a_teacher_that_a_method_does_not_use_is_named_by_what_was_typed() -> None:
    with pytest.raises(ValidationError, match=r"teacher\.path is p, but the method grpo"):
        build(method={"name": "grpo"}, teacher={"path": "p"})
