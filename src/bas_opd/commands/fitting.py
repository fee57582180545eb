"""Whether a run fits GPUs of a given memory, and which settings would make it fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

from bas_opd.config.schema import Config
from bas_opd.model.activations import Activations, activations
from bas_opd.rollout.decoding import decoding_bytes
from bas_opd.run.footprint import Memory, measure, precision_of
from bas_opd.run.ranks import check_groups

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
    replicas: int | None
    """Into how many groups they are cut; None if the run asks for one."""
    reshard: bool | None
    """Whether the student's passes gather one layer at a time; None if nothing is gathered."""
    offload: bool
    checkpointing: bool
    lora_rank: int
    tokens: int
    """Tokens of a micro-batch."""
    memory: Memory
    micro_batch: int
    """Bytes that a micro-batch keeps for its backward pass, about."""
    caches: int
    """Bytes that decoding takes, about, for all prompts that are sampled at a time; 0 for another
    engine, whose own are not known."""

    @property
    def sampling(self) -> int:
        """Bytes while it samples, where there is room: it can sample fewer prompts at a time."""
        return self.memory.while_sampling(offload=self.offload) + self.caches

    @property
    def device(self) -> int:
        return self.memory.on_device(offload=self.offload, micro_batch=self.micro_batch)

    @property
    def switches(self) -> str:
        """The settings as the command line takes them."""
        return " ".join(_words(self._chosen))

    def changes(self, other: Form) -> list[str]:
        """Return the settings of another form that differ; one without effect in it does not."""
        mine, others = self._chosen, other._chosen
        return _words({n: others[n] for n in mine if mine[n] != others.get(n, mine[n])})

    @property
    def _chosen(self) -> dict[str, bool | int]:
        spread = {"shard.replicas": self.replicas, "shard.reshard": self.reshard}
        return {
            **{name: value for name, value in spread.items() if value is not None},
            "optim.offload": self.offload,
            "model.gradient_checkpointing": self.checkpointing,
            "lora.rank": self.lora_rank,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A run on GPUs: as it is configured, and in the other forms."""

    gpus: int
    replicas: int
    room: int | None
    """Bytes of a GPU, where they were given."""
    prompts: int
    """Prompts that a GPU samples at a time, if it can."""
    length: int
    """Tokens of the longest prompt."""
    forms: tuple[Form, ...]
    """The configured one first."""
    advice: tuple[Form, ...] = ()
    """What fits with the fewest changes, if memory was given: on these GPUs, perhaps in one group,
    and on one GPU where that takes fewer changes. Micro-batches may be smaller than in `forms`."""

    def holds(self, form: Form) -> bool:
        """Return whether a form fits."""
        return self.room is None or form.device <= (1 - SPARE) * self.room


def fit(config: Config, *, gpus: int, room: int | None = None, longest: int | None = None) -> Fit:
    """Compute what one of so many GPUs holds, in each form of the settings.

    `longest` is the length of the longest prompt, where it is known.
    """
    check_groups(config, gpus)
    kept = activations(config.model.path, precision=precision_of(config, is_gpu=True))
    replicas = config.shard.replicas
    length = longest or config.data.max_prompt_tokens
    forms = tuple(_forms(config, gpus, replicas, kept, length))
    found = Fit(
        gpus=gpus,
        replicas=replicas,
        room=room,
        prompts=_prompts(config, gpus),
        length=length,
        forms=forms,
    )
    if room is None:
        return found
    own, advice = found.forms[0], []
    # One process gathers nothing, so one GPU may do where each of two does not.
    for count in dict.fromkeys((gpus, 1)):
        forms = found.forms if count == gpus else ()
        if (count, 1) != (gpus, replicas):
            forms = (*forms, *_forms(config, count, 1, kept, length))
        fitting = [small for form in forms for small in _halved(form) if found.holds(small)]
        best = min(fitting, key=lambda form: _distance(own, form), default=None)
        if best and not (advice and _distance(own, advice[0]) <= _distance(own, best)):
            advice.append(best)
        if own in advice:
            break
    return replace(found, advice=tuple(advice))


def _words(switches: Mapping[str, bool | int]) -> list[str]:
    return [f"{name}={value}".lower() for name, value in switches.items()]


def _halved(form: Form) -> Iterator[Form]:
    """Yield a form, and the same with smaller and smaller micro-batches."""
    yield form
    while form.tokens // 2 >= LEAST_TOKENS:
        form = replace(form, tokens=form.tokens // 2, micro_batch=form.micro_batch // 2)
        yield form


def _prompts(config: Config, gpus: int) -> int:
    """Return how many prompts a GPU would sample at a time."""
    own = -(-config.rollout.prompts_per_step // gpus)
    return min(own, config.rollout.prompts_per_batch or own)


def _forms(
    config: Config, gpus: int, replicas: int, kept: Activations, length: int
) -> Iterator[Form]:
    tokens = config.optim.tokens_per_micro_batch
    caches = 0
    if config.rollout.engine == "sampler":
        caches = decoding_bytes(
            kept,
            prompts=_prompts(config, gpus),
            each=config.rollout.per_prompt,
            length=length,
            limit=config.rollout.max_response_tokens,
        )
    ranks = gpus // replicas if gpus > 1 or config.shard.always else None
    own = (
        config.lora.rank,
        None if ranks is None else config.shard.reshard,
        config.optim.offload,
        config.model.gradient_checkpointing,
    )
    lora_ranks = dict.fromkeys((own[0], own[0] or RANK))
    both = (False, True)
    chosen = {own: None} | dict.fromkeys(
        product(lora_ranks, (None,) if ranks is None else both, both, both)
    )
    sizes = {
        (rank, reshard): measure(_changed(config, rank, bool(reshard)), ranks=ranks, is_gpu=True)
        for rank, reshard in dict.fromkeys(each[:2] for each in chosen)
    }
    for rank, reshard, offload, checkpointing in chosen:
        yield Form(
            gpus=gpus,
            replicas=None if config.shard.replicas == 1 else replicas,
            tokens=tokens,
            reshard=reshard,
            offload=offload,
            checkpointing=checkpointing,
            lora_rank=rank,
            memory=replace(sizes[rank, reshard], is_offloaded=offload),
            micro_batch=tokens * (kept.checkpointed if checkpointing else kept.whole),
            caches=caches,
        )


def _changed(config: Config, rank: int, reshard: bool) -> Config:
    return config.model_copy(
        update={
            "lora": config.lora.model_copy(update={"rank": rank}),
            "shard": config.shard.model_copy(update={"reshard": reshard}),
        }
    )


def _distance(own: Form, other: Form) -> tuple[bool, int, int, bool]:
    """Adapters are another training; smaller micro-batches take time, the switches a little."""
    changed = [change.partition("=")[0] for change in own.changes(other)]
    # Of two switches rather the one that has no exchanges in a pass.
    resharded = "shard.reshard" in changed
    return "lora.rank" in changed, own.tokens - other.tokens, len(changed), resharded
