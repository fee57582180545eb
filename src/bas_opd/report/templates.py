"""The templates of the pages: whatever is put into them is escaped, and nothing is undefined."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from bas_opd.text import printable


def template(name: str) -> Template:
    """Load a template of this package."""
    environment = Environment(
        loader=PackageLoader("bas_opd.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["coded"] = _coded
    return environment.get_template(name)


def _harmless(value: Any) -> Any:
    """Spell out what would steer a terminal or turn the direction of a text."""
    is_text = isinstance(value, str | Path) and not isinstance(value, Markup)
    return printable(str(value)) if is_text else value


def _coded(text: str) -> Markup:
    """Set in the type of code what stands between backticks."""
    parts = re.split(r"`([^`]*)`", printable(text))
    return Markup("").join(
        Markup("<code>{}</code>" if number % 2 else "{}").format(part)
        for number, part in enumerate(parts)
    )
