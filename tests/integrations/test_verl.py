"""verl's own agent-loop worker with a budget; the models behind it are stand-ins."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed; `make trainers` installs it")

from transformers import AutoTokenizer, Qwen3Config

from bas_opd.errors import ConfigError, DataError
from bas_opd.model.base import small_base

with warnings.catch_warnings():
    # verl imports Ray's state API from where it was.
    warnings.filterwarnings("ignore", "Ray state API", DeprecationWarning)
    from bas_opd.integrations.verl import (
        BudgetedAgentLoopManager,
        BudgetedAgentLoopWorker,
        gate_from,
    )

K = 3
PAGE = Path(__file__).parents[2] / "docs" / "use-in-your-trainer.md"


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


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Ray cluster of this machine."""
    import ray  # pyright: ignore[reportMissingImports]

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def text_model(folder: Path) -> Path:
    """A model as verl's workers read it: without weights."""
    tokenizer: Any = AutoTokenizer.from_pretrained(small_base())
    tokenizer.save_pretrained(folder)
    Qwen3Config(architectures=["Qwen3ForCausalLM"]).save_pretrained(folder)
    return folder


def settings_of_verl(model: Path) -> Any:
    """verl's default settings, those of a distillation run, and what our page adds to them."""
    from hydra import compose, initialize_config_module  # pyright: ignore[reportMissingImports]

    added = PAGE.read_text("utf-8").partition("\n## verl\n")[2].split("```")[1].split()
    assert "trainer.use_v1=False" in added
    rollout, teacher = "actor_rollout_ref.rollout", "distillation.teacher_models.teacher_model"
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose(
            "ppo_trainer",
            [
                f"actor_rollout_ref.model.path={model}",
                f"{rollout}.name=vllm",
                f"{rollout}.agent.num_workers=2",
                f"{rollout}.prompt_length=64",
                f"{rollout}.response_length=8",
                "distillation.enabled=True",
                "distillation.nnodes=1",
                "distillation.n_gpus_per_node=1",
                f"{teacher}.model_path={model}",
                f"{teacher}.num_replicas=1",
                f"{teacher}.inference.tensor_model_parallel_size=1",
                "distillation.distillation_loss.loss_mode=forward_kl_topk",
                f"distillation.distillation_loss.topk={K}",
                *added,
            ],
        )


def stand_ins(calls: Path) -> tuple[Any, dict[str, Any]]:
    """A sampler and a teacher as verl's workers call them; the teacher writes what it is asked."""

    class Sampler:
        async def generate(self, *, priority: int, **_: Any) -> Any:
            from verl.workers.rollout.replica import (  # pyright: ignore[reportMissingImports]
                TokenOutput,
            )

            return TokenOutput(token_ids=[10 + priority] * (1 + priority % 7), num_preempted=0)

    class Teacher:
        async def generate(self, *, prompt_ids: list[int], **_: Any) -> Any:
            with calls.open("a") as file:
                file.write(f"{json.dumps(prompt_ids)}\n")
            rows = len(prompt_ids)
            fields = {"prompt_ids": [[7] * K] * rows, "prompt_logprobs": [[-1.0] * K] * rows}
            return SimpleNamespace(extra_fields=fields)

    return Sampler(), {"default": Teacher()}


@pytest.mark.usefixtures("cluster")
def test_verls_settings_start_workers_on_ray_that_keep_the_budget(tmp_path: Path) -> None:
    from verl import DataProto  # pyright: ignore[reportMissingImports]
    from verl.utils.import_utils import load_class_from_fqn  # pyright: ignore[reportMissingImports]

    config = settings_of_verl(text_model(tmp_path / "model"))
    named = load_class_from_fqn(config.actor_rollout_ref.rollout.agent.agent_loop_manager_class)
    prompts = np.empty(16, dtype=object)
    prompts[:] = [[{"role": "user", "content": f"What is {row // 2}?"}] for row in range(16)]

    async def step(*clients: Any) -> tuple[Any, Any]:
        manager = await named.create(config, *clients)
        batch = DataProto(
            non_tensor_batch={"raw_prompt": prompts},
            meta_info={"global_steps": 1, "validate": False},
        )
        output = await manager.generate_sequences(batch)
        return output, [await each.query_totals.remote() for each in manager.agent_loop_workers]

    output, totals = asyncio.run(step(*stand_ins(tmp_path / "calls")))
    asked = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
    rows = sorted(sequence[-1] - 10 for sequence in asked)
    # A quarter of the eight rollouts of each worker.
    assert [sum(row // 8 == worker for row in rows) for worker in (0, 1)] == [2, 2]
    assert output.batch["response_mask"].sum(1).nonzero()[:, 0].tolist() == rows
    assert [(each["calls"], each["overrun"]) for each in totals] == [(2, 0), (2, 0)]
