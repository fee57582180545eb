"""The clauses of a text, and what they deny."""

from __future__ import annotations

import re
from bisect import bisect_right

from bas_opd.answers.language import CLAUSE_END, NEGATION

_ASIDE = {"while", "whereas", "although", "though"}
_REACH = 160  # no word turns another that is farther away
_DENIED_AFTER = re.compile(
    r"\b(?:is|are|was|were|do|does|did|can|could|would|has|have|be|seems?"
    r"|looks?)(?: \w{3,9}ly)?(?: not\b|n't\b)"
    r"|\b(?:is|are|looks?|seems?|appears?)(?: \w{3,9}ly)? (?:the )?(?:less|least|worse|worst|too)\b"
    r"|\bcannot\b"
    r"|\b(?:hardly|scarcely|incorrect|wrong|false|ruled out|eliminated|excluded|unlikely)\b"
    r"|不对|不正确|错|^\W{0,3}[✗✘❌\u00d7]",
)


_DENIED_NEXT = re.compile(
    r"(?:\b(?:not|never|neither|nor|cannot|than|instead of|(?:any|every)thing but|all but|except)"
    r"|n't)(?: (?:be|think|believe|say|that|it|this|the|answer|is|was|option|choice|likely|to|an?"
    r"|going with)){0,6} ?(?:[(\[]?[a-z][)\].:]{1,2} ?)?$"
)
"""What denies the option that follows it, with or without its label: "not (D) pink"."""
_REJECTION = r"(?:no match|incorrect|wrong|not (?:correct|right|true|a match))"
_REJECTED = re.compile(
    rf"[:,)\]]{{0,2}} ?[(\u2013\u2014-]? ?(?:{_REJECTION}\b|(?:no|false)(?:[.,;:!)\n]|$))"
    rf"|\.[)\]]? ?(?:{_REJECTION}|no|false)[.!]?(?:\n|$)"
)
"""A verdict that rejects the option before it: "(A) red: no"."""


class Clauses:
    """The clauses of a text, and which of its words they deny."""

    def __init__(self, text: str) -> None:
        self._text = text
        ends = list(CLAUSE_END.finditer(text))
        self._starts = [0, *(end.end() for end in ends)]
        self._ends = [*(end.start() for end in ends), len(text)]
        self._is_aside = [False, *(end[0] in _ASIDE for end in ends)]
        self._is_headed = [False, *(end[0] == ":" for end in ends)]

    def around(self, start: int, end: int) -> tuple[str, str]:
        """Return the text of the clause before and after a span."""
        first = bisect_right(self._starts, start) - 1
        is_bracketed = self._text[end - 1 : end] in (")", "]")
        last = bisect_right(self._starts, end if is_bracketed else max(start, end - 1)) - 1
        head = max(self._starts[first], start - _REACH)
        return self._text[head:start], self._text[end : min(self._ends[last], end + _REACH)]

    def deny(self, start: int, end: int) -> bool:
        """Return whether its clause denies a span ("not A") or concedes it ("while A")."""
        clause = bisect_right(self._starts, start) - 1
        if self._is_aside[clause] or _DENIED_NEXT.search(self._text, max(0, start - 60), start):
            return True
        before, after = self.around(start, end)
        if self._is_headed[clause]:  # "ruled out: A"
            before = (
                self._text[self._starts[clause - 1] : self._ends[clause - 1]][-_REACH:] + before
            )
        is_rejected = _REJECTED.match(self._text, end) or _DENIED_AFTER.search(after)
        return bool(is_rejected or NEGATION.search(before))
