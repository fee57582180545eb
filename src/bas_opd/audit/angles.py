"""Length ratios and angles of a gradient audit (Figure 4).

Pure functions of the record; needs no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bas_opd.audit.records import GeometryAudit, Pair
from bas_opd.stats.intervals import Interval, mean_interval

Point = tuple[float, float]


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


def aligned(pair: Pair) -> tuple[Point, Point]:
    """Return the tips of the selected and the unselected gradient in the plane they span.

    The unit is the selected gradient, along x. Gradients of single batches are noisy, hence much
    longer than their mean; in a common unit the means could not be seen.
    """
    length = 1 / _ratio(pair)
    return (1.0, 0.0), (length * pair.cosine, length * math.sqrt(1 - pair.cosine**2))


def _ratio(pair: Pair) -> float:
    return pair.selected_norm / pair.unselected_norm
