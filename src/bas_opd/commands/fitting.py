"""Whether a run fits GPUs of a given memory, and which settings would make it fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from bas_opd.config.schema import Config
from bas_opd.model.activations import Activations, activations
from bas_opd.run.footprint import Memory, measure, precision_of

SPARE = 0.1
"""Share of a GPU that is left for CUDA, NCCL and fragmentation."""
RANK = 64
"""The `lora.rank` that is tried where a run trains all parameters."""
LEAST_TOKENS = 2048
"""The smallest micro-batch that is proposed; one row with its picture takes about as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One choice of the settings that decide memory, and what a GPU then holds."""

    gpus: int
    offload: bool
    checkpointing: bool
    lora_rank: int
    tokens: int
    """Tokens of a micro-batch."""
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
    forms: tuple[Form, ...]
    """The configured one first."""
    advice: tuple[Form, ...] = ()
    """What fits with the fewest changes, if memory was given: on these GPUs, and on one GPU where
    that takes fewer changes. Micro-batches may be smaller than those of `forms`."""

    def holds(self, form: Form) -> bool:
        """Return whether a form fits."""
        return self.room is None or form.device <= (1 - SPARE) * self.room


def fit(config: Config, *, gpus: int, room: int | None = None) -> Fit:
    """Compute what one of so many GPUs holds, in each form of the settings."""
    kept = activations(config.model.path, precision=precision_of(config, is_gpu=True))
    found = Fit(gpus=gpus, room=room, forms=tuple(_forms(config, gpus, kept)))
    if room is None:
        return found
    own, advice = found.forms[0], []
    # One process gathers nothing, so one GPU may do where each of two does not.
    for count in dict.fromkeys((gpus, 1)):
        forms = found.forms if count == gpus else _forms(config, count, kept)
        fitting = [small for form in forms for small in _halved(form) if found.holds(small)]
        best = min(fitting, key=lambda form: _distance(own, form), default=None)
        if best and not (advice and _distance(own, advice[0]) <= _distance(own, best)):
            advice.append(best)
        if own in advice:
            break
    return replace(found, advice=tuple(advice))


def _halved(form: Form) -> Iterator[Form]:
    """Yield a form, and the same with smaller and smaller micro-batches."""
    yield form
    while form.tokens // 2 >= LEAST_TOKENS:
        form = replace(form, tokens=form.tokens // 2, micro_batch=form.micro_batch // 2)
        yield form


def _forms(config: Config, gpus: int, kept: Activations) -> Iterator[Form]:
    tokens = config.optim.tokens_per_micro_batch
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
            gpus=gpus,
            tokens=tokens,
            offload=offload,
            checkpointing=checkpointing,
            lora_rank=rank,
            memory=measure(changed, ranks=ranks, is_gpu=True),
            micro_batch=tokens * (kept.checkpointed if checkpointing else kept.whole),
        )


def _distance(own: Form, other: Form) -> tuple[bool, int, int]:
    """Adapters are another training; smaller micro-batches take time, the switches a little."""
    changed = (own.offload != other.offload) + (own.checkpointing != other.checkpointing)
    return own.lora_rank != other.lora_rank, own.tokens - other.tokens, changed
