"""The reward by rule: 1 if a response is right, else 0, read by the parsers of evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bas_opd.answers import AnswerKey, answer_key
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.types import Example, Grade, Graded, Rollouts

Judge = Callable[[Sequence[tuple[Example, str]]], Sequence[Grade]]
"""(example, response) of what no rule could read -> grades; unread where it does not decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleReward:
    """Grades responses by the answers of their examples.

    What no rule can read earns nothing and is counted; a judge may decide it.
    """

    model: VisionLanguageModel
    by_last_word: bool = False
    """FineSearch's own rule: the last word is the answer."""
    judge: Judge | None = None
    _keys: dict[str, AnswerKey | None] = field(default_factory=dict, init=False)

    def can_grade(self, example: Example) -> bool:
        """Return whether a rule can grade responses to an example."""
        return self._key(example) is not None

    def __call__(self, rollouts: Rollouts, limit: int) -> Graded:
        """Grade every row; `limit` is the longest response, at which one without an end was cut."""
        texts, grades, unread = [], [], []
        for row, length in enumerate(rollouts.lengths.tolist()):
            tokens = rollouts.tokens[row, :length]
            ends = length > 0 and int(tokens[-1]) in self.model.processor.eos_ids
            key = self._key(rollouts.example_of(row))
            texts.append(self.model.processor.decode(tokens))
            is_cut = length == limit and not ends
            grades.append("wrong" if key is None else key.grade(texts[row], was_cut=is_cut))
            if grades[row] == "unread":
                unread.append(row)
        if self.judge is None or not unread:
            return Graded(grades=tuple(grades))
        verdicts = self.judge([(rollouts.example_of(row), texts[row]) for row in unread])
        for row, verdict in zip(unread, verdicts, strict=True):
            grades[row] = verdict
        return Graded(grades=tuple(grades), judged=tuple(unread))

    def _key(self, example: Example) -> AnswerKey | None:
        if example.id not in self._keys:
            self._keys[example.id] = answer_key(
                example.question, example.answer, by_last_word=self.by_last_word
            )
        return self._keys[example.id]
