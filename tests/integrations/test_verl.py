"""verl's own agent-loop worker with a budget; the models behind it are stand-ins."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed, and its pins exclude those of TRL")

from transformers import AutoTokenizer

from bas_opd.errors import ConfigError, DataError
from bas_opd.integrations.verl import BudgetedAgentLoopManager, BudgetedAgentLoopWorker, gate_from
from bas_opd.model.base import small_base

K = 3


class Client:
    """Scores sequences as verl's client of a teacher server does."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    async def generate(self, *, prompt_ids: list[int], **_: Any) -> Any:
        self.asked.append(prompt_ids)
        rows = len(prompt_ids)
        fields = {"prompt_ids": [[7] * K] * rows, "prompt_logprobs": [[-1.0] * K] * rows}
        return SimpleNamespace(extra_fields=fields)


class Worker(BudgetedAgentLoopWorker):
    """The worker without a sampler: its rollouts are made up, and end in any order."""

    def __init__(self, **settings: Any) -> None:
        from verl.experimental.teacher_loop.teacher_manager import (  # pyright: ignore[reportMissingImports]
            AsyncTeacherLLMServerManager,
        )

        self.client = Client()
        manager = object.__new__(AsyncTeacherLLMServerManager)
        manager.teacher_client = {"t": self.client}
        manager.teacher_model_configs = {
            "t": SimpleNamespace(inference=SimpleNamespace(temperature=1.0))
        }
        manager.distillation_loss_config = SimpleNamespace(
            topk=K, loss_settings=SimpleNamespace(use_topk=True)
        )
        self.teacher_server_manager, self.teacher_key = manager, "data_source"
        self.distillation_enabled, self.reward_loop_worker_handles = True, None
        self.tokenizer, self.processor = AutoTokenizer.from_pretrained(small_base()), None
        self.hf_model_type, self.mm_processor_kwargs = None, {}
        self.rollout_config = SimpleNamespace(
            temperature=1.0,
            top_p=1.0,
            top_k=-1,
            calculate_log_probs=True,
            prompt_length=6,
            response_length=8,
            agent=SimpleNamespace(default_agent_loop="made-up"),
            val_kwargs=SimpleNamespace(top_p=1.0, top_k=-1, temperature=0.0),
        )
        self.gate = gate_from({"bas_opd": settings})

    async def _run_agent_loop(self, *args: Any, **kwargs: Any) -> Any:
        from verl.experimental.agent_loop.agent_loop import (  # pyright: ignore[reportMissingImports]
            AgentLoopMetrics,
            AgentLoopOutput,
        )

        place = int(kwargs["priority"])
        await asyncio.sleep(0.001 * (place * 7 % 5))
        tokens = 1 + place % 7
        output = AgentLoopOutput(
            prompt_ids=[1, 2, 3],
            response_ids=[10 + place] * tokens,
            response_mask=[1] * tokens,
            response_logprobs=[-float(place)] * tokens,
            metrics=AgentLoopMetrics(),
        )
        kwargs.pop("agent_name", None)
        return await self._agent_loop_postprocess(output, args[1]["validate"], **kwargs)


def batch(rows: int, *, step: int = 1, validate: bool = False) -> Any:
    from verl import DataProto  # pyright: ignore[reportMissingImports]

    return DataProto(
        non_tensor_batch={
            "raw_prompt": np.array([f"prompt {row}" for row in range(rows)], dtype=object),
            "priority": np.arange(rows),
        },
        meta_info={"global_steps": step, "validate": validate},
    )


def asked(worker: Worker) -> list[int]:
    """Places of the rollouts that reached the teacher."""
    return sorted(sequence[-1] - 10 for sequence in worker.client.asked)


def test_the_teacher_is_asked_about_the_floor_of_the_budget() -> None:
    worker = Worker(query_ratio="0.3")
    for step in range(3):
        worker.client.asked.clear()
        output = asyncio.run(worker.generate_sequences(batch(12, step=step)))
        assert len(worker.client.asked) == 3
        learned = output.batch["response_mask"].sum(1).nonzero()[:, 0].tolist()
        assert learned == asked(worker)
        for row in learned:
            assert output.batch["response_mask"][row].sum() == 1 + row % 7
            assert (output.batch["teacher_logprobs"][row] == -1.0).any()
        assert output.batch["teacher_ids"].shape == (12, 14, K)
    assert (worker.query_totals()["calls"], worker.query_totals()["overrun"]) == (9, 0)


def test_the_choice_does_not_depend_on_which_rollout_ends_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = Worker(query_ratio="0.5"), Worker(query_ratio="0.5")
    asyncio.run(first.generate_sequences(batch(12)))
    wait = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: wait(0.01 - seconds))
    asyncio.run(second.generate_sequences(batch(12)))
    assert asked(first) == asked(second)


def test_the_entropy_policy_asks_about_what_the_sampler_found_unlikely() -> None:
    worker = Worker(query_ratio="0.25", policy="entropy")
    asyncio.run(worker.generate_sequences(batch(12)))
    assert asked(worker) == [9, 10, 11]


def test_a_validation_asks_no_teacher_and_masks_nothing() -> None:
    worker = Worker(query_ratio="0.25")
    output = asyncio.run(worker.generate_sequences(batch(4, validate=True)))
    assert worker.client.asked == []
    assert output.batch["response_mask"].sum(1).tolist() == [1, 2, 3, 4]
    assert worker.query_totals()["steps"] == 0


def test_a_share_without_a_query_is_refused() -> None:
    worker = Worker(query_ratio="0.25")
    with pytest.raises(ConfigError, match=r"K is 0 of the 3 rollouts .* to at least 0\.3334"):
        asyncio.run(worker.generate_sequences(batch(3)))
    asyncio.run(worker.generate_sequences(batch(4)))
    assert len(worker.client.asked) == 1


def test_rollouts_that_share_a_priority_are_refused() -> None:
    worker, shared = Worker(query_ratio="0.5"), batch(4)
    shared.non_tensor_batch["priority"] = np.array([0, 1, 1, 2])
    with pytest.raises(DataError, match="has 3 values for 4 rollouts"):
        asyncio.run(asyncio.wait_for(worker.generate_sequences(shared), timeout=30))
    asyncio.run(worker.generate_sequences(batch(4)))
    assert len(worker.client.asked) == 2


def test_a_failed_step_is_charged_and_the_next_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, answer = Worker(query_ratio="0.5"), Client.generate

    async def fails(client: Client, **given: Any) -> Any:
        await answer(client, **given)
        raise ConnectionError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(Client, "generate", fails)
        with pytest.raises(ConnectionError, match="gone"):
            asyncio.run(worker.generate_sequences(batch(4)))
    failed = len(worker.client.asked)
    assert 1 <= failed == worker.query_totals()["calls"]
    asyncio.run(worker.generate_sequences(batch(4, step=2)))
    assert len(worker.client.asked) == failed + 2 == worker.query_totals()["calls"]


def test_the_manager_starts_budgeted_workers() -> None:
    rollout = SimpleNamespace(rollout=None, model=None)
    manager = BudgetedAgentLoopManager(SimpleNamespace(actor_rollout_ref=rollout), None)
    assert "BudgetedAgentLoopWorker" in repr(manager.agent_loop_workers_class)


def test_a_policy_that_would_have_to_learn_is_refused() -> None:
    with pytest.raises(ConfigError, match="one of random, entropy"):
        gate_from({"bas_opd": {"policy": "learned"}})
