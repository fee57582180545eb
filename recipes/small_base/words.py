"""A tokenizer with one token for each word of a version of FineSearch.

It extends the shipped one: bytes and known words keep their numbers, special tokens move.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from bas_opd.data.finesearch import VERSIONS, sample

_WORD = re.compile(r" ?[A-Za-z]+")
_SAMPLES = 400
"""Samples of each kind that are read for words; the wording has few words besides names."""


def words(version: str) -> list[str]:
    """Return the words of a version's questions and responses, with the space before them."""
    found: set[str] = set()
    for kind in VERSIONS[version].kinds:
        for index in range(_SAMPLES):
            for one in sample("train", "small", 0, index, kind, version=version):
                for text in (one.question.text, *one.question.responses):
                    found.update(_WORD.findall(text))
    return sorted(found)


def extend_tokenizer(file: Path, version: str) -> dict[int, int]:
    """Add the words that a tokenizer file lacks; return old and new numbers of special tokens."""
    content: dict[str, Any] = json.loads(file.read_text("utf-8"))
    vocabulary, merges = content["model"]["vocab"], content["model"]["merges"]
    for word in words(version):
        letters = word.replace(" ", "Ġ")  # as byte-level BPE writes a space
        for end in range(2, len(letters) + 1):
            if letters[:end] not in vocabulary:
                vocabulary[letters[:end]] = len(vocabulary)
                merges.append([letters[: end - 1], letters[end - 1]])
    moved = {}
    for place, special in enumerate(content["added_tokens"]):  # These follow the words.
        old, special["id"] = special["id"], len(vocabulary) + place
        moved[old] = special["id"]
    file.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return moved
