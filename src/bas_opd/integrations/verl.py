"""verl's agent loop with a teacher that is asked about selected rollouts only.

verl asks its teacher about each rollout as soon as it is sampled. Here a worker waits until all
rollouts of its share of the batch are sampled, selects, and asks about the selected ones. The
response mask of the others is zero, so they have no part in the loss.

Each worker keeps floor(rho |C|) of its own share, so all of them together never exceed the budget
of the step. What the student thinks is known in other processes, so no selector can learn here:
the policy is `random`, or `entropy`, which ranks by mean negative log-likelihood.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from bas_opd.budget import query_budget, smallest_ratio
from bas_opd.errors import ConfigError, DataError
from bas_opd.integrations.gate import QueryGate
from bas_opd.select import EntropySelector, RandomSelector, Selector

try:
    import ray  # pyright: ignore[reportMissingImports]
    from verl.experimental.agent_loop.agent_loop import (  # pyright: ignore[reportMissingImports]
        AgentLoopManager,
        AgentLoopWorker,
    )
except ImportError as error:
    raise ImportError(
        "bas_opd.integrations.verl needs verl 0.9. Install it as its own manual says."
    ) from error


class BudgetedAgentLoopWorker(AgentLoopWorker):
    """An agent-loop worker that asks the teacher about floor(rho |C|) of its rollouts."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.gate = gate_from(config)

    async def generate_sequences(self, batch: Any) -> Any:
        """Sample a share of the batch and let the teacher score the selected rollouts."""
        if batch.meta_info.get("validate", False) or not self.distillation_enabled:
            return await super().generate_sequences(batch)
        # Rollouts end in any order; their place in the batch makes the choice repeatable.
        places = batch.non_tensor_batch.setdefault("priority", np.arange(len(batch)))
        if len(set(places)) < len(batch):
            raise DataError(
                f"The column `priority` of the batch has {len(set(places))} values for "
                f"{len(batch)} rollouts, but a rollout is known by it. Give each its own value, or "
                "leave the column out."
            )
        check_share(self.gate.query_ratio, len(batch))
        if isinstance(self.gate.selector, RandomSelector):
            self.gate.selector.seed = int(min(places))
        self._sampled: dict[int, Any] = {}
        self._chosen: asyncio.Future[set[int]] = asyncio.get_running_loop().create_future()
        self._share, self._global_step = len(batch), int(batch.meta_info.get("global_steps", 0))
        try:
            output = await super().generate_sequences(batch)
            self.gate.finish()
        finally:
            self.gate.abandon()
            self._chosen.cancel()  # Rollouts of a failed step wait for it.
        return output

    async def _compute_teacher_logprobs(
        self,
        output: Any,
        prompt_ids: list[int],
        response_ids: list[int],
        validate: bool,
        sample_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if validate or not self.distillation_enabled:
            return
        place = int((sample_kwargs or {})["priority"])
        self._sampled[place] = output
        if len(self._sampled) == self._share:
            self._chosen.set_result(self._select())
        if place in await self._chosen:
            self.gate.admit([sorted(self._sampled).index(place)])
            await super()._compute_teacher_logprobs(
                output, prompt_ids, response_ids, validate, sample_kwargs
            )
            return
        loss = self.teacher_server_manager.distillation_loss_config
        shape = len(prompt_ids) + len(response_ids), loss.topk if loss.loss_settings.use_topk else 1
        output.extra_fields["teacher_ids"] = torch.zeros(shape, dtype=torch.int32)
        output.extra_fields["teacher_logprobs"] = torch.zeros(shape)

    def _select(self) -> set[int]:
        """Return the places of the rollouts that the teacher may score."""
        places = sorted(self._sampled)
        outputs = [self._sampled[place] for place in places]
        masks = [torch.tensor(each.response_mask, dtype=torch.bool) for each in outputs]
        measured = None
        if self.gate.reads_features:
            if any(each.response_logprobs is None for each in outputs):
                raise ConfigError(
                    "The entropy policy ranks by the log-probs of the sampler. Set "
                    "actor_rollout_ref.rollout.calculate_log_probs=True."
                )
            measured = pad_sequence(
                [
                    torch.tensor(each.response_logprobs)[mask]
                    for each, mask in zip(outputs, masks, strict=True)
                ],
                batch_first=True,
            )
        rows = self.gate.select(
            step=self._global_step,
            response_tokens=[int(mask.sum()) for mask in masks],
            prompt_tokens=[len(each.prompt_ids) for each in outputs],
            logprobs=measured,
        )
        return {places[row] for row in rows}

    async def _agent_loop_postprocess(self, output: Any, validate: bool, **kwargs: Any) -> Any:
        padded = await super()._agent_loop_postprocess(output, validate, **kwargs)
        asks = self.distillation_enabled and not validate
        if asks and int(kwargs["priority"]) not in await self._chosen:
            padded.response_mask.zero_()
        return padded

    def query_totals(self) -> dict[str, Any]:
        """Return the ledger of this worker."""
        return self.gate.ledger.totals()


class BudgetedAgentLoopManager(AgentLoopManager):
    """Starts budgeted workers; verl finds it by `rollout.agent.agent_loop_manager_class`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.agent_loop_workers_class = ray.remote(BudgetedAgentLoopWorker)
        super().__init__(*args, **kwargs)


def check_share(query_ratio: Any, rollouts: int) -> None:
    """Refuse a ratio that pays for no rollout of a worker's share."""
    if query_budget(query_ratio, rollouts) > 0:
        return
    raise ConfigError(
        f"The query ratio is {query_ratio}, so K is 0 of the {rollouts} rollouts of an agent-loop "
        "worker: it would never ask the teacher, and nothing would be learned. Set "
        f"bas_opd.query_ratio to at least {smallest_ratio(1, rollouts):f}, lower "
        "actor_rollout_ref.rollout.agent.num_workers, or raise data.train_batch_size or "
        "actor_rollout_ref.rollout.n."
    )


def gate_from(config: Any) -> QueryGate:
    """Return the gate that verl's configuration names under `bas_opd`."""
    settings = config.get("bas_opd") or {}
    known: dict[str, type[Selector]] = {"random": RandomSelector, "entropy": EntropySelector}
    policy = settings.get("policy", "random")
    if policy not in known:
        raise ConfigError(f"bas_opd.policy is {policy!r}. In verl it is one of {', '.join(known)}.")
    return QueryGate(query_ratio=str(settings.get("query_ratio", "0.25")), selector=known[policy]())
