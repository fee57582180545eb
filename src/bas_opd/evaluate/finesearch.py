"""FineSearch: whether a response ends with the one word or number that is right."""

from __future__ import annotations

import string


def grade(output: str, answer: str) -> bool:
    """Say whether the last word of the output is the answer; nothing else counts.

    Punctuation around words and the case of letters are passed over: "The plate is Red." ends with
    red. A right word anywhere else is no answer.
    """
    words = [word.strip(string.punctuation) for word in output.casefold().split()]
    return next(filter(None, reversed(words)), None) == answer.casefold()
