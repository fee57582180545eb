"""What all figures share: how they look, and how they are saved."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from bas_opd.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Given = ParamSpec("Given")
INK, SOFT, LINE = "#23262b", "#6b7077", "#d9d7d0"
BLUE, ORANGE, GREEN = "#2f6690", "#d1730f", "#3c8d63"
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "text.color": INK,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": LINE,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "svg.hashsalt": "bas-opd",
    "pdf.fonttype": 42,
}
NO_DATE = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""The same records give the same bytes."""


def styled(draw: Callable[Given, Figure]) -> Callable[Given, Figure]:
    """Let a function draw in our style, or say how to get what it draws with."""

    @functools.wraps(draw)
    def drawn(*args: Given.args, **kwargs: Given.kwargs) -> Figure:
        try:
            import matplotlib as mpl
        except ImportError as error:
            raise ConfigError(
                "Figures are drawn with matplotlib, which is not installed. Install it with "
                "`pip install 'bas-opd[figures]'`."
            ) from error
        with mpl.rc_context(STYLE):
            return draw(*args, **kwargs)

    return drawn


def panels(
    rows: int, columns: int, *, width: float, height: float, **sharing: Any
) -> tuple[Figure, list[Axes]]:
    """Return an empty figure and its panels, row by row; sizes in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **sharing)
    return figure, [each for row in axes for each in row]


def note(figure: Figure, text: str) -> None:
    """Say below a figure what it was drawn from."""
    figure.supxlabel(text, fontsize=7, color=SOFT, x=0.01, ha="left")


def save(figure: Figure, path: Path) -> tuple[Path, ...]:
    """Write a figure as PATH.svg and PATH.pdf, and return both."""
    import matplotlib as mpl

    path.parent.mkdir(parents=True, exist_ok=True)
    files = tuple(path.with_name(f"{path.name}.{kind}") for kind in NO_DATE)
    with mpl.rc_context(STYLE):
        for file, metadata in zip(files, NO_DATE.values(), strict=True):
            figure.savefig(file, metadata=metadata)
    return files
