"""The print form of charts: the drawings of the page in one SVG file, and a PDF made of it."""

from __future__ import annotations

import importlib
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from string import ascii_lowercase

from markupsafe import Markup

from bas_opd import disk
from bas_opd.errors import ConfigError, DataError
from bas_opd.files import write_text
from bas_opd.report.charts.model import Chart
from bas_opd.report.charts.svg import (
    LINE_HEIGHT,
    element,
    panels,
    sample_shapes,
    sample_width,
)
from bas_opd.report.pages.templates import template

FONT = "Bitstream Vera Sans"
"""It comes with reportlab and is embedded in every PDF; its characters are wide, hence small."""
TEXT_STYLE = f"""
.chart text, .chart text.name, .chart text.value {{
  font-family: "{FONT}", "DejaVu Sans", Verdana, sans-serif; font-size: 9px;
}}
.chart text.title {{ fill: var(--ink); font-weight: bold; font-size: 10px; }}
.sheet {{ fill: var(--sheet); }}
"""
LETTER = 4.9
"""Width of a character of it, about."""
MARGIN, GAP = 12, 28
"""Around a figure, and between its charts."""


def printed(charts: Sequence[Chart], *, note: str) -> str:
    """Return one chart, or several side by side, as an SVG file with a note below them."""
    parts: list[Markup] = []
    left, top, bottom = MARGIN, MARGIN, 0.0
    for letter, chart in zip(ascii_lowercase, charts, strict=False):
        if len(charts) > 1:
            title = f"({letter}) {chart.title}"
            parts.append(element("text", title, x=left, y=MARGIN + 9, class_="title"))
            top = MARGIN + LINE_HEIGHT + 4
        parts.append(_moved(panels(chart), left, top))
        keys, height = _keys(chart)
        parts.append(_moved(keys, left, top + chart.height + 6))
        bottom = max(bottom, top + chart.height + 6 + height)
        left += chart.width + GAP
    width = left - GAP + MARGIN
    for line in textwrap.wrap(note, int((width - 2 * MARGIN) / LETTER)):
        bottom += LINE_HEIGHT
        parts.append(element("text", line, x=MARGIN, y=bottom))
    height = bottom + MARGIN
    sheet = element("rect", width=width, height=height, class_="sheet")
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" width="{width:g}" '
    head += f'height="{height:g}" viewBox="0 0 {width:g} {height:g}">'
    drawn = sheet + Markup("\n").join(parts)
    # Titles appear under a pointer, which paper does not have.
    drawn = re.sub("<title>.*?</title>", "", drawn)
    return f"{head}\n<style>{_style()}</style>\n{drawn}\n</svg>\n"


def check_printing() -> None:
    """Raise unless figures can be saved."""
    try:
        importlib.import_module("svglib.svglib")
    except ImportError as error:
        raise ConfigError(
            "The PDF of a figure is made with svglib, which is not installed. Install it with "
            "`pip install svglib`."
        ) from error


def save(figure: str, path: Path) -> tuple[Path, Path]:
    """Write a figure as PATH.svg and PATH.pdf, and return both."""
    check_printing()
    from reportlab.graphics import renderPDF
    from reportlab.pdfgen.canvas import Canvas
    from svglib.svglib import register_font, svg2rlg

    disk.make_folder(path.parent, parents=True, exist_ok=True)
    svg, pdf = (path.with_name(f"{path.name}.{kind}") for kind in ("svg", "pdf"))
    write_text(svg, figure)
    register_font(FONT, "Vera.ttf")
    register_font(FONT, "VeraBd.ttf", weight="bold")
    if (drawing := svg2rlg(svg)) is None:
        raise DataError(f"svglib cannot read {svg}, so it has no PDF. Use the SVG.")
    # Without the time of writing: the same records give the same bytes.
    canvas = Canvas(str(pdf), (drawing.width, drawing.height), invariant=1)
    renderPDF.draw(drawing, canvas, 0, 0)
    canvas.save()
    return svg, pdf


def _style() -> str:
    """Return the style sheet of the charts with the colours that pages have in print."""
    named = re.findall(r"--([a-z-]+): ([^;]+);", template("colours.css.jinja").render())
    colours = dict(named)
    rules = template("charts.css.jinja").render() + TEXT_STYLE
    return re.sub(r"var\(--([a-z-]+)\)", lambda name: colours[name[1]], rules)


def _moved(drawn: Markup, left: float, top: float) -> Markup:
    return Markup('<g transform="translate({:g} {:g})">{}</g>').format(left, top, drawn)


def _keys(chart: Chart) -> tuple[Markup, float]:
    """Return the legend of a chart in rows as wide as the chart, and its height."""
    parts: list[Markup] = []
    left, top = 0.0, 0.0
    for key in chart.keys:
        start = sample_width(key) + 5
        width = start + len(key.label) * LETTER
        if left and left + width > chart.width:
            left, top = 0.0, top + LINE_HEIGHT + 3
        parts.append(_moved(sample_shapes(key), left, top))
        parts.append(element("text", key.label, x=left + start, y=top + 9))
        left += width + 16
    return Markup("").join(parts), top + LINE_HEIGHT + 4 if parts else 0.0
