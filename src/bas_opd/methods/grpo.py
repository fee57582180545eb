"""GRPO: rollouts of one prompt are compared with each other, and the better ones made likelier.

    A_i = (r_i - mean r) / (std r + 1e-6)            over the rollouts of a prompt
    f   = -min(ratio A, clip(ratio, 1 - low, 1 + high) A) + beta k3(p, p_ref)
    L   = mean of f, over rows of their token means, or over all tokens of a mini-batch

ratio = p / p_old, where p_old is the learner's own probability before the first update of the step.
With one update a step the ratio is 1 everywhere: nothing is clipped, and the loss without its KL
term has the value of a mean advantage while its gradient is that of the policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from statistics import fmean

import torch
from torch import Tensor

from bas_opd.compute.clock import Clock
from bas_opd.compute.world import World
from bas_opd.learn import ClippedPolicy, ClipSettings, Learner, Reading, TokenLogprobs
from bas_opd.learn.policy_loss import token_weights
from bas_opd.methods.method import PatientPoll, Prompts
from bas_opd.methods.reward import RuleReward
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.model.weights import StudentWeights
from bas_opd.rewards import Scale, advantages
from bas_opd.rollout import RolloutEngine
from bas_opd.teacher import LocalScores, SelfTeacher
from bas_opd.types import (
    Graded,
    Part,
    PolicyReport,
    PromptBatch,
    Rollouts,
    StepReport,
    StudentUpdate,
    as_one_update,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpoSettings:
    """How a step is taken."""

    prompts_per_step: int
    updates_per_step: int
    max_response_tokens: int
    scale: Scale
    clip: ClipSettings
    logprobs: TokenLogprobs
    """As the sampler draws: its temperature, and the ids it never draws."""
    tokens_per_chunk: int = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What a step learns from."""

    rollouts: Rollouts
    rounds: tuple[int, ...]
    """Prompts of each round."""
    graded: Graded
    rewards: tuple[float, ...]
    kept: tuple[int, ...]
    """Prompts to learn from."""


