"""The student's update: forward and backward over S only, one optimiser step (Alg. 1, line 13)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from bas_opd.compute.memory import in_smaller_batches
from bas_opd.distill.loss import DistillSettings, backward_in_chunks
from bas_opd.model.batches import MicroBatch, PromptGroup, group_by_prompt, micro_batches
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.types import Hooks, Rollouts, StudentUpdate, TeacherScores


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimiserSettings:
    """How theta moves."""

    learning_rate: float = 2e-6
    weight_decay: float = 0.01
    gradient_clip: float = 1.0
    warmup_steps: int = 10
    tokens_per_micro_batch: int = 16_384
    share_prompts: bool = True


class Learner:
    """Distils the teacher into the full-image policy on the selected rows.

    Unselected rows have exactly zero gradient, so they are not computed at all. The denominator of
    the loss is that of the whole step: how it is cut into micro-batches changes nothing.
    """

    def __init__(
        self,
        model: VisionLanguageModel,
        *,
        optimiser: OptimiserSettings,
        distill: DistillSettings,
        hooks: Hooks | None = None,
    ) -> None:
        self.model = model
        self.hooks = hooks or Hooks()
        self.tokens_per_micro_batch = optimiser.tokens_per_micro_batch
        self.settings = optimiser
        self.distill = distill
        self.parameters = list(model.trainable().values())
        self.optimiser = torch.optim.AdamW(
            self.parameters,
            lr=optimiser.learning_rate,
            weight_decay=optimiser.weight_decay,
            fused=model.device.type == "cuda",
        )

    def distil(
        self, rollouts: Rollouts, rows: Sequence[int], teacher: TeacherScores | None
    ) -> StudentUpdate:
        """Take one step on L_BAS and return the observed utilities (Alg. 1, lines 12-13)."""
        rate = self._learning_rate(rollouts.step)
        if teacher is None:
            # A zero loss has no graph: weights stay, while the schedule follows the step number.
            return StudentUpdate(
                loss=0.0,
                gradient_norm=0.0,
                learning_rate=rate,
                is_valid=False,
                utility={},
                dropped_labels=0,
                processed_tokens=0,
            )
        loss, utility, processed = self.accumulate(rollouts, rows, teacher)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.gradient_clip)
        is_valid = bool(loss.isfinite()) and bool(norm.isfinite())
        if is_valid:
            for group in self.optimiser.param_groups:
                group["lr"] = rate
            self.optimiser.step()
        self.abandon()
        finite = {row: u for row, u in utility.items() if math.isfinite(u)}
        return StudentUpdate(
            loss=float(loss),
            gradient_norm=float(norm),
            learning_rate=rate,
            is_valid=is_valid,
            utility=finite,
            dropped_labels=len(utility) - len(finite),
            processed_tokens=processed,
        )

    def abandon(self) -> None:
        """Drop gradients, whole or half computed; the weights stay as they are."""
        self.optimiser.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """Return the optimiser's moments by name."""
        return {
            f"{key}.{name}": value
            for name, parameter in self.model.trainable().items()
            for key, value in self.optimiser.state.get(parameter, {}).items()
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on with given moments."""
        moments: dict[int, dict[str, Tensor]] = {}
        places = {name: place for place, name in enumerate(self.model.trainable())}
        for key, value in state.items():
            moment, _, name = key.partition(".")
            moments.setdefault(places[name], {})[moment] = value
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": moments, "param_groups": groups})

    def accumulate(
        self, rollouts: Rollouts, rows: Sequence[int], teacher: TeacherScores
    ) -> tuple[Tensor, dict[int, float], int]:
        """Add the gradient of L_BAS to the parameters; return loss, utilities, tokens processed."""
        groups = group_by_prompt(rows, rollouts)
        result, self.tokens_per_micro_batch = in_smaller_batches(
            lambda limit: self._accumulate(rollouts, groups, teacher, limit),
            limit=self.tokens_per_micro_batch,
            smallest=max(group.tokens_of_a_row for group in groups),
            what="student pass",
            notice=self.hooks.notice,
        )
        return result

    def _accumulate(
        self,
        rollouts: Rollouts,
        groups: Sequence[PromptGroup],
        teacher: TeacherScores,
        tokens: int,
    ) -> tuple[Tensor, dict[int, float], int]:
        self.abandon()
        scores = dict(zip(teacher.rows, teacher.hidden, strict=True))
        share = self.settings.share_prompts
        loss = torch.zeros((), device=self.model.device)
        utility: dict[int, float] = {}
        processed = 0
        with self._training_mode():
            for batch in micro_batches(groups, tokens, share_prompts=share):
                self.hooks.poll()
                part, per_token = self._backward(batch, rollouts, scores, teacher)
                loss += part
                lengths = [int(rollouts.lengths[row]) for row in batch.rows]
                means = torch.stack([tokens.mean() for tokens in per_token.split(lengths)])
                utility.update(zip(batch.rows, means.tolist(), strict=True))
                processed += (
                    batch.shared_tokens(rollouts) if share else batch.unshared_tokens(rollouts)
                )
        return loss, utility, processed

    def _backward(
        self,
        batch: MicroBatch,
        rollouts: Rollouts,
        scores: dict[int, Tensor],
        teacher: TeacherScores,
    ) -> tuple[Tensor, Tensor]:
        with self.model.compute():
            hidden = self.model.response_hidden(
                batch.prompts,
                batch.prompt_of,
                batch.responses(rollouts),
                share_prompts=self.settings.share_prompts,
            )
        # Logits, divergence and every backward pass stand outside: autocast would round them.
        return backward_in_chunks(
            hidden,
            torch.cat([scores[row] for row in batch.rows]),
            student_head=self.model.logits,
            teacher_head=teacher.head,
            denominator=teacher.scored_tokens,
            settings=self.distill,
        )

    @contextmanager
    def _training_mode(self) -> Iterator[None]:
        """Switch gradient checkpointing on, which transformers ties to the training mode.

        A shared prompt lives in the cache, which that mode switches off.
        """
        self.model.network.train(not self.settings.share_prompts)
        try:
            yield
        finally:
            self.model.network.eval()

    def _learning_rate(self, step: int) -> float:
        """Return the rate of a step counted from 0: a linear warm-up, then constant."""
        warmup = self.settings.warmup_steps
        return self.settings.learning_rate * min(1.0, (step + 1) / max(1, warmup))
