"""TRL's server distillation trainer with a budget: only selected rows are sent to the server.

It is part of `trl.experimental`, which warns at import unless TRL_EXPERIMENTAL_SILENCE=1 is set.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bas_opd.distill.divergence import student_topk
from bas_opd.distill.utility import token_utility
from bas_opd.errors import ConfigError
from bas_opd.integrations.trl import Batch, BudgetedTrainer, loss_mask
from bas_opd.teacher.server_teacher import TopLogprobs

try:
    from trl.experimental.server_distillation import ServerDistillationTrainer
except ImportError as error:
    raise ImportError(
        "bas_opd.integrations.trl_server needs TRL 1.16 or newer. Install it with `pip install "
        "trl`."
    ) from error


class BudgetedServerDistillationTrainer(BudgetedTrainer, ServerDistillationTrainer):
    """`ServerDistillationTrainer` that asks its server about floor(rho |C|) rows of each step.

    Each request is sent once, and one that fails ends the training. With `repeat_requests` TRL's
    client repeats it up to five times, which the ledger does not count.
    """

    def __init__(self, *args: Any, repeat_requests: bool = False, **kwargs: Any) -> None:
        self._answer: dict[str, Tensor] = {}
        super().__init__(*args, **kwargs)
        if not repeat_requests:
            _send_once(self.teacher_client.session)
        if self.gate.learns and self.loss_top_k < 2:
            raise ConfigError(
                f"{type(self.gate.selector).__name__} learns from distributions, but the server "
                "returns one token of each. Set beta=0 and loss_top_k to 2 or more, or select "
                "with RandomSelector or EntropySelector."
            )

    def _get_teacher_token_logprobs_from_server(
        self, inputs: Batch, aligned_prompt_length: int
    ) -> dict[str, Tensor]:
        if self._trains:
            self._admit(len(inputs["input_ids"]))
        answer = super()._get_teacher_token_logprobs_from_server(inputs, aligned_prompt_length)
        self._answer = {**answer, "start": torch.tensor(aligned_prompt_length)}
        return answer

    def _as_token_mean(self, loss: Tensor, batch: Batch) -> Tensor:
        # TRL's is the mean over the tokens of a micro-batch, over the number of micro-batches.
        share = loss_mask(batch).sum() / batch["num_items_in_batch"]
        return loss * share * self.current_gradient_accumulation_steps

    @torch.no_grad()
    def _utility(self, model: Any, batch: Batch, outputs: Any) -> dict[int, float]:
        mask = loss_mask(batch)
        # The answer starts where the shortest prompt ends; what is not scored there is padding.
        start, width = int(self._answer["start"]), self._answer["topk_token_ids"].shape[1]
        placed = torch.cat([torch.zeros_like(batch["prompt_mask"]), mask.long()], dim=1).bool()
        placed = placed[:, start : start + width]
        logits = outputs.logits[:, start - 1 : -1][:, :width][placed].float() / self.temperature
        ids = self._answer["topk_token_ids"][placed]
        teacher = TopLogprobs(ids=ids, known=self._answer["topk_logprobs"][placed], likeliest=ids)
        utility = token_utility(logits, teacher, student_topk(logits, ids.shape[-1]), support=ids)
        return self._per_row(utility, mask)


def _send_once(session: Any) -> None:
    """Replace the adapters with which TRL's client repeats requests."""
    # TRL's client has imported it.
    from requests.adapters import HTTPAdapter  # pyright: ignore[reportMissingModuleSource]

    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter())
