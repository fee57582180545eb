"""What the documentation says of the audited run, against the records it published."""

from __future__ import annotations

from pathlib import Path

import pytest

from bas_opd.audit.angles import summarise
from bas_opd.audit.records import (
    SOURCES,
    GeometryAudit,
    UtilityAudit,
    geometry_file,
    read_audit,
    utility_file,
)
from bas_opd.audit.utility import diagnose

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = " ".join((DOCS / "results.md").read_text(encoding="utf-8").split())


def utility(source: str) -> UtilityAudit:
    audit = read_audit(utility_file(DOCS / "results", SOURCES[source == "held-out"]), UtilityAudit)
    assert audit is not None
    return audit


def geometry() -> GeometryAudit:
    audit = read_audit(geometry_file(DOCS / "results"), GeometryAudit)
    assert audit is not None
    return audit


@pytest.mark.parametrize("source", SOURCES)
def test_the_captures_are_those_of_the_records(source: str) -> None:
    found = diagnose(utility(source))
    at_a_quarter = next(each for each in found.captures if each.ratio == "0.25").shares
    cells = " | ".join(
        f"{100 * at_a_quarter[ranking].value:.1f} %"
        for ranking in ("oracle", "learned", "entropy", "random")
    )
    assert f"| {source} batches, {found.candidates:,} candidates | {cells} |" in RESULTS


def test_the_bands_are_those_of_the_records() -> None:
    prediction = diagnose(utility("training")).prediction
    assert prediction is not None
    assert prediction.bands is not None
    first, second, *_ = prediction.bands
    assert f"is worth {first.utility.value / second.utility.value:.1f} times the next" in RESULTS
    assert f"adjusted p {first.p_above_next:.2g}" in RESULTS
    assert f"not significantly different (p {second.p_above_next:.2f})" in RESULTS


def test_the_calibration_is_as_stated() -> None:
    prediction = diagnose(utility("training")).prediction
    assert prediction is not None
    bins = prediction.calibration
    assert round(min(each.predicted for each in bins), 1) == -0.2
    assert round(max(each.predicted for each in bins), 2) == 0.15
    assert 0 <= min(each.observed for each in bins) <= max(each.observed for each in bins) < 0.08


def test_the_gradients_are_those_of_the_records() -> None:
    angles = summarise(geometry())
    ratios = [each.mean_norm_ratio for each in angles]
    degrees = [each.mean_degrees for each in angles]
    assert f"{min(ratios):.1f} to {max(ratios):.1f} times the norm" in RESULTS
    assert f"angles of {min(degrees):.0f} to {max(degrees):.0f} degrees" in RESULTS
    assert (len(angles), {len(each.pairs) for each in geometry().checkpoints}) == (6, {20})


def test_the_audited_run_had_its_own_teacher_and_the_paper_its_stand_in_named() -> None:
    assert {utility(source).teacher for source in SOURCES} == {"own"}
    assert geometry().teacher == "own"
    assert "with its own EMA teacher; the paper's was no longer available" in RESULTS
