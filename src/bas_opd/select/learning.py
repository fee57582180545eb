"""What selectors that learn online have in common: labels, normalised features, exploration."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from decimal import Decimal

import torch
from torch import Tensor

from bas_opd.budget import exploration_quota
from bas_opd.errors import ConfigError
from bas_opd.select.normaliser import RunningNormaliser
from bas_opd.select.policies import explored_selection, finite_scores, uniform_selection
from bas_opd.select.replay import ReplayBuffer
from bas_opd.types import FEATURES, Budget, Candidates, Selection


class LearningSelector(ABC):
    """Ranks rows by a prediction that is updated from the labels of every step.

    Until the first update, rows are drawn as `RandomSelector` draws them with the same seed: the
    selection then has no `scores` and marks nothing as `explored`.
    """

    def __init__(
        self,
        *,
        seed: int,
        exploration: float | str | Decimal,
        momentum: float,
        replay_capacity: int,
        replay_start: int,
        half_life: float,
        coverage: bool = False,
        columns: int = len(FEATURES),
    ) -> None:
        exploration_quota(exploration, 0)  # a bad ratio fails here, not after the warm-up
        if not 1 <= replay_start <= replay_capacity:
            raise ConfigError(
                f"The selector would never learn: it starts at {replay_start} labels and keeps "
                f"{replay_capacity}. Set replay_start to at least 1 and at most replay_capacity."
            )
        self.seed = seed
        self.exploration = exploration
        self.replay_start = replay_start
        self.half_life = half_life
        self.coverage = coverage
        """Whether rows are chosen to cover the prompts, by `cover`, rather than by rank."""
        self.is_trained = False
        """Whether the prediction has been updated, and rows are therefore ranked by it."""
        self.normaliser = RunningNormaliser(momentum, columns=columns)
        self.replay = ReplayBuffer(replay_capacity, columns=columns)

    def select(self, candidates: Candidates, budget: Budget | int, *, step: int) -> Selection:
        """Update the normaliser on C and choose K rows of it (Alg. 1, lines 4-10)."""
        candidates = self._seen(candidates)
        self.normaliser.update(candidates.values)
        if not self.is_trained:
            return uniform_selection(
                candidates,
                budget,
                seed=self.seed,
                step=step,
                coverage=self.coverage,
                prior=self._prior(candidates),
            )
        return explored_selection(
            candidates,
            budget,
            scores=finite_scores(candidates.rows, self.rank_by(candidates.values).tolist()),
            exploration=self.exploration,
            seed=self.seed,
            step=step,
            coverage=self.coverage,
        )

    def learn(self, candidates: Candidates, utility: Mapping[int, float], *, step: int) -> bool:
        """Store the labels and update from replay; True if that happened (Alg. 1, line 14)."""
        stored = self.replay.observe(self._seen(candidates), utility, step=step)
        if stored == 0 or len(self.replay) < self.replay_start:
            return False
        self._update(step)
        self.is_trained = True
        return True

    def predicted_utility(self, candidates: Candidates) -> list[float | None]:
        """Return the predicted utility of each row; None before the first update."""
        if not self.is_trained:
            return [None] * len(candidates)
        predicted = self._in_utility(self.predict(self._seen(candidates).values)).tolist()
        return [value if math.isfinite(value) else None for value in predicted]

    def _seen(self, candidates: Candidates) -> Candidates:
        """Return the candidates with the features that the prediction reads."""
        return candidates

    def _prior(self, candidates: Candidates) -> dict[int, float]:
        """Return the scores that coverage goes by before the first update; none: all the same."""
        return {}

    @abstractmethod
    def predict(self, values: Tensor) -> Tensor:
        """Return what is predicted `[row]` from raw features `[row, feature]`."""

    def rank_by(self, values: Tensor) -> Tensor:
        """Return the score `[row]` that rows are ranked by: the prediction itself."""
        return self.predict(values)

    @abstractmethod
    def _update(self, step: int) -> None:
        """Learn from the labels that are held."""

    def _in_utility(self, predicted: Tensor) -> Tensor:
        """Return a prediction in units of utility."""
        return predicted

    @abstractmethod
    def _learned(self) -> dict[str, Mapping[str, Tensor]]:
        """Return what the prediction consists of, by part; the part "" has plain names."""

    @abstractmethod
    def _load_learned(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Restore what `_learned` returned."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything that must survive, as one flat table of tensors."""
        parts = {
            **self._learned(),
            "normaliser": self.normaliser.state_dict(),
            "replay": self.replay.state_dict(),
        }
        return {"is_trained": torch.tensor(self.is_trained)} | {
            f"{part}.{name}" if part else name: value.detach().clone()
            for part, values in parts.items()
            for name, value in values.items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue exactly where `state_dict` was taken, with the same settings."""
        parts: dict[str, dict[str, Tensor]] = {}
        for key, value in state.items():
            part, dot, name = key.partition(".")
            parts.setdefault(part if dot else "", {})[name if dot else key] = value
        self.is_trained = bool(state["is_trained"])
        self.normaliser.load_state_dict(parts["normaliser"])
        self.replay.load_state_dict(parts["replay"])
        self._load_learned(parts)
