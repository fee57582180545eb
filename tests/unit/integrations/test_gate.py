from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from bas_opd.errors import BudgetError, CheckpointError, ConfigError
from bas_opd.integrations.gate import STATE_FILE, QueryGate
from bas_opd.select import FullSelector, LearnedSelector, RandomSelector


def opened(gate: QueryGate, step: int = 0, rows: int = 10) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(step)
    measured = torch.rand(rows, 4, generator=generator)
    return gate.select(
        step=step,
        response_tokens=[row % 5 for row in range(rows)],  # rows 0 and 5 said nothing
        prompt_tokens=[20] * rows,
        logprobs=-measured,
        entropies=measured,
    )


def test_a_step_is_charged_with_the_rows_that_were_asked() -> None:
    gate = QueryGate(query_ratio="0.5")
    rows = opened(gate)
    assert len(rows) == 4  # of 8 candidates
    gate.admit(rows[:3])
    gate.observe({rows[0]: 0.5, rows[1]: float("nan")})
    record = gate.finish(loss=0.1)
    assert (record.budget, record.calls, record.dropped) == (4, 3, [rows[3]])
    assert record.processed_tokens == record.scored_tokens + 3 * 20
    assert record.utility == [0.5, None, None, None]
    assert (gate.ledger.calls, gate.ledger.candidates, gate.ledger.dropped_labels) == (3, 8, 1)
    assert gate.ledger.scored_tokens == sum(row % 5 for row in rows[:3])


def test_a_row_that_was_not_selected_is_refused() -> None:
    gate = QueryGate(query_ratio="0.5")
    rows = opened(gate)
    other = min(set(range(10)) - set(rows))
    with pytest.raises(BudgetError, match=f"row {other}, which was not selected"):
        gate.admit([rows[0], other])
    gate.admit(rows[:1])
    with pytest.raises(BudgetError, match="twice"):
        gate.admit(rows[:1])
    with pytest.raises(BudgetError, match="which the teacher was not asked about"):
        gate.observe({rows[1]: 1.0})
    with pytest.raises(BudgetError, match="step 0 is not finished"):
        opened(gate, step=1)


def test_nothing_is_asked_before_rows_are_selected() -> None:
    gate = QueryGate()
    for call in (lambda: gate.admit([0]), lambda: gate.observe({}), gate.finish):
        with pytest.raises(BudgetError, match=r"Call select\(\) first"):
            call()


def test_a_failed_step_is_charged_with_what_it_asked_and_closed(tmp_path: Path) -> None:
    gate = QueryGate(query_ratio="0.5", selector=LearnedSelector(replay_start=1))
    assert gate.abandon() is None
    rows = opened(gate)
    gate.admit(rows[:2])
    gate.observe({rows[0]: 0.5})
    with pytest.raises(BudgetError, match="while step 0 is not finished"):
        gate.save(tmp_path)
    record = gate.abandon()
    assert record is not None
    assert (record.calls, record.learned, record.is_valid) == (2, False, False)
    assert (gate.ledger.calls, gate.ledger.steps, gate.ledger.learned_steps) == (2, 1, 0)
    gate.save(tmp_path)
    gate.admit(opened(gate, step=1))
    gate.finish()
    assert gate.ledger.calls == 6


def test_prompts_and_responses_of_different_numbers_of_rows_are_refused() -> None:
    gate = QueryGate(query_ratio=1, selector=FullSelector())
    for prompts in ([3], [3, 3, 3]):
        with pytest.raises(ValueError, match=f"has 2 rows, but prompt_tokens {len(prompts)}"):
            gate.select(step=0, response_tokens=[1, 2], prompt_tokens=prompts)


def test_a_ledger_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    about = {"selector": "RandomSelector", "ledger": {"calls": 3}}
    save_file({}, tmp_path / STATE_FILE, metadata={"bas_opd": json.dumps(about)})
    with pytest.raises(CheckpointError, match="lacks totals that this version keeps"):
        QueryGate(selector=RandomSelector()).load(tmp_path)


@pytest.mark.parametrize("kind", ["scored_tokens", "processed_tokens"])
def test_a_budget_in_tokens_is_kept(kind: Any) -> None:
    gate = QueryGate(query_ratio="0.5", budget=kind, selector=RandomSelector())
    for step in range(5):
        gate.admit(opened(gate, step))
        record = gate.finish()
        assert 0 < getattr(record, kind) <= record.budget
        assert record.full_cost is not None
        assert record.budget == record.full_cost // 2
    assert gate.ledger.overrun == 0


def test_bad_settings_fail_at_once() -> None:
    with pytest.raises(ConfigError, match="query ratio is 0"):
        QueryGate(query_ratio=0)
    with pytest.raises(BudgetError, match="is not known"):
        QueryGate(budget="seconds")  # pyright: ignore[reportArgumentType]


def test_log_probs_are_needed_by_policies_that_rank() -> None:
    bare: dict[str, Any] = {"step": 0, "response_tokens": [1, 2], "prompt_tokens": [3, 3]}
    assert QueryGate(query_ratio=1, selector=FullSelector()).select(**bare) == (0, 1)
    with pytest.raises(ValueError, match="Pass logprobs"):
        QueryGate().select(**bare)


def test_a_restored_gate_continues_exactly(tmp_path: Path) -> None:
    def run(gate: QueryGate, steps: range) -> list[Any]:
        records = []
        for step in steps:
            rows = opened(gate, step)
            gate.admit(rows)
            gate.observe({row: row / 10 for row in rows})
            records.append(gate.finish())
        return records

    whole = QueryGate(query_ratio="0.5", selector=LearnedSelector(replay_start=8))
    run(whole, range(3))
    whole.save(tmp_path)
    again = QueryGate(query_ratio="0.5", selector=LearnedSelector(replay_start=8))
    again.load(tmp_path)
    assert again.ledger == whole.ledger
    assert run(again, range(3, 6)) == run(whole, range(3, 6))
    with pytest.raises(CheckpointError, match="saved with LearnedSelector"):
        QueryGate(selector=RandomSelector()).load(tmp_path)
    (tmp_path / STATE_FILE).write_bytes(b"")
    with pytest.raises(CheckpointError, match="is damaged"):
        again.load(tmp_path)


def test_a_policy_without_state_is_saved_too(tmp_path: Path) -> None:
    gate = QueryGate(selector=RandomSelector())
    gate.admit(opened(gate))
    gate.finish()
    gate.save(tmp_path)
    again = QueryGate(selector=RandomSelector())
    again.load(tmp_path)
    assert again.ledger.calls == 2
