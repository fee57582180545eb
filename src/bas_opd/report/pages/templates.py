"""The templates of the pages: values are escaped, and an undefined one is an error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from bas_opd.report.charts.svg import sample, svg
from bas_opd.text import printable


def template(name: str, *folders: Path) -> Template:
    """Load a template from one of the folders, or from this one."""
    environment = Environment(
        loader=FileSystemLoader([*folders, Path(__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"coded": _coded, "svg": svg, "sample": sample}
    return environment.get_template(name)


def _harmless(value: Any) -> Any:
    """Escape characters that control a terminal or the direction of a text."""
    is_text = isinstance(value, str | Path) and not isinstance(value, Markup)
    return printable(str(value)) if is_text else value


def _coded(text: str) -> Markup:
    """Turn `backticks` into code elements."""
    parts = re.split(r"`([^`]*)`", printable(text))
    return Markup("").join(
        Markup("<code>{}</code>" if number % 2 else "{}").format(part)
        for number, part in enumerate(parts)
    )