@dataclass(slots=True, kw_only=True)
class Grpo:
    """Group-relative policy optimisation."""

    model: VisionLanguageModel
    policy: RolloutEngine
    reward: RuleReward
    learner: Learner
    clock: Clock
    settings: GrpoSettings
    poll: PatientPoll
    reference: SelfTeacher | None = None
    """The initial model; None where beta is 0."""
    world: World = field(default_factory=World)

    def step(self, prompts: Prompts) -> StepReport:
        """Sample, grade, compare, and take one update for each mini-batch of prompts."""
        self.poll.waits = False
        sampled = self.sample(prompts)
        rollouts = sampled.rollouts
        found = advantages(sampled.rewards, rollouts.per_prompt, scale=self.settings.scale)
        parts = self._mini_batches(sampled.kept)
        learned = [row for part in parts for row in self._rows(rollouts, part, found)]
        reference, reference_tokens = self._reference_logprobs(rollouts, learned)
        with self.clock.phase("student"):
            old, rescored = self._old_logprobs(rollouts, learned if len(parts) > 1 else [])
            updates: list[tuple[tuple[int, ...], StudentUpdate]] = []
            measured: dict[int, tuple[float, float]] = {}
            for part in parts or [()]:  # without prompts there is still a learning rate on record
                rows = self._rows(rollouts, part, found)
                objective = ClippedPolicy(
                    head=self.model.logits,
                    logprobs=self.settings.logprobs,
                    settings=self.settings.clip,
                    advantages=dict(enumerate(found)),
                    weights=self._weights(rollouts, part),
                    old=old,
                    reference=reference,
                    measured=measured,
                    chunk=self.settings.tokens_per_chunk,
                )
                update = self.learner.update(rollouts, rows, objective)
                self.poll.waits |= update.is_valid  # the step can no longer be given up
                updates.append((rows, update))
            measured = self.world.merged(measured)
        self.poll.waits = False
        update = as_one_update([each for _, each in updates])
        tokens = max(1, int(rollouts.lengths[learned].sum()))
        return StepReport(
            rollouts=rollouts,
            rows=tuple(learned),
            update=update,
            seconds=self.clock.read(),
            waited_seconds=self.clock.read_waited(),
            policy=PolicyReport(
                rounds=sampled.rounds,
                graded=sampled.graded,
                rewards=sampled.rewards,
                advantages=tuple(found),
                kept=sampled.kept,
                updates=tuple(updates),
                reference_rows=len(reference or ()),
                reference_tokens=reference_tokens,
                rescored_tokens=rescored,
                logprob_gap=_gap(rollouts, old, update),
                kl=sum(apart for apart, _ in measured.values()) / tokens if reference else None,
                clip_share=sum(cut for _, cut in measured.values()) / tokens if old else None,
                entropy=_entropy(rollouts),
            ),
        )

    def sample(self, prompts: Prompts) -> Sampled:
        """Draw and grade the rollouts of one batch; every prompt is learned from."""
        rollouts, graded = self.draw(prompts.take())
        return Sampled(
            rollouts=rollouts,
            rounds=(len(rollouts.examples),),
            graded=graded,
            rewards=tuple(map(correctness, graded.grades)),
            kept=tuple(range(len(rollouts.examples))),
        )

    def draw(self, batch: PromptBatch) -> tuple[Rollouts, Graded]:
        """Draw the rollouts of the prompts whose answers a rule can grade, and grade them."""
        with self.clock.phase("rollout"):
            self.policy.load_weights(self.model.trainable(), batch.step)
            rollouts = self.policy.generate(batch.only(self.reward.can_grade))
        with self.clock.phase("reward"):
            return rollouts, self.reward(rollouts, self.settings.max_response_tokens)

    def rollback(self) -> bool:
        """Undo a step that was given up; not possible after its first update."""
        self.learner.zero_grad()
        return not self.poll.waits

    def close(self) -> None:
        """Free the reference, if there is one, and the rollout engine."""
        if self.reference is not None:
            self.reference.close()
        self.policy.close()

    def parts(self) -> dict[str, Part]:
        """Return the student, its optimizer state, and if there are any, reference and rollouts."""
        return {
            "student": StudentWeights(self.model),
            "optimiser": self.learner,
            **(self.reference.parts() if self.reference else {}),
            **self.policy.parts(),
        }

    def _mini_batches(self, kept: Sequence[int]) -> list[Sequence[int]]:
        """Cut the prompts into mini-batches; fewer prompts make fewer of them, not smaller ones."""
        size = ceil(self.settings.prompts_per_step / self.settings.updates_per_step)
        return [kept[at : at + size] for at in range(0, len(kept), size)]

    def _rows(
        self, rollouts: Rollouts, prompts: Sequence[int], found: Sequence[float]
    ) -> tuple[int, ...]:
        """Return the rows of prompts that have a gradient: without KL, those with an advantage."""
        return tuple(
            row
            for row in _rows_of(rollouts, prompts)
            if rollouts.lengths[row] > 0 and (found[row] != 0 or self.settings.clip.beta > 0)
        )

    def _weights(self, rollouts: Rollouts, prompts: Sequence[int]) -> dict[int, float]:
        """Return what a token of each row weighs: the mean is that of the whole mini-batch."""
        rows = _rows_of(rollouts, prompts)
        weights = token_weights(rollouts.lengths[rows], self.settings.clip.aggregate)
        return dict(zip(rows, weights.tolist(), strict=True))

    def _old_logprobs(
        self, rollouts: Rollouts, rows: Sequence[int]
    ) -> tuple[dict[int, Tensor] | None, int]:
        """Measure log p_old by the learner's forward pass, not the sampler's: these differ."""
        if not rows:
            return None, 0
        reading = Reading(
            head=self.model.logits,
            logprobs=self.settings.logprobs,
            found={},
            chunk=self.settings.tokens_per_chunk,
        )
        done = self.learner.measure(rollouts, rows, reading)
        return self.world.merged_tensors(reading.found), done.processed_tokens

    @torch.no_grad()
    def _reference_logprobs(
        self, rollouts: Rollouts, rows: Sequence[int]
    ) -> tuple[dict[int, Tensor] | None, int]:
        if self.reference is None:
            return None, 0
        with self.clock.phase("reference"):
            scores = self.reference.score(rollouts, rows)
            with self.model.gathered():  # A head that is not trained is the student's.
                own = self.world.each(lambda: self._logprobs_of(scores, rollouts))
                found = self.world.merged_tensors(own)
        return found, scores.processed_tokens

    def _logprobs_of(self, scores: LocalScores, rollouts: Rollouts) -> dict[int, Tensor]:
        logprobs, size = self.settings.logprobs, self.settings.tokens_per_chunk
        found = {}
        for row in sorted(scores.hidden):
            tokens = rollouts.tokens[row, : int(rollouts.lengths[row])].split(size)
            chunks = scores.chunks([row], size)
            found[row] = torch.cat(
                [logprobs(each.logits, t) for each, t in zip(chunks, tokens, strict=True)]
            )
        return found


def correctness(grade: str) -> float:
    """Return the reward of a graded response; what was not read earns nothing."""
    return float(grade == "right")


def _rows_of(rollouts: Rollouts, prompts: Sequence[int]) -> list[int]:
    each = rollouts.per_prompt
    return [row for prompt in prompts for row in range(prompt * each, (prompt + 1) * each)]


def _by_row(rollouts: Rollouts, rows: Sequence[int]) -> dict[int, Tensor]:
    return {row: rollouts.logprobs[row, : int(rollouts.lengths[row])] for row in rows}


def _entropy(rollouts: Rollouts) -> float | None:
    """Return the mean entropy of the sampled tokens, where the sampler measured it."""
    if rollouts.entropies is None or not rollouts.mask.any():
        return None
    return float(rollouts.entropies[rollouts.mask].mean())


def _gap(rollouts: Rollouts, old: dict[int, Tensor] | None, update: StudentUpdate) -> float | None:
    """Return the mean over rows of the distance between the learner's and the sampler's log p."""
    if old is None:
        return fmean(update.observed.values()) if update.observed else None
    sampled = _by_row(rollouts, list(old))
    return fmean(float((old[row].cpu() - sampled[row]).abs().mean()) for row in old)
