"""The audits of a run as its page and its card show them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bas_opd.report.charts.geometry import GeometryFigures, geometry_figures
from bas_opd.report.charts.utility import UtilityFigures, utility_figures
from bas_opd.report.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFigures:
    """What the audits of a run show."""

    utility: tuple[UtilityFigures, ...]
    geometry: GeometryFigures | None

    def sentences(self) -> Iterator[tuple[str, str]]:
        """Yield the subject of each audit, and its result with who was asked."""
        for each in self.utility:
            yield f"Utility on {each.source} batches", f"{each.words} {each.teacher}"
        if self.geometry is not None:
            yield "Gradients", f"{self.geometry.words} {self.geometry.teacher}"


def audit_figures(run: Run) -> AuditFigures:
    """Describe the audits on record."""
    return AuditFigures(
        utility=tuple(utility_figures(each) for each in run.utility_audits),
        geometry=None if run.geometry is None else geometry_figures(run.geometry),
    )
