"""The student's likeliest tokens on selected rows, by a pass of its own without a gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from PIL.Image import Image
from torch import Tensor

from bas_opd.compute.world import World
from bas_opd.model.batches import PromptGroup
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.serving.scoring import Ids
from bas_opd.teacher.self_teacher import SelfTeacher
from bas_opd.types import Example, Hooks, Rollouts

CHUNK = 512
"""Tokens whose logits are computed at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Likeliest:
    """The ids of the student's k likeliest tokens at each token of some rows."""

    ids: Mapping[int, Ids]  # row -> [token, k], the likeliest first
    processed_tokens: int
    """Prompt and response tokens that the student computed to know them."""


class StudentPass(SelfTeacher):
    """The student itself with its own prompts, which a rollout already has."""

    what = "student pass for the teacher's questions"

    def __init__(
        self,
        model: VisionLanguageModel,
        *,
        k: int,
        tokens_per_batch: int = 16_384,
        hooks: Hooks | None = None,
        world: World | None = None,
    ) -> None:
        hooks = hooks or Hooks()
        # Its passes are no calls of a teacher.
        quiet = Hooks(poll=hooks.poll, notice=hooks.notice)
        super().__init__(
            model,
            _no_view,
            mode="live",
            tokens_per_batch=tokens_per_batch,
            hooks=quiet,
            world=world,
        )
        self.k = k

    @torch.no_grad()
    def likeliest(self, rollouts: Rollouts, rows: Sequence[int]) -> Likeliest:
        """Return the likeliest tokens on `rows`; every process gets those of all."""
        scores = self.score(rollouts, rows)

        def own() -> dict[int, Ids]:
            return {row: self._topk(states) for row, states in scores.hidden.items()}

        with self.model.gathered():
            parts = self.world.together(own)
        ids = {row: found for part in parts for row, found in part.items()}
        return Likeliest(ids=ids, processed_tokens=scores.processed_tokens)

    def _topk(self, hidden: Tensor) -> Ids:
        """Return the likeliest ids `[token, k]`, from logits as the learner computes them."""
        chunks = (self.model.logits(states) for states in hidden.split(CHUNK))
        found = [logits.topk(min(self.k, logits.shape[-1])).indices.int() for logits in chunks]
        return torch.cat(found).cpu().numpy()

    def _open(
        self, rollouts: Rollouts, share: Sequence[PromptGroup], groups: list[PromptGroup]
    ) -> int:
        """Fill `groups` with the student's own prompts."""
        groups.extend(share)
        return max((group.tokens_of_a_row for group in groups), default=0)


def _no_view(example: Example) -> tuple[Image, str]:
    raise AssertionError(f"{example.id} is shown to the student by its rollouts.")
