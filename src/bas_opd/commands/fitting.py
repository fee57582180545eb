"""Whether a run fits GPUs of a given memory, and which settings would make it fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from bas_opd.config.schema import Config
from bas_opd.model.activations import Activations, activations
from bas_opd.run.footprint import Memory, measure, precision_of

SPARE = 0.1
"""Share of a GPU that is left for CUDA, NCCL and fragmentation."""
RANK = 64
"""The `lora.rank` that is tried where a run trains all parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One choice of the settings that decide memory, and what a GPU then holds."""

    offload: bool
    checkpointing: bool
    lora_rank: int
    memory: Memory
    micro_batch: int
    """Bytes that a micro-batch keeps for its backward pass, about."""

    @property
    def device(self) -> int:
        return self.memory.device + self.micro_batch

    @property
    def switches(self) -> str:
        """The settings as the command line takes them."""
        offload, checkpointing = (str(s).lower() for s in (self.offload, self.checkpointing))
        return (
            f"optim.offload={offload} model.gradient_checkpointing={checkpointing} "
            f"lora.rank={self.lora_rank}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A run on GPUs: as it is configured, and in the other forms."""

    gpus: int
    room: int | None
    """Bytes of a GPU, where they were given."""
    tokens: int
    """Tokens of a micro-batch."""
    forms: tuple[Form, ...]
    """The configured one first."""

    def holds(self, form: Form) -> bool:
        """Return whether a form fits."""
        return self.room is None or form.device <= (1 - SPARE) * self.room

    @property
    def advice(self) -> Form | None:
        """The form with the fewest changes that fits."""
        own = self.forms[0]
        fitting = [form for form in self.forms if self.holds(form)]
        return min(fitting, key=lambda form: _distance(own, form), default=None)


def fit(config: Config, *, gpus: int, room: int | None = None) -> Fit:
    """Compute what one of so many GPUs holds, in each form of the settings."""
    kept = activations(config.model.path, precision=precision_of(config, is_gpu=True))
    tokens = config.optim.tokens_per_micro_batch
    return Fit(gpus=gpus, room=room, tokens=tokens, forms=tuple(_forms(config, gpus, kept, tokens)))


def _forms(config: Config, gpus: int, kept: Activations, tokens: int) -> Iterator[Form]:
    ranks = gpus if gpus > 1 or config.shard.always else None
    own = (config.lora.rank, config.optim.offload, config.model.gradient_checkpointing)
    chosen = {own: None} | dict.fromkeys(
        product(dict.fromkeys((own[0], own[0] or RANK)), (False, True), (False, True))
    )
    for rank, offload, checkpointing in chosen:
        changed = config.model_copy(
            update={
                "lora": config.lora.model_copy(update={"rank": rank}),
                "optim": config.optim.model_copy(update={"offload": offload}),
            }
        )
        yield Form(
            offload=offload,
            checkpointing=checkpointing,
            lora_rank=rank,
            memory=measure(changed, ranks=ranks, is_gpu=True),
            micro_batch=tokens * (kept.checkpointed if checkpointing else kept.whole),
        )


def _distance(own: Form, other: Form) -> tuple[bool, int]:
    """Adapters are another training; the other switches change no number."""
    changed = (own.offload != other.offload) + (own.checkpointing != other.checkpointing)
    return own.lora_rank != other.lora_rank, changed
