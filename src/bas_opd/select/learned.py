"""The learned policy: rank by predicted utility, explore a little, learn from every answer."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

import torch
from torch import Tensor

from bas_opd.errors import ConfigError
from bas_opd.select.draws import addressed_generator
from bas_opd.select.learning import LearningSelector
from bas_opd.select.losses import selector_loss
from bas_opd.select.predictor import UtilityPredictor


class LearnedSelector(LearningSelector):
    """Query the rows of highest predicted utility, with some exploration (Alg. 1, lines 4-10, 14).

    The defaults are those of Table 5.
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
        coverage: bool = False,
    ) -> None:
        if min(replay_batch, updates_per_step) < 1:
            raise ConfigError(
                f"The selector would never learn: replay_batch is {replay_batch} and "
                f"updates_per_step {updates_per_step}. Set each to at least 1."
            )
        super().__init__(
            seed=seed,
            exploration=exploration,
            momentum=momentum,
            replay_capacity=replay_capacity,
            replay_start=replay_start,
            half_life=half_life,
            coverage=coverage,
        )
        self.replay_batch = replay_batch
        self.updates_per_step = updates_per_step
        self.rank_weight = rank_weight
        self.min_gap = min_gap
        self.predictor = UtilityPredictor(seed=seed, hidden=hidden)
        self.optimizer = torch.optim.Adam(self.predictor.parameters(), lr=learning_rate)

    @torch.no_grad()
    def predict(self, values: Tensor) -> Tensor:
        """Return the predicted utility [row] of raw features [row, feature] (Eq. 6)."""
        return self.predictor(self.normaliser.normalise(values))

    def _update(self, step: int) -> None:
        for update in range(self.updates_per_step):
            generator = addressed_generator("replay", self.seed, step, update)
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

    def _learned(self) -> dict[str, Mapping[str, Tensor]]:
        moments = {
            f"{name}.{key}": value
            for name, parameter in self.predictor.named_parameters()
            for key, value in self.optimizer.state.get(parameter, {}).items()
        }
        return {"predictor": self.predictor.state_dict(), "adam": moments}

    def _load_learned(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        self.predictor.load_state_dict(parts["predictor"])
        self.optimizer.state.clear()
        parameters = dict(self.predictor.named_parameters())
        for key, value in parts.get("adam", {}).items():
            name, _, moment = key.rpartition(".")
            self.optimizer.state[parameters[name]][moment] = value.clone()
