"""The numbers in the sentences of a page: each is computed from records, or given."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path


def sentences(page: Path) -> str:
    """Return the sentences of a page, on one line."""
    return without_tables(page.read_text(encoding="utf-8"))


def without_tables(text: str) -> str:
    """Return Markdown without tables, code, pictures and the targets of links, on one line."""
    text = re.sub(r"<!-- table.*?<!-- /table -->", "", text, flags=re.DOTALL)
    text = re.sub(r"^(\||    ).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "", " ".join(text.split()))
    return " ".join(text.replace("*", "").split())


def unexplained(text: str, parts: Collection[str]) -> list[str]:
    """Return the numbers of a text that are in none of the given parts, with what is around them.

    A part that the text does not have is an error: it is what the records say.
    """
    for part in parts:
        assert len(part) > 3, f"{part!r} is no part of a sentence, and would explain too much."
        assert part in text, f"The page does not say {part!r}."
    for part in sorted(parts, key=len, reverse=True):
        text = text.replace(part, "~")
    return [text[max(0, at.start() - 40) : at.end() + 40] for at in re.finditer(r"\d+", text)]
