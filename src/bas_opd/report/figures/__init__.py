"""The paper's figures, drawn from records with matplotlib, as SVG and PDF."""

from bas_opd.report.figures.accuracy import accuracy_by_part, accuracy_cost, budget_sweep
from bas_opd.report.figures.arms import Arm, arms_of_runs
from bas_opd.report.figures.canvas import save
from bas_opd.report.figures.geometry import gradient_geometry
from bas_opd.report.figures.utility import utility_diagnostics

__all__ = [
    "Arm",
    "accuracy_by_part",
    "accuracy_cost",
    "arms_of_runs",
    "budget_sweep",
    "gradient_geometry",
    "save",
    "utility_diagnostics",
]
