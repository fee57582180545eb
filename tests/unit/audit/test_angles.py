"""Lengths and angles of gradients, worked out by hand."""

from __future__ import annotations

import math

import pytest
from audit_fixtures import PROVENANCE

from bas_opd.audit.angles import aligned, summarise
from bas_opd.audit.records import CheckpointGeometry, GeometryAudit, Pair


def pair(selected: float, unselected: float, cosine: float) -> Pair:
    return Pair(
        selected_norm=selected, unselected_norm=unselected, cosine=cosine, selected=4, unselected=12
    )


CHECKPOINT = CheckpointGeometry(
    step=7, pairs=[pair(4.0, 2.0, 0.5), pair(3.0, 3.0, 0.0)], mean=pair(2.0, 1.0, 0.5)
)


def test_ratio_and_angle_are_those_of_the_gradients() -> None:
    audit = GeometryAudit(**PROVENANCE, checkpoints=[CHECKPOINT])
    (angles,) = summarise(audit)
    assert (angles.step, angles.norm_ratio.mean, angles.cosine.mean) == (7, 1.5, 0.25)
    assert angles.norm_ratio.n == 2
    # Student's t with one degree of freedom: 12.7062 times 0.5.
    assert angles.norm_ratio.half_width == pytest.approx(6.3531, abs=1e-4)
    assert (angles.mean_norm_ratio, angles.mean_cosine) == (2.0, 0.5)
    assert angles.mean_degrees == pytest.approx(60.0)


def test_the_gradient_of_the_selected_rows_is_the_unit_along_x() -> None:
    selected, unselected = aligned(pair(2.0, 1.0, 0.5))
    assert selected == (1.0, 0.0)
    assert unselected == pytest.approx((0.25, 0.25 * math.sqrt(3)))
    assert aligned(pair(3.0, 3.0, 0.0))[1] == pytest.approx((0.0, 1.0))
