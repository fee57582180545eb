"""The reward by rule: 1 if a response is right, else 0, read by the parsers of evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bas_opd.answers import AnswerKey, answer_key
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.types import Example, Grade, Graded, Rollouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A response that no rule can read."""

    question: str
    reference: str
    response: str


Judge = Callable[[Sequence[Unread], Callable[[], None]], Sequence[Grade]]
"""What no rule could read -> grades; unread where the judge does not decide. The second argument
may raise to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleReward:
    """Grades responses by the answers of their examples.

    What no rule can read earns nothing and is counted; a judge may decide it.
    """

    model: VisionLanguageModel
    by_last_word: bool = False
    """FineSearch's own rule: the last word is the answer."""
    judge: Judge | None = None
    poll: Callable[[], None] = lambda: None
    """Called while the judge is asked; it may raise to stop."""
    _keys: dict[str, AnswerKey | None] = field(default_factory=dict, init=False)

    def can_grade(self, example: Example) -> bool:
        """Return whether a rule can grade responses to an example."""
        return self._key(example) is not None

    def __call__(self, rollouts: Rollouts, limit: int) -> Graded:
        """Grade every row; `limit` is the longest response, at which one without an end was cut."""
        grades: list[Grade] = []
        unread: dict[int, Unread] = {}
        for row, length in enumerate(rollouts.lengths.tolist()):
            tokens = rollouts.tokens[row, :length]
            ends = length > 0 and int(tokens[-1]) in self.model.processor.eos_ids
            key = self._key(rollouts.example_of(row))
            text = self.model.processor.decode(tokens)
            is_cut = length == limit and not ends
            grades.append("wrong" if key is None else key.grade(text, was_cut=is_cut))
            if key is not None and grades[row] == "unread":
                question = rollouts.example_of(row).question
                unread[row] = Unread(question=question, reference=key.meaning, response=text)
        if self.judge is None or not unread:
            return Graded(grades=tuple(grades))
        for row, verdict in zip(unread, self.judge(list(unread.values()), self.poll), strict=True):
            grades[row] = verdict
        judged = tuple(row for row in unread if grades[row] != "unread")
        return Graded(grades=tuple(grades), judged=judged)

    def _key(self, example: Example) -> AnswerKey | None:
        if example.id not in self._keys:
            self._keys[example.id] = answer_key(
                example.question, example.answer, by_last_word=self.by_last_word
            )
        return self._keys[example.id]
