"""R: the labels the teacher has paid for, the oldest forgotten first (Alg. 1, line 14)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bas_opd.types import FEATURES, Candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Observed (phi, u, step), one row each."""

    features: Tensor  # [row, feature] float64, raw: normalised again at each use
    utility: Tensor  # [row] float64
    steps: Tensor  # [row] int64, the step each label was observed at

    def __len__(self) -> int:
        return len(self.utility)

    def __getitem__(self, rows: Tensor | slice) -> Labels:
        return Labels(
            features=self.features[rows], utility=self.utility[rows], steps=self.steps[rows]
        )


class ReplayBuffer:
    """Bounded first-in, first-out buffer of labels (Table 5: 512)."""

    def __init__(self, capacity: int = 512, *, columns: int = len(FEATURES)) -> None:
        self.capacity = capacity
        self.dropped = 0
        """Labels refused so far because they or their features were not finite."""
        self.labels = Labels(
            features=torch.empty(0, columns, dtype=torch.float64, device="cpu"),
            utility=torch.empty(0, dtype=torch.float64, device="cpu"),
            steps=torch.empty(0, dtype=torch.int64, device="cpu"),
        )

    def __len__(self) -> int:
        return len(self.labels)

    def observe(self, candidates: Candidates, utility: Mapping[int, float], *, step: int) -> int:
        """Store what rows of a step turned out to be worth, and return the number of labels."""
        if unknown := utility.keys() - set(candidates.rows):
            raise ValueError(
                f"Step {step} brings a utility for row {min(unknown)}, which has no features. "
                "Pass the features that the selection of this step was made from."
            )
        labelled = [(i, utility[row]) for i, row in enumerate(candidates.rows) if row in utility]
        return self.add(
            candidates.values[[i for i, _ in labelled]],
            torch.tensor([u for _, u in labelled], dtype=torch.float64, device="cpu"),
            step=step,
        )

    @torch.no_grad()
    def add(self, features: Tensor, utility: Tensor, *, step: int) -> int:
        """Store the finite labels of one step, the oldest making room, and return their number."""
        finite = utility.isfinite() & features.isfinite().all(1)
        stored = int(finite.sum())
        self.dropped += len(finite) - stored
        self.labels = Labels(
            features=torch.cat([self.labels.features, features[finite]]),
            utility=torch.cat([self.labels.utility, utility[finite]]),
            steps=torch.cat([self.labels.steps, self.labels.steps.new_full((stored,), step)]),
        )[-self.capacity :]
        return stored

    def sample(self, size: int, generator: torch.Generator) -> Labels:
        """Draw `size` labels uniformly without replacement, or all of them if there are fewer."""
        return self.labels[torch.randperm(len(self), generator=generator, device="cpu")[:size]]

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that must survive, as tensors."""
        return {
            "features": self.labels.features.clone(),
            "utility": self.labels.utility.clone(),
            "steps": self.labels.steps.clone(),
            "dropped": torch.tensor(self.dropped),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue exactly where `state_dict` was taken."""
        self.labels = Labels(
            features=state["features"].clone(),
            utility=state["utility"].clone(),
            steps=state["steps"].clone(),
        )[-self.capacity :]
        self.dropped = int(state["dropped"])
