"""Sampling, its prefill and one step of its decoding, each beside transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bas_opd.bench.floor import floor
from bas_opd.bench.generate import generate, inputs_of
from bas_opd.bench.plain import as_in_transformers, plain_cache
from bas_opd.bench.sides import Comparison, Side, compare
from bas_opd.bench.subject import Subject
from bas_opd.compute.compiling import is_fast
from bas_opd.data.views import full_view
from bas_opd.model.vlm import Prefix, VisionLanguageModel
from bas_opd.rollout import Sampler, SamplingSettings
from bas_opd.rollout.decoding import Decoder, suppressed
from bas_opd.rollout.race import Race
from bas_opd.types import Prompt, PromptBatch


def sampling(subject: Subject, *, repeats: int) -> Comparison:
    """Our sampler beside `generate` of transformers, called in both ways a user would."""
    model, size = subject.model, subject.size
    ours, growing = _sampler(subject), _sampler(subject)
    growing.use_graphs = False
    side = (size.side, size.side)
    longest = max(model.processor.prompt_length(side, e.question) for e in subject.examples)
    without = Side(name="ours without a CUDA graph", run=lambda: _sample(growing, subject))
    return compare(
        "sampling",
        [
            Side(name="one prefill a prompt (ours)", run=lambda: _sample(ours, subject)),
            *([] if model.device.type == "cpu" else [without]),
            Side(
                name="generate, one prompt a row",
                run=lambda: generate(subject, rows_of_each=size.per_prompt, sequences=1),
                required_share=1 / 2,
            ),
            Side(
                name=f"generate, num_return_sequences={size.per_prompt}",
                run=lambda: generate(subject, rows_of_each=1, sequences=size.per_prompt),
                required_share=1 / 2,
            ),
        ],
        shape=f"{size.prompts} prompts of up to {longest:,} tokens, {size.per_prompt} rollouts "
        f"each, {size.tokens} tokens a response",
        device=model.device,
        repeats=repeats,
    )


def prefilling(subject: Subject, *, repeats: int) -> Comparison:
    """Pictures and prompts encoded once beside transformers' forward pass."""
    model, each = subject.model, subject.size.per_prompt
    prompts = subject.prompts()
    repeated = [prompt for prompt in prompts for _ in range(each)]
    longest = max(prompt.length for prompt in prompts)
    return compare(
        "prefill",
        [
            Side(name="one prefill a prompt (ours)", run=lambda: _prefill(model, prompts)),
            Side(name="transformers, each prompt once", run=lambda: _forward(model, prompts)),
            Side(name="transformers, one prompt a row", run=lambda: _forward(model, repeated)),
            floor(model, lambda: _prefill(model, prompts)),
        ],
        shape=f"{len(prompts)} prompts of up to {longest:,} tokens, {each} rows each",
        device=model.device,
        repeats=repeats,
    )


def decoding(subject: Subject, *, repeats: int) -> Comparison:
    """One token more for every row beside transformers' forward pass with its cache."""
    model, steps, each = subject.model, subject.size.tokens, subject.size.per_prompt
    prefix = _prefix(model, subject.prompts())
    rows = each * len(prefix.last_hidden)
    # With a graph the state behind the last token is computed too, as transformers does.
    limit = steps if is_fast(model.device) else steps + 1
    race = Race(limit=limit, temperature=1.0, top_p=1.0, suppressed=suppressed(model))
    race.make_room(rows)
    decoder = Decoder(model, race, limit=limit)
    return compare(
        "decoding",
        [
            Side(
                name="one step (ours)",
                run=lambda: _decode(decoder, _rows(prefix, 1), each),
                steps=steps,
            ),
            Side(
                name="transformers, with its cache",
                run=lambda: _continue(model, prefix, each, steps),
                steps=steps,
            ),
            floor(model, lambda: _step(model, _rows(prefix, each))),
        ],
        shape=f"one token for each of {rows} rows, the mean of {steps} steps",
        device=model.device,
        repeats=repeats,
    )


def _sampler(subject: Subject) -> Sampler:
    size = subject.size
    settings = SamplingSettings(per_prompt=size.per_prompt, max_response_tokens=size.tokens)
    return Sampler(subject.model, full_view, settings)


def _sample(sampler: Sampler, subject: Subject) -> int:
    tokens = subject.size.tokens
    rollouts = sampler.generate(PromptBatch(step=0, examples=subject.examples))
    if not bool((rollouts.lengths == tokens).all()):
        raise RuntimeError("A response ended before the limit, though no end token is allowed.")
    return sum(prompt.length for prompt in rollouts.prompts) + len(rollouts) * (tokens - 1)


@torch.no_grad()
def _prefix(model: VisionLanguageModel, prompts: Sequence[Prompt]) -> Prefix:
    with model.compute():
        return model.prefill(prompts)


@torch.no_grad()
def _prefill(model: VisionLanguageModel, prompts: Sequence[Prompt]) -> int:
    model.logits(_prefix(model, prompts).last_hidden)
    return sum(prompt.length for prompt in prompts)


@torch.no_grad()
def _forward(model: VisionLanguageModel, prompts: Sequence[Prompt]) -> int:
    network: Any = model.network
    with model.compute(), as_in_transformers(network):
        network(**inputs_of(model, prompts), use_cache=True, logits_to_keep=1)
    return sum(prompt.length for prompt in prompts)


def _rows(prefix: Prefix, each: int) -> Prefix:
    """Return a copy of a prefix, as decoding uses it up."""
    own = torch.arange(len(prefix.last_hidden), device=prefix.last_hidden.device)
    return prefix.rows(own.repeat_interleave(each))


@torch.no_grad()
def _decode(decoder: Decoder, prefix: Prefix, each: int) -> int:
    with decoder.model.compute():
        tokens, _ = decoder(prefix, repeats=each)
    return len(tokens)


@torch.no_grad()
def _step(model: VisionLanguageModel, prefix: Prefix) -> int:
    """Compute one token more for every row, and the logits behind it."""
    rows = len(prefix.last_hidden)
    with model.compute():
        _, longer = model.extend(prefix, torch.zeros_like(prefix.next_position)[:, None])
        model.logits(longer.last_hidden)
    return rows


@torch.no_grad()
def _continue(model: VisionLanguageModel, prefix: Prefix, each: int, steps: int) -> int:
    """Draw with transformers, token after token, and compute the state behind each."""
    network: Any = model.network
    barred, mask = suppressed(model), prefix.shown().repeat_interleave(each, dim=0)
    rows, positions = len(mask), prefix.next_position.repeat_interleave(each)
    with model.compute(), as_in_transformers(network):
        cache = plain_cache(network, prefix.cache, each)
        logits = model.logits(prefix.last_hidden.repeat_interleave(each, dim=0))
        for step in range(steps):
            logits[:, barred] = -torch.inf
            token = logits.float().softmax(-1).multinomial(1)
            mask = torch.cat([mask, mask.new_ones(rows, 1)], dim=1)
            logits = network(
                input_ids=token,
                attention_mask=mask,
                position_ids=(positions + step)[None, :, None].expand(3, -1, 1),
                past_key_values=cache,
                use_cache=True,
            ).logits[:, -1]
    return rows
