"""What a gradient audit says: length ratios, angles, and the picture of them (Figure 4).

Pure functions of the record; needs no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bas_opd.audit.records import CheckpointGeometry, GeometryAudit, Pair
from bas_opd.stats.intervals import Interval, mean_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Angles:
    """The gradient of the selected rows against that of the others, at one checkpoint."""

    step: int
    norm_ratio: Interval
    """Selected over unselected: mean over the batches, with a Student-t interval."""
    cosine: Interval
    mean_norm_ratio: float
    """Of the two gradients averaged over the batches first."""
    mean_cosine: float
    mean_degrees: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrows:
    """Two gradients in the plane they span: the selected along x, the other at its angle above."""

    selected: tuple[float, float]
    unselected: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One panel of Figure 4, aligned: each gradient of selected rows has length 1 along x.

    The gradients of single batches are noisy, hence much longer than their mean; in a common unit
    the means could not be seen.
    """

    step: int
    mean: Arrows
    pairs: tuple[Arrows, ...]
    """Of each batch, in the unit of its own selected gradient."""


def summarise(audit: GeometryAudit) -> tuple[Angles, ...]:
    """Return the angles at each checkpoint."""
    return tuple(
        Angles(
            step=checkpoint.step,
            norm_ratio=mean_interval([_ratio(pair) for pair in checkpoint.pairs]),
            cosine=mean_interval([pair.cosine for pair in checkpoint.pairs]),
            mean_norm_ratio=_ratio(checkpoint.mean),
            mean_cosine=checkpoint.mean.cosine,
            mean_degrees=math.degrees(math.acos(checkpoint.mean.cosine)),
        )
        for checkpoint in audit.checkpoints
    )


def picture(checkpoint: CheckpointGeometry) -> Picture:
    """Return the aligned coordinates of a checkpoint."""
    return Picture(
        step=checkpoint.step,
        mean=_arrows(checkpoint.mean),
        pairs=tuple(_arrows(pair) for pair in checkpoint.pairs),
    )


def _ratio(pair: Pair) -> float:
    return pair.selected_norm / pair.unselected_norm


def _arrows(pair: Pair) -> Arrows:
    length = pair.unselected_norm / pair.selected_norm
    return Arrows(
        selected=(1.0, 0.0),
        unselected=(length * pair.cosine, length * math.sqrt(1 - pair.cosine**2)),
    )
