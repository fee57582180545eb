"""A method of one's own: an objective, and a step around it. Nothing else has to change."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bas_opd.data.views import full_view
from bas_opd.learn import Learner, ObjectivePart, PackedRows, backward_in_chunks
from bas_opd.methods import Prompts
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.model.weights import StudentWeights
from bas_opd.rollout import Sampler, SamplingSettings
from bas_opd.types import Part, StepReport


@dataclass(frozen=True)
class OwnLikelihood:
    """Minus the mean log-likelihood of the sampled tokens: the policy sharpens."""

    model: VisionLanguageModel
    tokens: int

    def __call__(self, hidden: Tensor, packed: PackedRows) -> ObjectivePart:
        targets = iter(packed.tokens.to(hidden.device).split(64))

        def compute(states: Tensor) -> tuple[Tensor, Tensor]:
            logprobs = self.model.logits(states).log_softmax(-1)
            chosen = logprobs.gather(-1, next(targets)[:, None])[:, 0]
            return -chosen.sum() / self.tokens, chosen

        loss, chosen = backward_in_chunks(hidden, 64, compute)
        return ObjectivePart(loss=loss, observed=packed.row_means(chosen))


class Sharpen:
    """Sample, and train on every response with tokens."""

    def __init__(self, model: VisionLanguageModel, sampling: SamplingSettings, learner: Learner):
        self.model, self.learner = model, learner
        self.sampler = Sampler(model, full_view, sampling)

    def step(self, prompts: Prompts) -> StepReport:
        rollouts = self.sampler.generate(prompts.take())
        rows = tuple(rollouts.lengths.nonzero()[:, 0].tolist())
        objective = OwnLikelihood(self.model, int(rollouts.lengths.sum()))
        update = self.learner.update(rollouts, rows, objective)
        return StepReport(rollouts=rollouts, rows=rows, update=update, seconds={"step": 1.0})

    def rollback(self) -> bool:
        self.learner.zero_grad()
        return True

    def close(self) -> None: ...

    def parts(self) -> dict[str, Part]:
        return {"student": StudentWeights(self.model), "optimiser": self.learner}
