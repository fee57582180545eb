"""The cost of a run, computed before it starts.

Steps, K and calls are exact. Tokens assume a mean response length, and memory leaves out what the
passes allocate; only a probe measures those.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch

from bas_opd.budget import query_budget
from bas_opd.commands.fitting import Fit, fit
from bas_opd.commands.named_set import load_data
from bas_opd.config.loading import config_hash, dump
from bas_opd.config.schema import Config, RunConfig
from bas_opd.data.order import PromptStream
from bas_opd.data.records import PreparedSet
from bas_opd.data.views import PromptLength, full_size
from bas_opd.errors import ConfigError, DataError, ModelError, OutOfMemory
from bas_opd.run.footprint import FP32, Memory, check_host, measure, more_room, wants_gpu
from bas_opd.run.forecast import (
    Batches,
    candidate_counts,
    check_lengths,
    check_run,
    has_view,
    never_ranks,
    seldom_asks,
    shown_size,
)
from bas_opd.run.record import total_tokens
from bas_opd.run.served import check_spending
from bas_opd.run.state import build_method, prompt_lengths
from bas_opd.run.stored_answers import answers_bytes, assumed_response
from bas_opd.types import BudgetKind, Example

Lengths = Mapping[str, Sequence[int]]
"""Example -> tokens of the student's prompt and, if the teacher has a view of it, of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Estimated tokens of a run; counts that include prompts are unknown without a model."""

    response: int
    """The assumed length of every response."""
    scored: int
    sampled: int
    teacher: int | None = None
    rescored: int = 0
    """By the student without a gradient: for the old log-probs of several updates, or for the
    tokens at which a served teacher is asked, if its server can."""
    student: int | None = None
    prefilled: int | None = None
    total: int | None = None
    """As a run counts it: `total_tokens` of its ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """Bytes that a run leaves on disk, and the most it takes at any time."""

    checkpoint: int
    kept_checkpoints: int
    model: int
    most: int
    """With a served teacher an estimate: its answers are as long as the responses."""
    answers: int = 0
    """What a served teacher's answers take, if responses have the assumed length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Two real steps; the first includes warm-up, so the second stands for all others."""

    first_seconds: float
    second_seconds: float
    phases: dict[str, float]
    minutes: float
    """Estimate for all steps, without checkpoints."""
    peak_gpu_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that is known about a run in advance."""

    config: dict[str, Any]
    config_hash: str
    method: str
    has_queries: bool
    """Whether the method queries a teacher; without, K and calls are 0."""
    steps: int
    rollouts_per_step: int
    candidates: int
    budget_kind: BudgetKind
    least_budget: int
    most_budget: int
    """K of a step; in tokens, an estimate by the assumed length of responses."""
    calls: int
    tokens: Tokens
    memory: Memory | None
    disk: Disk | None
    unknown: str | None
    """Why the model could not be measured, if it could not."""
    warnings: tuple[str, ...]
    """What does not fit this machine, steps without queries, a policy that ranks nothing, and what
    is an upper estimate."""
    probe: Probe | None
    fit: Fit | None = None
    """The memory of several GPUs, where it was asked for."""


def plan(
    config: Config, *, probe: bool = False, gpus: int | None = None, room: int | None = None
) -> Plan:
    """Compute the cost of a run from its settings, its data and its image headers.

    With `gpus`, also what each of so many GPUs holds, and what fits into `room` bytes.
    """
    data = load_data(config)
    has_pictures = bool(data.pictures)
    if probe and not has_pictures:
        raise DataError(
            f"--probe runs two steps, but the set {config.data.path} has not been drawn yet. Plan "
            "without it, or draw the set first: `bas-opd data make --help`."
        )
    batches = check_run(config, data)
    total = len(batches)
    candidates = candidate_counts(config, batches)
    length, teacher_length, memory, unknown = None, None, None, None
    try:
        memory = measure(config, is_gpu=None if gpus is None else True)
        length, teacher_length = prompt_lengths(config)
    except ModelError as error:
        unknown = str(error)
    lengths = None
    if length and has_pictures:
        lengths = _lengths(config, batches, length, teacher_length or length)
        check_lengths(config, data, length, teacher_length)
        shown = (teacher for _, *views in lengths.values() for teacher in views)
        check_spending(config, data, min(shown, default=0))
    seen = sorted(full for full, *_ in lengths.values()) if lengths else []
    budgets = [_budget(config, batch, lengths) for batch in batches]
    calls = [calls for _, calls in budgets]
    tokens = _tokens(config, batches, calls, lengths)
    return Plan(
        config=dump(config),
        config_hash=config_hash(config),
        method=config.method.name,
        has_queries=config.queries is not None,
        steps=total,
        rollouts_per_step=config.rollout.per_prompt * config.rollout.prompts_per_step,
        candidates=sum(candidates),
        budget_kind=config.queries.budget if config.queries else "calls",
        least_budget=min(limit for limit, _ in budgets),
        most_budget=max(limit for limit, _ in budgets),
        calls=sum(calls),
        tokens=tokens,
        memory=memory,
        disk=disk(config, memory, total, sum(calls)) if memory else None,
        unknown=unknown,
        warnings=(
            *_warnings(config, batches, lengths),
            *_undrawn(config, data),
            *_served_cost(config, tokens),
            *(_room_warnings(config, memory) if memory and gpus is None else ()),
        ),
        probe=_probe(config, data, total) if probe else None,
        fit=None if gpus is None else fit(config, gpus=gpus, room=room, lengths=seen),
    )


def disk(config: Config, memory: Memory, steps: int, calls: int | None = None) -> Disk:
    """Return the disk space of checkpoints, model and a served teacher's answers.

    A new checkpoint is staged beside the old. Without `calls`, every row is a candidate.
    """
    if calls is None:
        rows = config.rollout.per_prompt * config.rollout.prompts_per_step
        calls = steps * query_budget(config.queries.query_ratio, rows) if config.queries else 0
    answers = answers_bytes(config, calls)
    checkpoint, kept = memory.host_copy, len(kept_steps(config.run, steps))
    model = FP32 * (memory.trained if config.lora.rank else memory.parameters)
    return Disk(
        checkpoint=checkpoint,
        kept_checkpoints=kept,
        model=model,
        most=(kept + 1) * checkpoint + model + answers,
        answers=answers,
    )


def kept_steps(run: RunConfig, steps: int) -> list[int]:
    """Return the steps whose checkpoints remain when the run ends."""
    written = [*range(run.checkpoint_every, steps, run.checkpoint_every), steps]
    old, new = written[: -run.keep_checkpoints], written[-run.keep_checkpoints :]
    return [step for step in old if run.keep_every and step % run.keep_every == 0] + new


def _lengths(
    config: Config, batches: Batches, length: PromptLength, teacher: PromptLength
) -> Lengths:
    def of(example: Example) -> Iterator[int]:
        yield length(*full_size(example))
        if has_view(config, example):
            yield teacher(*shown_size(config, example))

    return {e.id: list(of(e)) for e in {e.id: e for batch in batches for e in batch}.values()}


def _budget(config: Config, batch: Sequence[Example], lengths: Lengths | None) -> tuple[int, int]:
    """Return K of a step in the unit of the budget, and how many calls it pays for.

    In tokens both are estimates: every response has the assumed length, and every prompt the mean.
    """
    select = config.queries
    if select is None:
        return 0, 0
    rows, ratio = candidate_counts(config, [batch])[0], select.query_ratio
    response = assumed_response(config)
    if select.budget == "calls":
        return query_budget(ratio, rows), query_budget(ratio, rows)
    if select.budget == "scored_tokens" or lengths is None:
        limit = query_budget(ratio, rows * response)
        return limit, limit // response
    prompts = [lengths[e.id][1] for e in batch if has_view(config, e)]
    limit = query_budget(ratio, sum(prompts) + rows * (response - 1))
    if not prompts:
        return limit, 0
    # Prompts are opened as long as the budget lasts, then their further rows fill what is left.
    first, further = sum(prompts) / len(prompts) + response - 1, max(1, response - 1)
    opened = min(len(prompts), int(limit / first))
    most = config.rollout.per_prompt * opened
    return limit, min(most, opened + int((limit - opened * first) / further))


def _touched(config: Config, rows: int, calls: int) -> float:
    """Return the expected share of prompts with a selected row, if rows are drawn at random."""
    others = max(0, rows - config.rollout.per_prompt)
    return 1 - math.comb(others, calls) / math.comb(rows, calls)


def _warnings(config: Config, batches: Batches, lengths: Lengths | None) -> Iterator[str]:
    teacher_length = (lambda e: lengths[e.id][1]) if lengths else None
    if notice := seldom_asks(config, batches, teacher_length):
        yield notice
    if notice := never_ranks(config, batches):
        yield notice
    if config.method.name in ("sft", "grpo", "dapo"):
        yield (
            "Tokens are an upper estimate of each round: rows that are not learned from cost the "
            "student nothing."
        )
    if config.method.name == "dapo" and config.dapo.rounds > 1:
        yield (
            f"A step of dapo samples up to {config.dapo.rounds} rounds, and so up to "
            f"{config.dapo.rounds} times the rollouts and sampled tokens."
        )


def _served_cost(config: Config, tokens: Tokens) -> Iterator[str]:
    """Say what the requests to a served teacher will cost, where they have a price."""
    price, limit = config.teacher.price_per_million_tokens, config.teacher.spend_limit
    if price is None or limit is None or tokens.teacher is None:
        return
    cost = tokens.teacher * price / 1_000_000
    fits = "within" if cost <= limit else "above"
    yield (
        f"The teacher's requests will cost about {cost:.2f} without retries, {fits} the limit of "
        f"{limit} (teacher.spend_limit)."
        + ("" if cost <= limit else " The run will stop with a checkpoint when it is reached.")
    )


def _undrawn(config: Config, data: PreparedSet) -> Iterator[str]:
    if not data.pictures:
        yield (
            f"The tokens of prompts are not known before the set {config.data.path} is drawn, "
            "which `bas-opd train` does."
        )


def _room_warnings(config: Config, memory: Memory) -> Iterator[str]:
    """Say where the state of a run exceeds the memory of this machine, and which setting helps."""
    try:
        check_host(memory)
    except OutOfMemory as error:
        yield str(error)
    room = _gpu_memory(config)
    if room is None or memory.device <= room:
        return
    text = (
        f"The state of the run takes {memory.device / 1e9:,.1f} GB, without activations, but the "
        f"GPU has {room / 1e9:,.1f} GB. "
    )
    offloaded = memory.on_device(offload=True)
    if memory.is_offloaded or offloaded > room:
        advice = more_room(config, [])
        yield f"{text}{advice[0].upper()}{advice[1:]}."
        return
    yield text + (
        f"Set optim.offload=true: {offloaded / 1e9:,.1f} GB on the GPU and "
        f"{memory.on_host(offload=True) / 1e9:,.1f} GB in host memory."
    )


def _gpu_memory(config: Config) -> int | None:
    """Return the bytes of the GPU that the run would use, if this machine has it."""
    if not (wants_gpu(config) and torch.cuda.is_available()):
        return None
    name = config.model.device
    device = torch.device("cuda" if name == "auto" else name)
    return torch.cuda.get_device_properties(device).total_memory


def _tokens(
    config: Config, batches: Batches, budgets: Sequence[int], lengths: Lengths | None
) -> Tokens:
    if config.queries is None:
        return _tokens_without_queries(config, batches, lengths)
    per_prompt = config.rollout.per_prompt
    response = assumed_response(config)
    scored = response * sum(budgets)
    sampled = response * per_prompt * sum(map(len, batches))
    if lengths is None:
        return Tokens(response=response, scored=scored, sampled=sampled)
    teacher = student = rescored = 0.0
    prefilled = 0
    for batch, budget in zip(batches, budgets, strict=True):
        prefilled += sum(lengths[e.id][0] for e in batch)
        candidates = [lengths[e.id] for e in batch if has_view(config, e)]
        rows = per_prompt * len(candidates)
        read = budget * (response - 1)  # the last token is predicted, never read
        share = _touched(config, rows, budget)
        copies = share if config.optim.share_prompts else per_prompt * budget / max(rows, 1)
        views = sum(view for _, view in candidates)
        if config.teacher.server is None:
            teacher += share * views + read
        else:  # A server computes the prompt of each row, and one token more.
            teacher += budget * (views / max(1, len(candidates)) + response + 1)
            if config.teacher.support != "teacher":  # As far as the server can, which is not known.
                rescored += share * sum(image for image, _ in candidates) + read
        student += copies * sum(image for image, _ in candidates) + read
    total = total_tokens(
        prefilled=prefilled,
        sampled=sampled,
        teacher=round(teacher) + round(rescored),
        student=round(student),
    )
    return Tokens(
        response=response,
        scored=scored,
        sampled=sampled,
        teacher=round(teacher),
        rescored=round(rescored),
        student=round(student),
        prefilled=prefilled,
        total=total,
    )


def _tokens_without_queries(config: Config, batches: Batches, lengths: Lengths | None) -> Tokens:
    """Estimate a method that learns from whole groups or from responses of a teacher.

    Every row counts as learned from, and DAPO as sampling one round; `_warnings` says so.
    """
    response, per_prompt = assumed_response(config), config.rollout.per_prompt
    is_sft = config.method.name == "sft"
    used = [e for batch in batches for e in batch if e.has_crop or not is_sft]
    sampled = response * per_prompt * len(used)
    if lengths is None:
        return Tokens(response=response, scored=0, sampled=sampled)
    copies = 1 if config.optim.share_prompts else per_prompt
    fed = (response - 1) * per_prompt * len(used)
    images = sum(lengths[e.id][0] for e in used)
    has_reference = not is_sft and config.grpo.beta > 0
    rescores = not is_sft and config.grpo.updates_per_step > 1
    prefilled = sum(lengths[e.id][1] for e in used) if is_sft else images
    student = copies * images + fed
    teacher = images + fed if has_reference else 0
    rescored = student if rescores else 0
    total = total_tokens(
        prefilled=prefilled, sampled=sampled, teacher=teacher + rescored, student=student
    )
    return Tokens(
        response=response,
        scored=0,
        sampled=sampled,
        teacher=teacher,
        rescored=rescored,
        student=student,
        prefilled=prefilled,
        total=total,
    )


def _probe(config: Config, data: PreparedSet, total: int) -> Probe:
    """Run the first two steps and discard them; nothing is written."""
    if config.rollout.engine == "vllm":
        raise ConfigError(
            "rollout.engine is vllm, which --probe does not measure. Leave --probe out, or set "
            "rollout.engine=sampler to measure the sampler of this package."
        )
    method = build_method(config)
    device = method.model.device
    prompts = PromptStream(
        data.examples, per_step=config.rollout.prompts_per_step, seed=config.run.seed
    )
    spent: list[float] = []
    phases: dict[str, float] = {}
    with closing(method):
        for step in range(2):
            prompts.begin(step)
            started = time.perf_counter()
            phases = method.step(prompts).seconds
            spent.append(time.perf_counter() - started)
    return Probe(
        first_seconds=spent[0],
        second_seconds=spent[1],
        phases=phases,
        minutes=(spent[0] + spent[1] * (total - 1)) / 60,
        peak_gpu_bytes=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
    )
