"""Graded answers as accuracies: of each kind, over kinds, over questions, over pairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bas_opd.evaluate.runner import Graded

PAIR = "pair"
HALVES = ("-a", "-b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """How many of n were right."""

    n: int
    correct: int

    @property
    def accuracy(self) -> float:
        return self.correct / self.n

    @classmethod
    def of(cls, outcomes: Iterable[bool]) -> Share:
        """Count outcomes."""
        listed = list(outcomes)
        return cls(n=len(listed), correct=sum(listed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """What a model got right."""

    kinds: dict[str, Share]
    """Kind -> single questions, those of pairs too."""
    pairs: Share | None
    """Pairs of which both questions are right; absent where there is no whole pair."""

    @property
    def mean(self) -> float:
        """The unweighted mean over kinds."""
        return fmean(share.accuracy for share in self.kinds.values())

    @property
    def micro(self) -> float:
        """The share of all questions, whatever their kind."""
        shares = self.kinds.values()
        return sum(share.correct for share in shares) / sum(share.n for share in shares)


def accuracy(graded: Sequence[Graded]) -> Accuracy:
    """Count by kind, kinds in alphabetical order."""
    kinds: dict[str, list[bool]] = {}
    for each in graded:
        kinds.setdefault(each.kind, []).append(each.is_correct)
    return Accuracy(
        kinds={kind: Share.of(kinds[kind]) for kind in sorted(kinds)},
        pairs=_pairs(graded),
    )


def _pairs(graded: Sequence[Graded]) -> Share | None:
    """Count pairs: two questions on one scene, whose ids differ in their last letter alone."""
    halves = {each.id: each.is_correct for each in graded if each.kind == PAIR}
    stems = [name.removesuffix(HALVES[0]) for name in halves if name.endswith(HALVES[0])]
    both = [
        halves[stem + HALVES[0]] and halves[stem + HALVES[1]]
        for stem in stems
        if stem + HALVES[1] in halves
    ]
    return Share.of(both) if both else None
