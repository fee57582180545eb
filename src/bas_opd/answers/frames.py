"""Sentences that options share, and the words in them that differ ("on the LEFT side of it")."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_REACH = 200  # no word frames another that is farther away
_ENDS = re.compile(r"(?: (?:side|colou?r|one))?\W{0,3}$")
_BESIDE = re.compile(
    r"(?: side)?(?: of| to)? (?:the|an?|this|that|his"
    r"|her)\b ((?:[\w-]{1,20}\W{1,2}){0,3}[\w-]{1,20})"
)
_SUBJECT = re.compile(
    r"(?:^|[.,;:\n] ?)(?:an?|the|another) ([\w -]{2,40}?) (?:is|are|stands?|sits?|appears?)\b"
)
_GENERIC = frozenset({"color", "colour", "answer", "option", "object", "item", "one", "position"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The words that options share at both ends, and the core in which each differs."""

    cores: dict[str, str]
    head: frozenset[str]
    tail: frozenset[str]
    shared: frozenset[str]

    @classmethod
    def around(cls, texts: Mapping[str, str]) -> Frame:
        """Compare the options word by word from both ends."""
        words = [text.split() for text in texts.values()]
        shortest = min(map(len, words), default=0)
        head = next((n for n in range(shortest) if len({each[n] for each in words}) > 1), shortest)
        tail = next(
            (n for n in range(shortest) if len({each[-1 - n] for each in words}) > 1), shortest
        )
        is_framed = len(words) > 1 and head + tail > 0 and shortest > head + tail
        cores = {
            key: " ".join(each[head : len(each) - tail])
            for key, each in zip(texts, words if is_framed else (), strict=is_framed)
        }
        first = words[0] if is_framed else []
        return cls(
            # A letter is read as a label, and "a" is an article.
            cores={key: core for key, core in distinct(cores).items() if len(core) > 1},
            head=_content(first[:head]),
            tail=_content(first[len(first) - tail :]),
            shared=_content(set.intersection(*map(set, words)) if words else ()),
        )

    def holds(self, low: str, start: int, end: int) -> bool:
        """Return whether a core ends its text, or stands in it as it stands in the options."""
        before, rest = low[max(0, start - _REACH) : start], low[end : end + _REACH]
        subject = _SUBJECT.search(before)
        if subject and self.head and not _content(subject[1].split()) & (self.head | _GENERIC):
            return False
        if _ENDS.match(low, end):
            return True
        said, following = _content(before.split()), _content(rest.split())
        if said & (self.tail - self.head) and following & (self.head - self.tail):
            return False  # "the car is left of the man" is no man left of the car
        beside = _BESIDE.match(rest)
        if beside and self.tail and not _content(beside[1].split()) & self.tail:
            return False  # left of the picture is not left of the car
        return bool(self.shared & (said | following))


def _content(words: Iterable[str]) -> frozenset[str]:
    stripped = (word.strip(".,;:!?") for word in words)
    return frozenset(
        word
        for word in stripped
        if len(word) > 2 and word not in ("the", "and", "are", "was", "for")
    )


def distinct(texts: Mapping[str, str]) -> dict[str, str]:
    """Remove options without a text, or with the text of another."""
    counts = Counter(texts.values())
    return {key: text for key, text in texts.items() if text and counts[text] == 1}
