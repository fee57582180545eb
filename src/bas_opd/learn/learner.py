"""The student's update: forward and backward over S only, one optimizer step (Alg. 1, line 13)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from bas_opd.compute.eight_bits import moment_bytes
from bas_opd.compute.memory import in_smaller_batches
from bas_opd.compute.world import World
from bas_opd.learn.eight_bit import EightBitAdamW
from bas_opd.learn.objective import Objective, ObjectivePart, PackedRows
from bas_opd.learn.offloaded import OffloadedAdamW
from bas_opd.model.batches import (
    MicroBatch,
    PromptGroup,
    group_by_prompt,
    micro_batches,
    shares,
)
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.types import Hooks, ImportanceReport, Rollouts, StudentUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """How theta moves."""

    learning_rate: float = 2e-6
    weight_decay: float = 0.01
    gradient_clip: float = 1.0
    warmup_steps: int = 10
    decay_until: int | None = None
    tokens_per_micro_batch: int = 16_384
    share_prompts: bool = True
    offload: bool = False
    """Whether the moments are kept in host memory, if they are not packed."""
    moments: Literal["float32", "8bit"] = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What a pass over some rows found."""

    loss: Tensor
    observed: dict[int, float]
    """Row -> what the objective measured on it; not always finite."""
    tokens_of_ranks: tuple[int, ...]
    idle_passes: int | None = None
    """Micro-batches that ranks sat out, together; None of one process."""
    importance: ImportanceReport | None = None

    @property
    def processed_tokens(self) -> int:
        return sum(self.tokens_of_ranks)


