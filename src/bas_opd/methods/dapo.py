"""DAPO: GRPO that draws more prompts in place of those whose rollouts are all right or all wrong.

    r = [right] + penalty(T),  penalty = 0 up to L - c, then (L - c - T) / c

The rest is GRPO's step with other settings: an upper clip of 0.28, no KL, the mean over all tokens
of a mini-batch. Groups are kept by correctness, not by the shaped reward: a penalty alone teaches
nothing about the answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from bas_opd.methods.grpo import Grpo, Sampled, correctness
from bas_opd.methods.method import Prompts
from bas_opd.rewards import mixed_groups, overlong_penalties
from bas_opd.types import Grade, Graded, Rollouts


@dataclass(slots=True, kw_only=True)
class Dapo(Grpo):
    """Decoupled clip and dynamic sampling."""

    rounds: int
    """Most batches of a step."""
    overlong_cache: int

    def sample(self, prompts: Prompts) -> Sampled:
        """Draw batches until enough prompts are mixed; what is then too many is paid for in vain.

        After the last round the step goes on with what is there.
        """
        drawn: list[Rollouts] = []
        grades: list[Graded] = []
        kept: list[int] = []
        while len(drawn) < self.rounds and len(kept) < self.settings.prompts_per_step:
            rollouts, graded = self.draw(prompts.take())
            first = sum(len(each.examples) for each in drawn)
            is_right = [grade == "right" for grade in graded.grades]
            kept += [first + group for group in mixed_groups(is_right, rollouts.per_prompt)]
            drawn.append(rollouts)
            grades.append(graded)
        together = Rollouts.joined(drawn)
        graded = _joined(grades)
        penalties = overlong_penalties(
            together.lengths.tolist(),
            limit=self.settings.max_response_tokens,
            cache=self.overlong_cache,
        )
        return Sampled(
            rollouts=together,
            rounds=tuple(len(each.examples) for each in drawn),
            graded=graded,
            rewards=tuple(
                correctness(grade) + penalty
                for grade, penalty in zip(graded.grades, penalties, strict=True)
            ),
            kept=tuple(kept[: self.settings.prompts_per_step]),
        )


def _joined(rounds: list[Graded]) -> Graded:
    grades: list[Grade] = []
    judged: list[int] = []
    for each in rounds:
        judged += [len(grades) + place for place in each.judged]
        grades += each.grades
    return Graded(grades=tuple(grades), judged=tuple(judged))
