"""Answers that an output marks: in a tag, in a LaTeX box, in a field of JSON."""

from __future__ import annotations

import re
from dataclasses import dataclass

_OPEN_TAG = re.compile(r"<(?:final_?)?answer>", re.I)
_CLOSE_TAG = re.compile(r"</(?:final_?)?answer>", re.I)
_BOX = re.compile(r"\\(?:boxed|fbox) ?\{|[{}]")
_FIELD = re.compile(
    r"[\"'](?:final|correct|my|the|predicted|selected|chosen)?[_ -]?"
    r"(?:answer|choice|option|ans|response|prediction|letter|result)[\"'] ?: ?"
    r"(?:\"((?:[^\"\\\n]|\\.){0,2000})(\"?)|'([^'\n]{0,2000})('?)"
    r"|\[([^\[\]]{0,200})(\]?)|([\w.+%-]{1,40})())",
    re.I,
)
_LIST_MARK = re.compile(r"(?:\b(?:or|and)|[/,&])\W{0,4}$", re.I)
_NEAR = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """The last marked answer, and the text around it."""

    content: str
    is_closed: bool
    is_one_of_several: bool
    """Whether it continues a list of other marked answers ("... or ...")."""
    before: str
    rest: str
    """What follows it."""


def last_sealed(text: str, was_cut: bool | None) -> Sealed | None:
    """Find the last marked answer of a cleaned text, in any notation."""
    found = sorted([*_tags(text, was_cut), *_boxes(text), *_fields(text)], key=lambda each: each[1])
    if not found:
        return None
    start, end, content, is_closed = found[-1]
    earlier = [each for each in found[:-1] if each[1] <= start]
    between = text[earlier[-1][1] : start] if earlier else ""
    is_listed = len(between) < _NEAR and _LIST_MARK.search(between) is not None
    return Sealed(
        content=content.strip(),
        is_closed=is_closed,
        is_one_of_several=is_listed and earlier[-1][2].strip() != content.strip(),
        before=text[:start],
        rest=text[end:],
    )


_Span = tuple[int, int, str, bool]


def _tags(text: str, was_cut: bool | None) -> list[_Span]:
    """Find tagged answers; a server may have stopped at the last end tag and left it out."""
    spans: list[_Span] = []
    opened: re.Match[str] | None = None
    marks = sorted(
        [*_OPEN_TAG.finditer(text), *_CLOSE_TAG.finditer(text)], key=lambda mark: mark.start()
    )
    for mark in marks:
        if not mark[0].startswith("</"):
            opened = mark
        elif opened is not None:
            spans.append((opened.start(), mark.end(), text[opened.end() : mark.start()], True))
            opened = None
    if opened is not None:
        spans.append((opened.start(), len(text), text[opened.end() :], not was_cut))
    return spans


def _boxes(text: str) -> list[_Span]:
    spans: list[_Span] = []
    stack: list[tuple[int, int] | None] = []
    for brace in _BOX.finditer(text):
        if brace[0] == "}":
            opened = stack.pop() if stack else None
            if opened is not None:
                spans.append((opened[0], brace.end(), text[opened[1] : brace.start()], True))
        else:
            stack.append((brace.start(), brace.end()) if brace[0] != "{" else None)
    left_open = next((each for each in stack if each is not None), None)
    if left_open is not None:
        spans.append((left_open[0], len(text), text[left_open[1] :], False))
    return spans


def _fields(text: str) -> list[_Span]:
    spans: list[_Span] = []
    for field in _FIELD.finditer(text) if "{" in text else ():
        kind = next(group for group in (1, 3, 5, 7) if field[group] is not None)
        content = field[kind].replace("\\n", "\n").replace('\\"', '"')
        if kind == 7 and content == "null":
            content = ""
        if kind == 5:
            content = content.replace('"', "").replace("'", "")
        spans.append((field.start(), field.end(), content, kind == 7 or bool(field[kind + 1])))
    return spans