class Learner:
    """Trains the full-image policy on given rows with a given objective.

    It owns micro-batches, shared prompts, out-of-memory retries, clipping and the optimizer.
    Other rows have exactly zero gradient, so they are not computed at all. The denominator of the
    loss is that of the whole step: how it is cut into micro-batches, and dealt to the processes of
    a run, changes nothing.
    """

    def __init__(
        self,
        model: VisionLanguageModel,
        settings: OptimizerSettings,
        hooks: Hooks | None = None,
        world: World | None = None,
    ) -> None:
        self.model = model
        self.world = world or World()
        self.settings = settings
        self.hooks = hooks or Hooks()
        self.tokens_per_micro_batch = settings.tokens_per_micro_batch
        self.parameters = list(model.trainable().values())
        kind = OffloadedAdamW if settings.offload else torch.optim.AdamW
        if settings.moments == "8bit":
            kind = partial(EightBitAdamW, first_rows=model.first_rows())
        self.optimizer = kind(
            self.parameters,
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            fused=model.device.type == "cuda",
        )
        if model.fast_head is not None:
            self.optimizer.register_step_post_hook(model.fast_head.forget)

    def update(
        self, rollouts: Rollouts, rows: Sequence[int], objective: Objective
    ) -> StudentUpdate:
        """Take one optimizer step on the objective over `rows` (Alg. 1, lines 12-13)."""
        rate = self._learning_rate(rollouts.step)
        if not rows:
            # A zero loss has no graph: weights stay, while the schedule follows the step number.
            return StudentUpdate(
                loss=0.0,
                gradient_norm=0.0,
                learning_rate=rate,
                is_valid=False,
                observed={},
                dropped=0,
                processed_tokens=0,
            )
        found = self.accumulate(rollouts, rows, objective)
        norm = self._clip()
        # The leader decides, should ranks round differently.
        is_valid = self.world.gather(bool(found.loss.isfinite()) and bool(norm.isfinite()))[0]
        if is_valid:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.hooks.settle()
            self.optimizer.step()
        self.zero_grad()
        finite = {row: value for row, value in found.observed.items() if math.isfinite(value)}
        return StudentUpdate(
            loss=float(found.loss),
            gradient_norm=float(norm),
            learning_rate=rate,
            is_valid=is_valid,
            observed=finite,
            dropped=len(found.observed) - len(finite),
            processed_tokens=found.processed_tokens,
            tokens_of_ranks=found.tokens_of_ranks,
            idle_passes=found.idle_passes,
            importance=found.importance,
        )

    def accumulate(self, rollouts: Rollouts, rows: Sequence[int], objective: Objective) -> Pass:
        """Replace the gradient of the parameters by that of the objective over `rows`."""
        return self._in_micro_batches(rollouts, rows, objective)

    @torch.no_grad()
    def measure(self, rollouts: Rollouts, rows: Sequence[int], objective: Objective) -> Pass:
        """Return what `accumulate` would observe, without a gradient."""
        return self._in_micro_batches(rollouts, rows, objective)

    def zero_grad(self) -> None:
        """Drop gradients, complete or not; the weights stay as they are."""
        self.optimizer.zero_grad(set_to_none=True)
        if self.model.shards is not None:
            self.model.shards.drop_gradients()

    @property
    def is_offloaded(self) -> bool:
        """Whether the moments are in host memory."""
        return isinstance(self.optimizer, OffloadedAdamW)

    @property
    def moment_bytes(self) -> int:
        """Bytes of both moments, whether or not there are any yet."""
        is_8bit = self.settings.moments == "8bit"
        return 2 * sum(moment_bytes(p.shape) if is_8bit else 4 * p.numel() for p in self.parameters)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the optimizer state, by kind and parameter name."""
        return {
            f"{key}.{name}": value
            for name, parameter in self.model.trainable().items()
            for key, value in self.optimizer.state.get(parameter, {}).items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the optimizer state."""
        moments: dict[int, dict[str, Tensor]] = {}
        places = {name: place for place, name in enumerate(self.model.trainable())}
        for key, value in state.items():
            moment, _, name = key.partition(".")
            moments.setdefault(places[name], {})[moment] = value
        if isinstance(self.optimizer, OffloadedAdamW | EightBitAdamW):
            self.optimizer.restore(moments)
            return
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})

    def _in_micro_batches(
        self, rollouts: Rollouts, rows: Sequence[int], objective: Objective
    ) -> Pass:
        groups = group_by_prompt(rows, rollouts)
        found, self.tokens_per_micro_batch = in_smaller_batches(
            lambda limit: self._pass(rollouts, groups, objective, limit),
            limit=self.tokens_per_micro_batch,
            smallest=max(group.tokens_of_a_row for group in groups),
            what="student pass",
            notice=self.hooks.notice,
            advice=self.world.advice,
        )
        return found

    def _pass(
        self,
        rollouts: Rollouts,
        groups: Sequence[PromptGroup],
        objective: Objective,
        tokens: int,
    ) -> Pass:
        """Compute the groups micro-batch by micro-batch, each rank its own at the same time."""
        if torch.is_grad_enabled():
            self.zero_grad()  # A retry after running out of memory starts from nothing.
        share, rank, shards = self.settings.share_prompts, self.world.rank, self.model.shards
        cut = partial(micro_batches, share_prompts=share, part_tokens=self.model.part_tokens)
        dealt = [list(cut(part, tokens)) for part in shares(groups, self.world.size)]
        loss = torch.zeros((), device=self.model.device)
        observed: dict[int, float] = {}
        processed = [0] * self.world.size
        importance: ImportanceReport | None = None
        turns = max(map(len, dealt))
        with self.model.gathered(learns=torch.is_grad_enabled()):
            for turn in range(turns):
                own = dealt[rank][turn : turn + 1]  # none, if others have more
                for number, part in enumerate(
                    self.world.together(partial(self._turn, rollouts, own, objective))
                ):
                    loss += part.loss.to(loss.device)
                    observed |= part.observed
                    processed[number] += part.processed_tokens
                    importance = ImportanceReport.joined((importance, part.importance))
                if shards is not None and torch.is_grad_enabled():
                    shards.sum_gradients()
        return Pass(
            loss=loss,
            observed=observed,
            tokens_of_ranks=tuple(processed),
            idle_passes=None if self.world.size == 1 else sum(turns - len(part) for part in dealt),
            importance=importance,
        )

    def _turn(
        self, rollouts: Rollouts, batches: Sequence[MicroBatch], objective: Objective
    ) -> Pass:
        """Compute one micro-batch, or nothing, while the other ranks do."""
        return self.model.exchanging(
            partial(self._computed, rollouts, batches, objective),
            share_prompts=self.settings.share_prompts,
        )

    def _computed(
        self, rollouts: Rollouts, batches: Sequence[MicroBatch], objective: Objective
    ) -> Pass:
        loss, processed, importance = torch.zeros(()), 0, None
        observed: dict[int, float] = {}
        for batch in batches:
            self.hooks.poll()
            part = self._micro_batch(rollouts, batch, objective)
            # Between ranks it travels over the host.
            loss = part.loss if self.world.size == 1 else part.loss.cpu()
            importance = part.importance
            if part.observed is not None:
                observed.update(zip(batch.rows, part.observed.tolist(), strict=True))
            share = self.settings.share_prompts
            processed = batch.shared_tokens(rollouts) if share else batch.unshared_tokens(rollouts)
        return Pass(
            loss=loss,
            observed=observed,
            tokens_of_ranks=(processed,),
            importance=importance,
        )

    def _micro_batch(
        self, rollouts: Rollouts, batch: MicroBatch, objective: Objective
    ) -> ObjectivePart:
        responses = batch.responses(rollouts)
        with self.model.compute():
            hidden = self.model.response_hidden(
                batch.prompts,
                batch.prompt_of,
                responses,
                share_prompts=self.settings.share_prompts,
            )
        # Logits, divergence and every backward pass stand outside: autocast would round them.
        packed = PackedRows(
            rows=tuple(batch.rows),
            lengths=tuple(len(response) for response in responses),
            tokens=torch.cat(responses),
            sampled=torch.cat([rollouts.logprobs[r, : rollouts.lengths[r]] for r in batch.rows]),
        )
        return objective(hidden, packed)

    def _clip(self) -> Tensor:
        """Limit the gradient norm, and return what it was."""
        limit = self.settings.gradient_clip
        if self.model.shards is None:
            return torch.nn.utils.clip_grad_norm_(self.parameters, limit)
        # The norm of all rows of all ranks.
        norms = [p.grad.norm() for p in self.parameters if p.grad is not None]
        squares = torch.stack(norms).square().sum() if norms else torch.zeros(())
        norm = self.world.sum(squares.to(self.model.device)).sqrt()
        torch.nn.utils.clip_grads_with_norm_(self.parameters, limit, norm)
        return norm

    def _learning_rate(self, step: int) -> float:
        """Return the rate of a step counted from 0: a linear warm-up, then constant or falling."""
        warmup, end = self.settings.warmup_steps, self.settings.decay_until
        rate = self.settings.learning_rate * min(1.0, (step + 1) / max(1, warmup))
        return rate if end is None else rate * min(1.0, max(0, end - step) / (end - warmup))
