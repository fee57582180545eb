"""SFT on the self-teacher: the student learns, on the full image, what the initial model says of
the crop.

    y_i ~ p_0(. | crop, question),  z_i = [y_i is right]
    L = -sum_i z_i sum_t log p(y_t | full image, question, y_<t) / max(1, tokens with z = 1)
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from bas_opd.compute.clock import Clock
from bas_opd.compute.world import World
from bas_opd.learn import Learner, Likelihood
from bas_opd.methods.method import Prompts
from bas_opd.methods.reward import RuleReward
from bas_opd.model.encoding import ViewEncoder
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.model.weights import ShadowWeights, StudentWeights
from bas_opd.rollout import RolloutEngine
from bas_opd.types import Example, GenerationReport, Part, Rollouts, StepReport


@dataclass(slots=True, kw_only=True)
class Sft:
    """Supervised fine-tuning on responses of the initial model that sees the crop."""

    model: VisionLanguageModel
    initial: ShadowWeights
    """The weights before training."""
    engine: RolloutEngine
    """Samples from the crop with whatever weights are in the network."""
    views: ViewEncoder
    """What the student sees."""
    learner: Learner
    clock: Clock
    max_response_tokens: int
    reward: RuleReward | None = None
    """Decides which responses are learned from; None: all of them."""
    tokens_per_chunk: int = 512
    world: World = field(default_factory=World)

    def step(self, prompts: Prompts) -> StepReport:
        """Let the initial model answer from the crop, and learn its right answers."""
        batch = prompts.take().only(self._is_usable)
        self.views.expect(batch.examples)
        with self.clock.phase("teacher"), self.initial.lent():
            self.engine.load_weights(self.model.trainable(), 0)  # which never change
            rollouts = self.engine.generate(batch)
        with self.clock.phase("reward"):
            reward = self.reward
            graded = None if reward is None else reward(rollouts, self.max_response_tokens)
        rows = tuple(
            row
            for row, length in enumerate(rollouts.lengths.tolist())
            if length > 0 and (graded is None or graded.grades[row] == "right")
        )
        with self.clock.phase("student"):
            objective = Likelihood(
                head=self.model.logits,
                tokens=int(rollouts.lengths[list(rows)].sum()),
                chunk=self.tokens_per_chunk,
            )
            seen = self._as_student_sees(rollouts)
            update = self.learner.update(seen, rows, objective)
        return StepReport(
            rollouts=rollouts,
            rows=rows,
            update=update,
            seconds=self.clock.read(),
            waited_seconds=self.clock.read_waited(),
            generation=GenerationReport(
                graded=graded, student_prompts=tuple(each.length for each in seen.prompts)
            ),
        )

    def rollback(self) -> bool:
        """Undo a step that was given up: it changed gradients only."""
        self.learner.zero_grad()
        return True

    def close(self) -> None:
        """Free the engine, and open no further picture."""
        self.views.close()
        self.engine.close()

    def parts(self) -> dict[str, Part]:
        """Return the student, its optimizer state and the initial weights."""
        return {
            "student": StudentWeights(self.model),
            "optimiser": self.learner,
            "teacher": self.initial,
        }

    def _is_usable(self, example: Example) -> bool:
        return example.has_crop and (self.reward is None or self.reward.can_grade(example))

    def _as_student_sees(self, rollouts: Rollouts) -> Rollouts:
        prompts = self.world.each(lambda: tuple(map(self.views, rollouts.examples)))
        return replace(rollouts, prompts=prompts)
