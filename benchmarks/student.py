"""The student's forward and backward over the selected rows against the released way, on a CPU.

    python benchmarks/student.py

The released way runs all rows, each with its own prompt, and masks the loss of unselected ones.
Here it is the same learner without sharing over all rows: masking would spare none of its work.
Rows are selected at random. Required at prompts 15 times as long as responses: at least three times
as fast.
"""

from __future__ import annotations

from collections.abc import Sequence

from _sides import Side, bench, compare, parser, random_rows, rollouts_of

from bas_opd.data.views import crop_view
from bas_opd.distill.loss import DistillSettings
from bas_opd.learn import Distillation, Learner, OptimizerSettings
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.teacher import SelfTeacher
from bas_opd.types import Rollouts, TeacherScores


def update(
    name: str,
    model: VisionLanguageModel,
    rollouts: Rollouts,
    rows: Sequence[int],
    *,
    teacher: TeacherScores,
    micro_batch: int,
    share_prompts: bool = True,
    required_share: float | None = None,
) -> Side:
    """Return the side that accumulates the gradient of `rows`."""
    settings = OptimizerSettings(tokens_per_micro_batch=micro_batch, share_prompts=share_prompts)
    learner = Learner(model, settings)
    objective = Distillation(teacher, model.logits, DistillSettings())

    def run() -> int:
        found = learner.accumulate(rollouts, rows, objective)
        learner.zero_grad()
        return found.processed_tokens

    return Side(name=name, run=run, required_share=required_share)


def main() -> None:
    options = parser(__doc__, prompts=7, side=672, tokens=32)
    options.add_argument("--ratio", type=float, default=0.25, help="of the rows, selected")
    options.add_argument("--micro-batch", type=int, default=4096, help="tokens of a micro-batch")
    options = options.parse_args()
    with bench(options) as setup:
        model, micro_batch = setup.model, options.micro_batch
        rollouts = rollouts_of(setup, per_prompt=options.rollouts, tokens=options.tokens)
        selected, every = random_rows(rollouts, options.ratio), range(len(rollouts))
        scores = SelfTeacher(model, crop_view, tokens_per_batch=micro_batch).score(rollouts, every)
        mean_prompt = sum(prompt.length for prompt in rollouts.prompts) / len(rollouts.prompts)
        compare(
            options,
            update(
                "selected rows, shared (ours)",
                model,
                rollouts,
                selected,
                teacher=scores,
                micro_batch=micro_batch,
            ),
            [
                update(
                    "all rows, own prompts (released)",
                    model,
                    rollouts,
                    every,
                    teacher=scores,
                    micro_batch=micro_batch,
                    share_prompts=False,
                    required_share=1 / 3,
                ),
                update(
                    "all rows, shared",
                    model,
                    rollouts,
                    every,
                    teacher=scores,
                    micro_batch=micro_batch,
                ),
            ],
            shape=f"{len(selected)} of {len(rollouts)} rows on "
            f"{len({rollouts.prompt_of(row) for row in selected})} of {options.prompts} prompts, "
            f"{mean_prompt:.0f} prompt tokens to {options.tokens} of a response in the mean",
        )


if __name__ == "__main__":
    main()
