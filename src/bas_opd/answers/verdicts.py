"""Options that are assessed one by one: "A. red: no", "Option C matches"."""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import pairwise

from bas_opd.answers.labels import labels, own_text_end
from bas_opd.answers.language import NEGATION
from bas_opd.answers.options import Ballot

_HEAD = re.compile(r"(?:^|[.;,:!?)✓✔✅✗✘❌\u00d7\n]) ?(?:only )?(?:(?:option|choice|选项) ?)?$")
_AGAINST = re.compile(r"[✗✘❌\u00d7]|[错]")
_FOR = re.compile(
    r"[✓✔✅]|\b(?:correct|yes|true|accurate|match(?:es)?|fits|holds|applies|works|consistent)\b"
    r"|\bis (?:right|what (?:i|we|you|remains|is left))\b|^\W{0,4}right\W{0,2}$|正确|符合"
)
_UNSETTLED = re.compile(
    r"\b(?:if|when|unless|had|whether|initially|first|might|could|may|possibly|perhaps|maybe|part\w{0,4}ly|almost"
    r"|nearly|hardly|barely|half|far|claimed|second"
    r"|some|also|both|would|seemed|only if|but|however|though)\b|\?"
)
_CONTRAST = re.compile(r"\b(?:while|whereas|unlike)\b")
_NEAR = 25


def elected(text: str, low: str, ballot: Ballot) -> str | None:
    """Return the one approved option, if every other assessed option is rejected."""
    every = labels(text, low, ballot)
    heads = [each for each in every if _HEAD.search(low, max(0, each.start - _NEAR), each.start)]
    if not heads:
        return None
    starts = [each.start for each in every]
    ends = [*(after.start for _, after in pairwise(heads)), len(text)]
    verdicts: dict[str, set[bool | None]] = {}
    for head, end in zip(heads, ends, strict=True):
        start = own_text_end(low, head, ballot)
        body = _CONTRAST.split(low[start:end].lstrip(" ?").partition("\n")[0])[0]
        after = bisect_right(starts, start)
        is_shared = after < len(starts) and starts[after] < start + len(body)
        verdicts.setdefault(head.letter, set()).add(None if is_shared else _verdict(body))
    approved = [letter for letter, said in verdicts.items() if said == {True}]
    is_settled = len(approved) == 1 and all(
        said == {False} for letter, said in verdicts.items() if letter != approved[0]
    )
    return ballot.keys[approved[0]] if is_settled else None


def _verdict(body: str) -> bool | None:
    """Return whether the words about an option approve it; None if neither or both."""
    if _UNSETTLED.search(body):
        return None
    is_denied = NEGATION.search(body) is not None or _AGAINST.search(body) is not None
    approvals = [match.start() for match in _FOR.finditer(body)]
    is_approved = any(not NEGATION.search(body, max(0, at - _NEAR), at) for at in approvals)
    return None if is_denied == is_approved else is_approved
