"""The learned policy: rank by predicted utility, explore a little, learn from every answer."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

import torch
from torch import Tensor

from bas_opd.budget import exploration_quota
from bas_opd.errors import ConfigError
from bas_opd.select.draws import addressed_generator
from bas_opd.select.losses import selector_loss
from bas_opd.select.normaliser import RunningNormaliser
from bas_opd.select.policies import explored_selection, finite_scores, uniform_selection
from bas_opd.select.predictor import UtilityPredictor
from bas_opd.select.replay import ReplayBuffer
from bas_opd.types import Features, Selection


class LearnedSelector:
    """Query the rows of highest predicted utility, with some exploration (Alg. 1, lines 4-10, 14).

    The defaults are those of Table 5. Until the predictor is first updated, rows are drawn as
    `RandomSelector` draws them with the same seed: the selection then has no `scores`
    and marks nothing as `explored`.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        exploration: float | str | Decimal = 0.10,
        momentum: float = 0.99,
        hidden: int = 32,
        learning_rate: float = 1e-3,
        replay_capacity: int = 512,
        replay_start: int = 96,
        replay_batch: int = 256,
        updates_per_step: int = 2,
        half_life: float = 10,
        rank_weight: float = 0.2,
        min_gap: float = 1e-6,
    ) -> None:
        exploration_quota(exploration, 0)  # a bad ratio fails here, not after the warm-up
        if min(replay_start, replay_batch, updates_per_step) < 1:
            raise ConfigError(
                f"The selector would never learn: replay_start is {replay_start}, replay_batch "
                f"{replay_batch} and updates_per_step {updates_per_step}. Set each to at least 1."
            )
        if replay_start > replay_capacity:
            raise ConfigError(
                f"The selector would never learn: it starts at {replay_start} labels and keeps "
                f"{replay_capacity}. Lower replay_start or raise replay_capacity."
            )
        self.seed = seed
        self.exploration = exploration
        self.replay_start = replay_start
        self.replay_batch = replay_batch
        self.updates_per_step = updates_per_step
        self.half_life = half_life
        self.rank_weight = rank_weight
        self.min_gap = min_gap
        self.is_trained = False
        """Whether the predictor has been updated, and is therefore ranked by."""
        self.normaliser = RunningNormaliser(momentum)
        self.predictor = UtilityPredictor(seed=seed, hidden=hidden)
        self.optimizer = torch.optim.Adam(self.predictor.parameters(), lr=learning_rate)
        self.replay = ReplayBuffer(replay_capacity)

    def select(self, features: Features, budget: int, *, step: int) -> Selection:
        """Update the normaliser on C and choose K rows of it (Alg. 1, lines 4-10)."""
        self.normaliser.update(features.values)
        if not self.is_trained:
            return uniform_selection(features, budget, seed=self.seed, step=step)
        return explored_selection(
            features,
            budget,
            scores=finite_scores(features.rows, self.predict(features.values).tolist()),
            exploration=self.exploration,
            seed=self.seed,
            step=step,
        )

    @torch.no_grad()
    def predict(self, values: Tensor) -> Tensor:
        """Predicted utility [row] of raw features [row, feature] (Eq. 6)."""
        return self.predictor(self.normaliser.normalise(values))

    def learn(self, features: Features, utility: Mapping[int, float], *, step: int) -> bool:
        """Store the labels and update psi from replay; True if that happened (Alg. 1, line 14)."""
        stored = self.replay.observe(features, utility, step=step)
        if stored == 0 or len(self.replay) < self.replay_start:
            return False
        for update in range(self.updates_per_step):
            self._update(step, addressed_generator("replay", self.seed, step, update))
        self.is_trained = True
        return True

    def _update(self, step: int, generator: torch.Generator) -> None:
        batch = self.replay.sample(self.replay_batch, generator)
        loss = selector_loss(
            self.predictor(self.normaliser.normalise(batch.features)),
            batch.utility,
            step - batch.steps,
            half_life=self.half_life,
            rank_weight=self.rank_weight,
            min_gap=self.min_gap,
        )
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that must survive, as one flat table of tensors."""
        moments = {
            f"{name}.{key}": value
            for name, parameter in self.predictor.named_parameters()
            for key, value in self.optimizer.state.get(parameter, {}).items()
        }
        parts = {
            "predictor": self.predictor.state_dict(),
            "adam": moments,
            "normaliser": self.normaliser.state_dict(),
            "replay": self.replay.state_dict(),
        }
        return {"is_trained": torch.tensor(self.is_trained)} | {
            f"{part}.{name}": value.detach().clone()
            for part, values in parts.items()
            for name, value in values.items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue exactly where `state_dict` was taken, with the same settings."""
        parts: dict[str, dict[str, Tensor]] = {}
        for key, value in state.items():
            part, _, name = key.partition(".")
            parts.setdefault(part, {})[name] = value
        self.is_trained = bool(state["is_trained"])
        self.predictor.load_state_dict(parts["predictor"])
        self.normaliser.load_state_dict(parts["normaliser"])
        self.replay.load_state_dict(parts["replay"])
        self.optimizer.state.clear()
        parameters = dict(self.predictor.named_parameters())
        for key, value in parts.get("adam", {}).items():
            name, _, moment = key.rpartition(".")
            self.optimizer.state[parameters[name]][moment] = value.clone()
