"""The first step of every policy on every family is the one on record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from golden.record import FILE, POLICIES, first_steps


@pytest.mark.parametrize(
    ("family", "fixture"),
    [("qwen3_5", "small_qwen35"), ("qwen3_vl", "small_qwen3vl"), ("qwen2_5_vl", "small_qwen25vl")],
)
def test_the_first_step_is_the_one_on_record(
    family: str, fixture: str, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(fixture)
    recorded: dict[str, dict[str, Any]] = json.loads(FILE.read_text())[family]
    now = first_steps(folder)
    for policy in POLICIES:
        for exact in ("tokens", "lengths", "selected", "processed_tokens"):
            assert now[policy][exact] == recorded[policy][exact], (policy, exact)
        # Another processor rounds differently.
        for close in ("features", "loss", "gradient_norm", "utility"):
            assert now[policy][close] == pytest.approx(recorded[policy][close], rel=1e-3), policy
