"""A policy that decides on one process and is heard on all."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from bas_opd.compute.world import World
from bas_opd.select.policies import Selector
from bas_opd.types import Budget, Candidates, Selection


class LedSelector:
    """The leader's policy chooses and learns; the others hear S.

    Ranks that decided for themselves could round differently: a row would be asked about twice, or
    never.
    """

    def __init__(self, selector: Selector, world: World) -> None:
        self._selector, self._world = selector, world

    @property
    def is_trained(self) -> bool:
        return self._world.led(lambda: self._selector.is_trained)

    def predicted_utility(self, candidates: Candidates) -> list[float | None]:
        return self._world.led(lambda: self._selector.predicted_utility(candidates))

    def select(self, candidates: Candidates, budget: Budget | int, *, step: int) -> Selection:
        return self._world.led(lambda: self._selector.select(candidates, budget, step=step))

    def learn(self, candidates: Candidates, utility: Mapping[int, float], *, step: int) -> bool:
        return self._world.led(lambda: self._selector.learn(candidates, utility, step=step))

    def state_dict(self) -> dict[str, Tensor]:
        return self._selector.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._selector.load_state_dict(state)
