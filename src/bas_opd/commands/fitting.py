"""Whether a run fits GPUs of a given memory, and which settings would make it fit."""

from __future__ import annotations

import importlib.util
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import torch

from bas_opd.budget import query_budget
from bas_opd.config.schema import Config
from bas_opd.model.activations import Activations, Batch, activations
from bas_opd.model.delta import Way, can_have_kernels
from bas_opd.model.size import sizing_config
from bas_opd.rollout.decoding import decoding_bytes
from bas_opd.run.footprint import FP32, Memory, measure, precision_of
from bas_opd.run.ranks import check_groups

SPARE = 0.1
"""Share of a GPU that is left for CUDA, NCCL and fragmentation."""
RANK = 64
"""The `lora.rank` that is tried where a run trains all parameters."""
LEAST_TOKENS = 2048
"""The smallest micro-batch that is proposed."""
LOSS_BYTES = 10
"""Of each logit of a chunk: student and teacher in fp32, the gradient in half precision."""


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
    """Most tokens of a micro-batch, as they are set."""
    memory: Memory
    batch: Batch
    """The micro-batch that is counted: one row alone may have more tokens than are set."""
    micro_batch: int
    """Bytes that it keeps for its backward pass, about."""
    caches: int
    """Bytes that decoding takes, about, for all prompts that are sampled at a time. The sampler can
    sample fewer."""
    engine: int
    """Bytes of another engine while it samples: its weights and its cache."""

    @property
    def sampling(self) -> int:
        """Bytes while it samples, where there is room."""
        return self.memory.while_sampling(offload=self.offload) + self.caches + self.engine

    @property
    def device(self) -> int:
        """Bytes that a GPU must have: in an update, and while another engine samples."""
        learning = self.memory.on_device(offload=self.offload, micro_batch=self.micro_batch)
        return max(learning, self.sampling) if self.engine else learning

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
    linear_attention: Way | None
    """How it is counted; None if the model has none."""
    forms: tuple[Form, ...]
    """The configured one first."""
    advice: tuple[Form, ...] = ()
    """What fits with the fewest changes, if memory was given: on these GPUs, perhaps in one group,
    and on one GPU where that takes fewer changes. Micro-batches may be smaller than in `forms`."""

    def holds(self, form: Form) -> bool:
        """Return whether a form fits."""
        return self.room is None or form.device <= (1 - SPARE) * self.room


