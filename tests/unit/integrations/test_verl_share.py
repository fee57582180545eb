"""The share of a worker in verl's agent loop; stand-ins take the place of verl and Ray."""

from __future__ import annotations

import asyncio
import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bas_opd.errors import ConfigError


class Loop:
    """verl's worker, which samples one token for each rollout and then asks its teacher."""

    def __init__(self, config: Any) -> None:
        self.distillation_enabled = True
        loss = SimpleNamespace(topk=2, loss_settings=SimpleNamespace(use_topk=True))
        self.teacher_server_manager = SimpleNamespace(distillation_loss_config=loss)
        self.sampled: list[int] = []
        self.asked: list[int] = []

    async def generate_sequences(self, batch: Any) -> Any:
        ask: Any = self._compute_teacher_logprobs

        async def rollout(place: int) -> None:
            self.sampled.append(place)
            output = SimpleNamespace(prompt_ids=[1], response_mask=[1], extra_fields={})
            await ask(output, [1], [place], batch.meta_info["validate"], {"priority": place})

        await asyncio.gather(*(rollout(int(p)) for p in batch.non_tensor_batch["priority"]))

    async def _compute_teacher_logprobs(self, *args: Any) -> None:
        self.asked.append(args[-1]["priority"])


class Batch:
    """A share of a batch: some rollouts of one prompt."""

    def __init__(self, rollouts: int, *, validate: bool = False) -> None:
        self.meta_info = {"global_steps": 1, "validate": validate}
        self.non_tensor_batch = {"priority": np.arange(rollouts)}

    def __len__(self) -> int:
        return len(self.non_tensor_batch["priority"])


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A budgeted worker with a quarter of its rollouts to ask about."""
    name = "verl.experimental.agent_loop.agent_loop"
    agent_loop: Any = ModuleType(name)
    agent_loop.AgentLoopManager, agent_loop.AgentLoopWorker = object, Loop
    for each in ("ray", "verl", "verl.experimental", "verl.experimental.agent_loop"):
        monkeypatch.setitem(sys.modules, each, ModuleType(each))
    monkeypatch.setitem(sys.modules, name, agent_loop)
    monkeypatch.delitem(sys.modules, "bas_opd.integrations.verl", raising=False)
    module = importlib.import_module("bas_opd.integrations.verl")
    del sys.modules[module.__name__]  # Nobody else meets the stand-ins.
    return module.BudgetedAgentLoopWorker({"bas_opd": {"query_ratio": "0.25"}})


def test_a_share_without_a_query_is_refused_before_it_is_sampled(worker: Any) -> None:
    words = r"K is 0 of the 3 rollouts .* bas_opd\.query_ratio to at least 0\.3334, lower actor_"
    with pytest.raises(ConfigError, match=words):
        asyncio.run(worker.generate_sequences(Batch(3)))
    assert worker.sampled == worker.asked == []
    assert worker.query_totals()["steps"] == 0


def test_a_share_with_one_query_asks_it(worker: Any) -> None:
    asyncio.run(worker.generate_sequences(Batch(4)))
    assert len(worker.sampled) == 4
    assert len(worker.asked) == 1 == worker.query_totals()["calls"]


def test_a_validation_needs_no_query(worker: Any) -> None:
    asyncio.run(worker.generate_sequences(Batch(3, validate=True)))
    assert len(worker.sampled) == 3
    assert worker.asked == []
