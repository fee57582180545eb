"""The teacher phase over the selected rows against the released way, on a CPU.

    python benchmarks/teacher.py

The released way scores all rows, each with its own crop prompt. Both sides open and encode the crop
of a prompt once, and project every scored token to the vocabulary. Rows are selected at random.
Required: at most 0.30 of the released time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from _sides import Side, bench, compare, parser, random_rows, rollouts_of

from bas_opd.data.images import open_crop
from bas_opd.data.views import crop_view
from bas_opd.model.batches import group_by_prompt, micro_batches
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.teacher import SelfTeacher
from bas_opd.types import Rollouts


@torch.no_grad()
def score_shared(teacher: SelfTeacher, rollouts: Rollouts, rows: Sequence[int]) -> int:
    """Score rows as training does, and project the tokens."""
    scores = teacher.score(rollouts, rows)
    scores.head.logits(torch.cat([scores.hidden[row] for row in scores.rows]))
    return scores.processed_tokens


@torch.no_grad()
def score_apart(model: VisionLanguageModel, rollouts: Rollouts, *, micro_batch: int) -> int:
    """Score all rows, each with its own crop prompt, and project the tokens."""
    crops = [
        group.seen_as(
            model.processor.encode(
                open_crop(rollouts.examples[group.number]), rollouts.examples[group.number].question
            )
        )
        for group in group_by_prompt(range(len(rollouts)), rollouts)
    ]
    processed = 0
    for batch in micro_batches(crops, micro_batch, share_prompts=False):
        model.head(
            model.response_hidden(
                batch.prompts, batch.prompt_of, batch.responses(rollouts), share_prompts=False
            )
        )
        processed += batch.unshared_tokens(rollouts)
    return processed


def main() -> None:
    options = parser(__doc__, prompts=14, side=896, tokens=32)
    options.add_argument("--ratio", type=float, default=0.25, help="of the rows, selected")
    options.add_argument("--micro-batch", type=int, default=4096, help="tokens of a micro-batch")
    options = options.parse_args()
    with bench(options) as setup:
        rollouts = rollouts_of(setup, per_prompt=options.rollouts, tokens=options.tokens)
        selected, every = random_rows(rollouts, options.ratio), range(len(rollouts))
        teacher = SelfTeacher(setup.model, crop_view, tokens_per_batch=options.micro_batch)
        crop = setup.model.processor.prompt_length((options.side // 2,) * 2, "?")
        compare(
            options,
            Side(
                name="selected rows, shared (ours)",
                run=lambda: score_shared(teacher, rollouts, selected),
            ),
            [
                Side(
                    name="all rows, own crops (released)",
                    run=lambda: score_apart(setup.model, rollouts, micro_batch=options.micro_batch),
                    required_share=0.30,
                ),
                Side(
                    name="all rows, shared",
                    run=lambda: score_shared(teacher, rollouts, every),
                ),
            ],
            shape=f"{len(selected)} of {len(rollouts)} rows on "
            f"{len({rollouts.prompt_of(row) for row in selected})} of {options.prompts} prompts, "
            f"crop prompts of about {crop} tokens, responses of {options.tokens} in the mean",
        )


if __name__ == "__main__":
    main()
