"""The templates of pages and cards: values are escaped, and an undefined one is an error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from bas_opd.report.charts.svg import sample, svg
from bas_opd.text import counted, printable

LONGEST = 2_000
"""Characters of an example's text that a page shows."""
_SPECIAL = re.compile(r"(`[\w .-]+`)|([\\*_{}\[\]<>#|~!&])")
"""What Markdown reads as more than text, but for names in code, where an escape would be shown."""


def template(name: str) -> Template:
    """Load a template of this folder; its name says whether it is of HTML or of Markdown."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_markdown if name.endswith(".md.jinja") else _harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"coded": _coded, "cut": _cut, "svg": svg, "sample": sample}
    return environment.get_template(name)


def _harmless(value: Any) -> Any:
    """Escape characters that control a terminal or the direction of a text."""
    is_text = isinstance(value, str | Path) and not isinstance(value, Markup)
    return printable(str(value)) if is_text else value


def _markdown(value: Any) -> Markup:
    """Escape text so that Markdown shows it verbatim, on one line."""
    if isinstance(value, Markup):
        return value
    text = " ".join(printable(str(value)).split())
    return Markup(_SPECIAL.sub(lambda found: found[1] or f"\\{found[2]}", text))


def _cut(text: str) -> str:
    more = len(text) - LONGEST
    return text if more <= 0 else f"{text[:LONGEST]}… ({counted(more, 'more character')})"


def _coded(text: str) -> Markup:
    """Turn `backticks` into code elements."""
    parts = re.split(r"`([^`]*)`", printable(text))
    return Markup("").join(
        Markup("<code>{}</code>" if number % 2 else "{}").format(part)
        for number, part in enumerate(parts)
    )
