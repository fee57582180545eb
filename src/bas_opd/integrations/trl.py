"""TRL's distillation trainer with a teacher that is asked about selected rows only.

Needs TRL. The trainer samples, computes the loss and updates as TRL's does; the rows that were not
selected are dropped right after sampling.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bas_opd.budget import query_budget, smallest_ratio
from bas_opd.distill.divergence import student_topk
from bas_opd.distill.utility import token_utility
from bas_opd.errors import BudgetError, ConfigError
from bas_opd.integrations.gate import QueryGate
from bas_opd.run.ledger import Ledger
from bas_opd.select import Selector
from bas_opd.types import BudgetKind, FullLogits

try:
    from trl.trainer.distillation_trainer import DistillationTrainer
    from trl.trainer.utils import split_pixel_values_by_grid, unsplit_pixel_values_by_grid
except ImportError as error:
    raise ImportError(
        "bas_opd.integrations.trl needs TRL 1.16 or newer. Install it with `pip install trl`."
    ) from error

TOKENS_AT_ONCE = 1024
"""Tokens whose logits are held at a time."""
VIEWS = tuple(inspect.signature(DistillationTrainer._get_last_hidden_state).parameters)[5:]
"""What TRL passes to a model besides tokens and mask: pixels and what goes with them."""

Batch = dict[str, Any]


class BudgetedTrainer(DistillationTrainer):
    """What is common to local and served teachers: who is asked, and what that taught.

    The arguments are those of the TRL trainer, and three more: `query_ratio` (rho), `selector`
    (default `LearnedSelector()`) and `budget`, what the ratio counts. `utility_k` is the k of
    Eq. 9. `trainer.ledger` has the totals, `trainer.gate.record` the last step.
    """

    def __init__(
        self,
        *args: Any,
        query_ratio: float | str | Decimal = "0.25",
        selector: Selector | None = None,
        budget: BudgetKind = "calls",
        utility_k: int = 100,
        **kwargs: Any,
    ) -> None:
        self.gate = QueryGate(query_ratio=query_ratio, selector=selector, budget=budget)
        self.utility_k = utility_k
        self._rows: list[int] = []
        """Rows of the micro-batch that is computed."""
        self._losses: list[float] = []
        super().__init__(*args, **kwargs)
        if self.accelerator.num_processes > 1:
            raise ConfigError(
                f"The budget counts the rows of one process, but there are "
                f"{self.accelerator.num_processes}. Start the trainer in one process."
            )
        rows = self.args.per_device_train_batch_size * self.args.gradient_accumulation_steps
        if budget == "calls" and query_budget(query_ratio, rows) == 0:
            raise ConfigError(
                f"The query ratio is {query_ratio}, so K is 0 of the {rows} rows of a step: the "
                "teacher would never be asked, and nothing learned. Set query_ratio to at least "
                f"{smallest_ratio(1, rows):f}, or raise per_device_train_batch_size or "
                "gradient_accumulation_steps."
            )

    @property
    def _trains(self) -> bool:
        model: Any = self.model
        return model.training

    @property
    def ledger(self) -> Ledger:
        """Totals over all training steps."""
        return self.gate.ledger

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Train; what a failed step has left is charged and dropped first."""
        self.gate.abandon()
        self._losses, self._buffered_inputs = [], None
        self._step -= self._step % self.args.gradient_accumulation_steps
        return super()._inner_training_loop(*args, **kwargs)

    def _prepare_inputs(self, generation_batch: Any) -> Batch:
        """Sample, select, and keep the selected rows alone, in micro-batches."""
        if not self._trains:
            return super()._prepare_inputs(generation_batch)
        micro = self._step % self.args.gradient_accumulation_steps
        if micro == 0 or self._buffered_inputs is None:
            batch = self._generate_and_score_completions(generation_batch)
            self._buffered_inputs = self._selected(batch)
        return self._buffered_inputs[micro]

    def _selected(self, batch: Batch) -> list[Batch]:
        mask = loss_mask(batch)
        lengths = mask.sum(1).tolist()
        reads = self.gate.reads_features
        measured: Any = self._measured(batch, mask, lengths) if reads else {}
        rows = self.gate.select(
            step=self.state.global_step,
            response_tokens=lengths,
            prompt_tokens=batch["prompt_mask"].sum(1).tolist(),
            texts=[
                tuple(ids[keep].tolist())
                for ids, keep in zip(batch["completion_ids"], mask, strict=True)
            ],
            **measured,
        )
        batch["num_items_in_batch"] = mask[list(rows)].sum()
        size = self.args.per_device_train_batch_size
        parts = [rows[start : start + size] for start in range(0, len(rows), size)]
        split = split_pixel_values_by_grid(batch)
        chosen = [
            {**unsplit_pixel_values_by_grid(rows_of(split, part)), "rows": list(part)}
            for part in parts
        ]
        return chosen + [{"rows": []}] * (self.args.gradient_accumulation_steps - len(chosen))

    @torch.no_grad()
    def _measured(self, batch: Batch, mask: Tensor, lengths: list[int]) -> dict[str, Tensor]:
        """Return log-probs and entropies `[row, token]` of what the student sampled.

        TRL's sampler keeps neither, so the student computes its rollouts once more, without a
        gradient.
        """
        student: Any = self.accelerator.unwrap_model(self.model)
        size, split = self.args.per_device_train_batch_size, split_pixel_values_by_grid(batch)
        logprobs, entropies = [], []
        student.eval()
        for start in range(0, len(lengths), size):
            part = rows_of(split, range(start, min(start + size, len(lengths))))
            with self.compute_loss_context_manager():
                hidden = self._hidden(student, unsplit_pixel_values_by_grid(part))
            keep = loss_mask(part)
            ids = part["completion_ids"][keep].split(TOKENS_AT_ONCE)
            for chosen, logits in zip(ids, self._logits(student, hidden[keep]), strict=True):
                log = logits.log_softmax(-1)
                logprobs.append(log.gather(-1, chosen[:, None])[:, 0])
                entropies.append(-(log.exp() * log).sum(-1))
        student.train()
        return {
            name: pad_sequence(list(torch.cat(values).split(lengths)), batch_first=True)
            for name, values in (("logprobs", logprobs), ("entropies", entropies))
        }

    def _hidden(self, model: Any, batch: Batch) -> Tensor:
        return super()._get_last_hidden_state(
            model,
            torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
            torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
            batch["completion_ids"].shape[1],
            **{name: batch[name] for name in VIEWS if name in batch},
        )

    def _logits(self, model: Any, hidden: Tensor) -> Iterator[Tensor]:
        """Yield the logits of packed hidden states, some tokens at a time."""
        for part in hidden.split(TOKENS_AT_ONCE):
            yield logits_of(model, part) / self.temperature

    def compute_loss(
        self,
        model: Any,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return TRL's loss of the selected rows; without any, a zero that touches no weight."""
        if not self._trains:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        self._rows = inputs["rows"]
        if not self._rows:
            nothing = torch.zeros((), device=self.accelerator.device, requires_grad=True)
            return (nothing, None) if return_outputs else nothing
        batch = {name: value for name, value in inputs.items() if name != "rows"}
        loss, outputs = super().compute_loss(model, batch, True, num_items_in_batch)
        loss = self._as_token_mean(loss, batch)
        if self.gate.learns:
            self.gate.observe(self._utility(model, batch, outputs))
        self._losses.append(float(loss.detach()))
        return (loss, outputs) if return_outputs else loss

    def _as_token_mean(self, loss: Tensor, batch: Batch) -> Tensor:
        """Return the share of a micro-batch in the token mean of the step; TRL's loss is that."""
        return loss

    @abstractmethod
    def _utility(self, model: Any, batch: Batch, outputs: Any) -> dict[int, float]:
        """Return u of the rows of the micro-batch that was computed last (Eq. 9)."""

    def _admit(self, rows: int) -> None:
        """Count the rows that the teacher is about to score."""
        if rows != len(self._rows):
            raise BudgetError(
                f"The teacher would score {rows} rows where {len(self._rows)} were selected. This "
                "version of TRL asks in another way; install the one that bas-opd was tested with."
            )
        self.gate.admit(self._rows)

    def _per_row(self, utility: Tensor, mask: Tensor) -> dict[int, float]:
        """Return the mean of packed values over the tokens of each row."""
        parts = utility.split(mask.sum(1).tolist())
        return {
            row: float(part.mean()) for row, part in zip(self._rows, parts, strict=True)
        }  # S has no row without tokens

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Compute a micro-batch; after the last one of a step, let the selector learn."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self._step % self.args.gradient_accumulation_steps == 0:
            record = self.gate.finish(loss=sum(self._losses))
            self._losses = []
            for name in ("calls", "budget", "scored_tokens"):
                self._metrics["train"][f"queries/{name}"].append(float(getattr(record, name)))
        return loss

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        self.gate.save(output_dir)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self.gate.load(checkpoint)


class BudgetedDistillationTrainer(BudgetedTrainer):
    """`trl.DistillationTrainer` whose local teacher scores floor(rho |C|) rows of each step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._states: dict[str, Tensor] = {}
        """Hidden states of student and teacher, from the loss that was computed last."""
        super().__init__(*args, **kwargs)
        if self.teacher_model is self.model:
            raise ConfigError(
                "The teacher is the student itself and would change with every step. Pass a copy, "
                "such as copy.deepcopy(model), as teacher_model."
            )

    def _get_last_hidden_state(
        self, unwrapped_model: Any, input_ids: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        asks = unwrapped_model is self.accelerator.unwrap_model(self.teacher_model)
        if asks and self._trains:
            self._admit(len(input_ids))
        hidden = super()._get_last_hidden_state(unwrapped_model, input_ids, *args, **kwargs)
        if self._trains:
            self._states["teacher" if asks else "student"] = hidden.detach()
        return hidden

    @torch.no_grad()
    def _utility(self, model: Any, batch: Batch, outputs: Any) -> dict[int, float]:
        mask = loss_mask(batch)
        both = {
            "student": self.accelerator.unwrap_model(self.model),
            "teacher": self.accelerator.unwrap_model(self.teacher_model),
        }
        logits = [self._logits(each, self._states.pop(name)[mask]) for name, each in both.items()]
        parts = [
            token_utility(student, FullLogits(teacher), student_topk(student, self.utility_k))
            for student, teacher in zip(*logits, strict=True)
        ]
        return self._per_row(torch.cat(parts), mask)


def loss_mask(batch: Mapping[str, Any]) -> Tensor:
    """Return which response tokens the student sampled: all but padding and replies of tools."""
    mask = batch["completion_mask"].bool()
    return mask & batch["tool_mask"].bool() if "tool_mask" in batch else mask


def rows_of(batch: Mapping[str, Any], rows: Sequence[int]) -> Batch:
    """Return some rows of a batch; what has no rows is kept as it is."""

    def part(column: Any) -> Any:
        if isinstance(column, Tensor) and column.ndim:
            return column[list(rows)]
        return [column[row] for row in rows] if isinstance(column, list) else column

    return {name: part(column) for name, column in batch.items()}


def logits_of(model: Any, hidden: Tensor) -> Tensor:
    """Return the logits of hidden states in fp32, scaled and capped as the model's own are."""
    config = model.config.get_text_config()
    logits = model.get_output_embeddings()(hidden).float()
    for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"):
        if getattr(config, name, None) is not None:
            logits = logits * getattr(config, name)
            break
    else:
        if (scaling := getattr(config, "logits_scaling", None)) is not None:
            multiplies = config.model_type == "hyperclovax"
            logits = logits * scaling if multiplies else logits / scaling
    if (cap := getattr(config, "final_logit_softcapping", None)) is not None:
        logits = cap * torch.tanh(logits / cap)
    return logits
