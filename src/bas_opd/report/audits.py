"""The audits of a run as its page and its card show them, worked out once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bas_opd.report.geometry_figures import GeometryFigures, geometry_figures
from bas_opd.report.run import Run
from bas_opd.report.utility_figures import UtilityFigures, utility_figures


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFigures:
    """What the audits of a run show."""

    utility: tuple[UtilityFigures, ...]
    geometry: GeometryFigures | None

    def sentences(self) -> Iterator[tuple[str, str]]:
        """Yield what each audit is of, and what it comes to, who was asked included."""
        for each in self.utility:
            yield f"Utility on {each.source} batches", f"{each.words} {each.stand_in.sentence}"
        if self.geometry is not None:
            yield "Gradients", f"{self.geometry.words} {self.geometry.stand_in.sentence}"


def audit_figures(run: Run) -> AuditFigures:
    """Work out and draw the audits that are on record."""
    return AuditFigures(
        utility=tuple(utility_figures(each) for each in run.utility_audits),
        geometry=None if run.geometry is None else geometry_figures(run.geometry),
    )