def fit(config: Config, *, gpus: int, room: int | None = None, lengths: Sequence[int] = ()) -> Fit:
    """Compute what one of so many GPUs holds, in each form of the settings.

    `lengths` are those of the prompts, shortest first, where they are known; else all are as long
    as a prompt may be.
    """
    check_groups(config, gpus)
    replicas, way = config.shard.replicas, _way(config)
    count = _Counting(
        config=config,
        kept=activations(
            config.model.path,
            precision=precision_of(config, is_gpu=True),
            way=way,
        ),
        lengths=lengths or [config.data.max_prompt_tokens] * config.rollout.prompts_per_step,
    )
    forms = tuple(count.forms(gpus, replicas))
    text = sizing_config(config.model.path).get_text_config()
    layers = getattr(text, "layer_types", None) or ()
    found = Fit(
        gpus=gpus,
        replicas=replicas,
        room=room,
        prompts=_prompts(config, gpus),
        length=count.length,
        linear_attention=way if "linear_attention" in layers else None,
        forms=forms,
    )
    if room is None:
        return found
    own, advice = found.forms[0], []
    # One process gathers nothing, so one GPU may do where each of two does not.
    for number in dict.fromkeys((gpus, 1)):
        forms = found.forms if number == gpus else ()
        if (number, 1) != (gpus, replicas):
            forms = (*forms, *count.forms(number, 1))
        fitting = [small for form in forms for small in count.halved(form) if found.holds(small)]
        best = min(fitting, key=lambda form: _distance(own, form), default=None)
        if best and not (advice and _distance(own, advice[0]) <= _distance(own, best)):
            advice.append(best)
        if own in advice:
            break
    return replace(found, advice=tuple(advice))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counting:
    """Counts what a GPU holds in each form of a run."""

    config: Config
    kept: Activations
    lengths: Sequence[int]
    """Tokens of the prompts, shortest first."""

    @property
    def length(self) -> int:
        """Tokens of the longest prompt."""
        return self.lengths[-1]

    @property
    def row(self) -> int:
        """Tokens of the longest row, which is in a micro-batch whatever the limit on these."""
        return self.length + self.config.rollout.max_response_tokens

    def forms(self, gpus: int, replicas: int) -> Iterator[Form]:
        """Yield the configured form, then all others."""
        config = self.config
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
            (rank, reshard): measure(
                _changed(config, rank, bool(reshard)), ranks=ranks, is_gpu=True
            )
            for rank, reshard in dict.fromkeys(each[:2] for each in chosen)
        }
        for rank, reshard, offload, checkpointing in chosen:
            form = Form(
                gpus=gpus,
                replicas=None if config.shard.replicas == 1 else replicas,
                tokens=0,
                batch=Batch(tokens=0, images=0),
                reshard=reshard,
                offload=offload,
                checkpointing=checkpointing,
                lora_rank=rank,
                memory=replace(sizes[rank, reshard], is_offloaded=offload),
                micro_batch=0,
                caches=self._caches(gpus, sizes[rank, reshard]),
                engine=self._engine(sizes[rank, reshard]),
            )
            yield self._with(form, config.optim.tokens_per_micro_batch)

    def halved(self, form: Form) -> Iterator[Form]:
        """Yield a form, and the same with smaller and smaller micro-batches."""
        yield form
        least = max(LEAST_TOKENS, self.row)
        while form.tokens > least:
            form = self._with(form, max(form.tokens // 2, least))
            yield form

    def _with(self, form: Form, tokens: int) -> Form:
        counted = max(tokens, self.row)
        chunk = self.config.distill.tokens_per_chunk
        kept = partial(
            self.kept.kept,
            checkpointing=form.checkpointing,
            loss=LOSS_BYTES * chunk * self.kept.vocabulary,
        )
        batches = self._batches(counted, sees=form.memory.trains_vision)
        micro_batch, batch = max(
            ((kept(batch), batch) for batch in batches), key=lambda found: found[0]
        )
        if not form.lora_rank:  # Its gradient comes last, and as a whole.
            micro_batch = max(micro_batch, FP32 * self.kept.embedding)
        return replace(form, tokens=tokens, batch=batch, micro_batch=micro_batch)

    def _batches(self, tokens: int, *, sees: bool) -> Iterator[Batch]:
        """Yield micro-batches of which one keeps the most, if all of their prompts are pictures.

        Rows with short responses are many, and each has the cache of its prompt. More rows have
        more caches, longer prompts larger ones.
        """
        rollout, most_rows = self.config.rollout, self._most_rows()
        if not self.config.optim.share_prompts:
            yield Batch(tokens=tokens, images=tokens if sees else 0)
            return
        for prompts in range(1, min(rollout.prompts_per_step, len(self.lengths), most_rows) + 1):
            rows = min(prompts * rollout.per_prompt, most_rows)
            shortest = self.lengths[prompts - 1]
            most = bisect_right(self.lengths, (tokens - rows) // prompts)
            for length in {shortest, self.lengths[max(prompts, most) - 1], self.length}:
                room = tokens - prompts * length
                if room >= prompts:
                    images = prompts * length if sees else 0
                    yield Batch(tokens=tokens, images=images, rows=min(rows, room), prompt=length)

    def _most_rows(self) -> int:
        """Return how many rows a step learns from: K, where a budget counts calls."""
        rollout, queries = self.config.rollout, self.config.queries
        rows = rollout.prompts_per_step * rollout.per_prompt
        if queries is None or queries.budget != "calls":
            return rows
        return max(1, query_budget(queries.query_ratio, rows))

    def _engine(self, size: Memory) -> int:
        rollout = self.config.rollout
        if rollout.engine == "sampler":
            return 0
        each = precision_of(self.config, is_gpu=True).itemsize
        return each * size.parameters + int(rollout.engine_cache_gib * 2**30)

    def _caches(self, gpus: int, size: Memory) -> int:
        config = self.config
        if config.rollout.engine != "sampler":
            return 0
        prompts = _prompts(config, gpus)
        # A second network that samples is in half precision already.
        has_copies = prompts * gpus < config.rollout.prompts_per_step and not config.rollout.overlap
        return decoding_bytes(
            self.kept,
            copies=size.rounded if has_copies else 0,
            prompts=prompts,
            each=config.rollout.per_prompt,
            length=self.length,
            limit=config.rollout.max_response_tokens,
        )


def _way(config: Config) -> Way:
    """Return how GPUs compute linear attention: this machine's, or recent ones if it has none.

    What flash-linear-attention keeps is not counted: it takes the place of our own kernels. No
    kernel is started, since the GPU may be busy.
    """
    if config.model.kernels == "reference":
        return "reference"
    if not torch.cuda.is_available():
        return "triton"
    is_there = importlib.util.find_spec("triton") is not None
    return "triton" if is_there and can_have_kernels(torch.device("cuda")) else "chunked"


def _words(switches: Mapping[str, bool | int]) -> list[str]:
    return [f"{name}={value}".lower() for name, value in switches.items()]


def _prompts(config: Config, gpus: int) -> int:
    """Return how many prompts a GPU would sample at a time."""
    own = -(-config.rollout.prompts_per_step // gpus)
    return min(own, config.rollout.prompts_per_batch or own)


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
