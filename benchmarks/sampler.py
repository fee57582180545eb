"""Our sampler with one prefill a prompt against `generate` of transformers.

    python benchmarks/sampler.py
    python benchmarks/sampler.py --family qwen3_vl --device cuda --prompts 28 --side 160 --tokens 64

`generate` is called in both ways a user would: with every row as a prompt of its own, where it
encodes and prefills the image once a row, and with `num_return_sequences`, where it encodes it once
a prompt but still prefills it once a row. All sides open the same picture files, once a prompt, and
draw the same number of tokens; ours also returns log-probs and entropies. On a GPU, ours decodes by
a CUDA graph, and a further side shows it without. Required: at least twice as fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from _sides import Bench, Side, bench, compare, parser
from torch import Tensor

from bas_opd.data.images import open_image
from bas_opd.data.views import full_view
from bas_opd.rollout import Sampler, SamplingSettings
from bas_opd.types import Prompt, PromptBatch


def generate(bench: Bench, *, rows_of_each: int, sequences: int, tokens: int) -> int:
    """Draw with transformers: each prompt in `rows_of_each` rows, `sequences` returned for each."""
    processor, network = bench.model.processor, bench.model.network
    encoded = [processor.encode(open_image(e.image), e.question) for e in bench.examples]
    prompts = [prompt for prompt in encoded for _ in range(rows_of_each)]
    ids, mask = _left_padded(prompts, processor.pad_id)
    drawing: Any = network
    inputs = {
        "input_ids": ids,
        "attention_mask": mask,
        "mm_token_type_ids": processor.mm_token_type_ids(ids),
        "pixel_values": torch.cat([prompt.pixel_values for prompt in prompts]),
        "image_grid_thw": torch.cat([prompt.grid for prompt in prompts]),
    }
    drawn: Tensor = drawing.generate(
        **{name: value.to(bench.model.device) for name, value in inputs.items()},
        do_sample=True,
        top_k=0,
        num_return_sequences=sequences,
        suppress_tokens=list(processor.suppressed_ids),
        max_new_tokens=tokens,
    )
    rows, total = drawn.shape
    if rows != len(prompts) * sequences or total != ids.shape[1] + tokens:
        raise RuntimeError(f"generate returned {rows} rows of {total} tokens, not what was asked.")
    return (int(mask.sum()) + len(prompts) * (tokens - 1)) * sequences


def sampler_of(bench: Bench, *, per_prompt: int, tokens: int) -> Sampler:
    """Return our sampler, which is the same in every step of a run."""
    settings = SamplingSettings(per_prompt=per_prompt, max_response_tokens=tokens)
    return Sampler(bench.model, full_view, settings)


def sample(sampler: Sampler, bench: Bench, tokens: int) -> int:
    """Draw with our sampler."""
    rollouts = sampler.generate(PromptBatch(step=0, examples=bench.examples))
    if not bool((rollouts.lengths == tokens).all()):
        raise RuntimeError(
            "A response ended before the limit, though its end tokens are ruled out."
        )
    return sum(prompt.length for prompt in rollouts.prompts) + len(rollouts) * (tokens - 1)


def _left_padded(prompts: Sequence[Prompt], pad_id: int) -> tuple[Tensor, Tensor]:
    shape = (len(prompts), max(prompt.length for prompt in prompts))
    ids, mask = torch.full(shape, pad_id), torch.zeros(shape, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, -prompt.length :] = prompt.input_ids
        mask[row, -prompt.length :] = 1
    return ids, mask


def main() -> None:
    options = parser(__doc__, prompts=8, side=768, tokens=32).parse_args()
    n, tokens = options.rollouts, options.tokens
    with bench(options) as setup:
        longest = max(
            setup.model.processor.prompt_length((options.side, options.side), e.question)
            for e in setup.examples
        )
        ours = sampler_of(setup, per_prompt=n, tokens=tokens)
        growing = sampler_of(setup, per_prompt=n, tokens=tokens)
        growing.use_graphs = False
        without = Side(name="ours without a CUDA graph", run=lambda: sample(growing, setup, tokens))
        compare(
            options,
            Side(name="one prefill a prompt (ours)", run=lambda: sample(ours, setup, tokens)),
            [
                *([] if options.device == "cpu" else [without]),
                Side(
                    name="generate, one prompt a row",
                    run=lambda: generate(setup, rows_of_each=n, sequences=1, tokens=tokens),
                    required_share=1 / 2,
                ),
                Side(
                    name="generate, num_return_sequences",
                    run=lambda: generate(setup, rows_of_each=1, sequences=n, tokens=tokens),
                    required_share=1 / 2,
                ),
            ],
            shape=f"{options.prompts} prompts of up to {longest:,} tokens, {n} rollouts each, "
            f"{tokens} tokens a response",
        )


if __name__ == "__main__":
    main()
