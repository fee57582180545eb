"""Options as benchmarks write them: listed in a question, or in columns of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import ascii_uppercase

_LEAD = re.compile(r"\b(?:options|choices)\s*:\s*(?=\(?A\s?[).:])", re.IGNORECASE)
_BRACKETED = (r"(?i:(?:^|\n)\s*\({}\))", r"(?i:(?:^|(?<=\s))\({}\))")
"""Each on its own line if possible, else one after the other."""
_BARE = (r"{}\s?:", r"{}\.(?=\s)", r"{}\)")
_APART = r"(?:^|[\n,;])\s*"
"""What precedes a bare label. More than a space, since an option may be "Vitamin B: much"."""


def listed_options(text: str) -> dict[str, str]:
    """Return letter -> text of the options listed in a question, or nothing.

    A list introduced by "Options:" or "Choices:" keeps to the way in which its A is written. The
    longest list counts, and of equally long ones the last, since a question may speak of its
    options and an option of others ("both (A) and (B)").
    """
    leads = list(_LEAD.finditer(text))
    styles = [*_BRACKETED, *(_APART + label for label in _BARE)]
    if leads:
        text = text[leads[-1].end() :]
        styles = [style for style in styles if re.match(style.format("A"), text)]
    for style in styles:
        lists = [_marks(text, style, first) for first in re.finditer(style.format("A"), text)]
        marks = max(reversed(lists), key=len, default=[])
        if len(marks) > 1:
            return _texts(text, marks)
    return {}


def answer_letter(answer: str, options: Mapping[str, str]) -> str | None:
    """Return the letter that an answer such as "(C)", "c.", "C. red" or "red" stands for."""
    label = re.fullmatch(r"\W*([A-Za-z])\W*", answer) or re.match(r"\s*\(?([A-Z])[).:]\s", answer)
    if label is not None and label[1].upper() in options:
        return label[1].upper()
    said = answer.strip().casefold()
    letters = [letter for letter, text in options.items() if text.casefold() == said]
    return letters[0] if len(letters) == 1 else None


def lettered(texts: list[str]) -> dict[str, str]:
    """Return the options letters from A on."""
    return dict(zip(ascii_uppercase, texts, strict=False))


def with_choices(question: str, options: Mapping[str, str]) -> str:
    """Return the prompt that lists the options below the question."""
    lines = "\n".join(f"({letter}) {text}" for letter, text in options.items())
    return f"{question} Select from the following choices.\n{lines}"


def ending_with(text: str, instruction: str) -> str:
    """Return a text that ends with an instruction, whether or not it already did."""
    return text if text.endswith(instruction) else f"{text}\n{instruction}"


def _marks(text: str, style: str, first: re.Match[str]) -> list[re.Match[str]]:
    """From one A on, the first B after it, the first C after that, and so on."""
    marks = [first]
    for letter in ascii_uppercase[1:]:
        mark = re.compile(style.format(letter)).search(text, marks[-1].end())
        if mark is None:
            break
        marks.append(mark)
    return marks


def _texts(text: str, marks: list[re.Match[str]]) -> dict[str, str]:
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    texts = [text[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=True)]
    if not any("\n" in each for each in texts[:-1]):
        # Where every option keeps to its line so does the last: an instruction may follow.
        texts[-1] = texts[-1].split("\n", 1)[0].rstrip()
    return lettered(texts)
