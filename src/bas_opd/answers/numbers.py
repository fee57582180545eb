"""Numbers in text: digits, words, fractions, ordinals, and the units behind them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from bas_opd.answers.units import unit_of

_UP_TO_NINETEEN = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    " fifteen sixteen seventeen eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_VALUES = {word: value for value, word in enumerate(_UP_TO_NINETEEN.split())} | {
    word: 10 * place for place, word in enumerate(_TENS.split(), start=2)
}
_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "dozen": 12}
_ORDINALS = {
    "first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7,
    "eighth": 8, "ninth": 9, "tenth": 10, "eleventh": 11, "twelfth": 12,
}  # fmt: skip
_PARTS = {
    "half": 2, "halves": 2, "third": 3, "thirds": 3, "quarter": 4, "quarters": 4, "fourth": 4,
    "fourths": 4, "fifth": 5, "fifths": 5, "sixth": 6, "sixths": 6, "eighth": 8, "eighths": 8,
    "tenth": 10, "tenths": 10,
}  # fmt: skip
_HAN = {sign: value for value, sign in enumerate("一二三四五六七八九", start=1)} | {"两": 2}

_CARDINAL = "|".join([*_VALUES, *_SCALES])
_NUMERAL = (
    r"(?P<sign>(?<![\w)])[-+]|(?<!\d )\b(?:minus|negative) )?"
    r"(?P<digits>(?:\d{1,3}(?:,\d{3}){1,4}|\d{1,15})(?:\.\d{1,12})?)"
    r"(?: ?/ ?(?P<over>[1-9]\d{0,5})| (?P<top>\d{1,3})/(?P<bottom>[1-9]\d{0,2}))?"
    r"(?P<nth>st|nd|rd|th)?(?![\d:/])(?![,.]\d)(?P<range> ?[-~\u2013\u2014] ?\d| \d{3}(?!\d))?"
    r"(?: (?P<scale>hundred|thousand|million|billion|dozen)\b)?"
)
_WORDS = (
    rf"(?P<minus>(?:minus|negative) )?"
    rf"(?P<words>(?:{_CARDINAL})(?:(?:-| and | )(?:{_CARDINAL})){{0,9}})"
    rf"(?P<half> and (?:a )?half)?"
    rf"(?:(?:-| )(?P<part>{'|'.join(_PARTS)}))?\b"
)
_NUMBER = re.compile(
    rf"(?<![.:/,-])(?<![^\W\u2e80-\uffff])(?:{_NUMERAL})(?!-?[a-z]{{2,}}-)|\b(?:{_WORDS})(?!-[a-z])"
    rf"|\b(?P<article>(?:a|one) (?:half|third|quarter)|half(?! past| a dozen|-dozen))\b"
    rf"|\b(?P<some>an? (?:hundred|thousand|million|dozen)|half a dozen|half-dozen)\b"
    rf"|\b(?P<ordinal>{'|'.join(_ORDINALS)})\b"
    r"|(?<![一二两三四五六七八九十百千])"
    r"(?P<han>[二三四五六七八九]?十[一二三四五六七八九]?|[一二两三四五六七八九])"
    r"(?=[个個只隻条條辆輛张張位名人本头頭把台]|$)"
)
_UNIT = re.compile(r"[ -]?(%|[€£¥]|°[cf]?|[^\W\d_]{1,20}\b(?:/[a-z]{1,4}\b)?)")
_LONG_UNITS = (
    (re.compile(r"[ -]?(?:degrees?|°) ?(?:celsius|centigrade|c\b)"), "°c"),
    (re.compile(r"[ -]?(?:degrees?|°) ?(?:fahrenheit|f\b)"), "°f"),
    (re.compile(r"[ -]?(?:kilomet(?:er|re)s?|km) (?:per|an) hour\b"), "km/h"),
    (re.compile(r"[ -]?miles? (?:per|an) hour\b"), "mph"),
    (re.compile(r"[ -]?met(?:er|re)s? (?:per|a) second\b"), "m/s"),
)
_PRONOUN = re.compile(
    r"\b(?:the|this|that|which|no|each|every|any|other|another|last|the only|next|the \w{2,12}"
    r"|first|second|third) $"
)
_RESULT = re.compile(r"[.=:\n]|\b(?:so|total|altogether|makes|making|gives|giving)\b")
_FORMULA = re.compile(r" ?[π√^²³]| (?:out )?of \d| ?[-+*/\u00d7·] ?(?:\d|[b-z]\b|[(π√])")
_ASSIGNS = re.compile(r", [a-z] ?=")
_CURRENCY = re.compile(r"([$€£¥]|\b(?:usd|eur|gbp|jpy)) ?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One number of a text, and the word or sign right behind it."""

    start: int
    end: int
    value: Fraction
    unit: str = ""
    is_ordinal: bool = False
    is_range: bool = False
    """Whether it is several numbers in a row, none of which is meant alone."""
    is_part: bool = False
    """Whether it runs on into a code or a formula: "42A", "1990s", "24π", "8 - 6x"."""


def numbers(text: str) -> list[Number]:
    """Find the numbers of a text in lower case; "the one" and parts of codes are none."""
    found = []
    for match in _NUMBER.finditer(text):
        before = text[max(0, match.start() - 18) : match.start()]
        if match["words"] == "one" and not match["part"]:
            is_pronoun = _PRONOUN.search(before) or text.startswith(" of ", match.end())
            if is_pronoun:
                continue
        if match["digits"] and match["digits"][0] == "0" and match["digits"][1:2].isdigit():
            continue
        currency, unit = _CURRENCY.search(before), _unit(text, match.end())
        tail = text[match.end() : match.end() + 1]
        value = _value(match)
        found.append(
            Number(
                start=match.start(),
                end=match.end(),
                value=value or Fraction(0),
                unit=currency[1] if currency else unit,
                is_ordinal=bool(match["ordinal"] or match["nth"]),
                is_range=bool(match["range"]) or value is None,
                is_part=(tail.isascii() and tail.isalpha() and unit_of(unit) is None)
                or text[max(0, match.start() - 2) : match.start()].endswith(("√", "^", "^{"))
                or _FORMULA.match(text, match.end()) is not None,
            )
        )
    return found


def _unit(text: str, place: int) -> str:
    """Read the unit at a place; one of several words in its short form."""
    unit = _UNIT.match(text, place)
    if unit is None:
        return ""
    long = (short for pattern, short in _LONG_UNITS if pattern.match(text, place))
    return next(long, unit[1])


def is_sum(text: str, found: list[Number]) -> bool:
    """Return whether the last of several numbers is the sum or the count of the others."""
    counted = [each for each in found if not each.is_ordinal]
    between = text[counted[-2].end : counted[-1].start] if len(counted) > 2 else ""
    if not _RESULT.search(between) or _ASSIGNS.search(between):
        return False
    *parts, total = (each.value for each in counted)
    if parts == list(range(1, len(parts) + 1)) and "=" not in between:
        return total == len(parts)  # 1, 2, 3 may also number a list
    return sum(parts) == total


def _value(match: re.Match[str]) -> Fraction | None:
    if match["digits"]:
        value = Fraction(match["digits"].replace(",", ""))
        if match["over"]:
            value /= int(match["over"])
        elif match["top"]:
            value += Fraction(int(match["top"]), int(match["bottom"]))
        value *= _SCALES.get(match["scale"] or "", 1)
        return -value if match["sign"] and match["sign"] != "+" else value
    if match["article"]:
        return Fraction(1, _PARTS[match["article"].split()[-1]])
    if match["some"]:
        some = Fraction(_SCALES[match["some"].replace("-", " ").split()[-1]])
        return some / 2 if match["some"].startswith("half") else some
    if match["ordinal"]:
        return Fraction(_ORDINALS[match["ordinal"]])
    if match["han"]:
        tens, ten, ones = match["han"].rpartition("十")
        return Fraction((_HAN.get(tens, 1) * 10 if ten else 0) + _HAN.get(ones, 0))
    spelled = _spelled(match["words"])
    if spelled is None:
        return None
    value = Fraction(spelled)
    if match["half"]:
        value += Fraction(1, 2)
    value = value / _PARTS[match["part"]] if match["part"] else value
    return -value if match["minus"] else value


def _spelled(words: str) -> int | None:
    """Add up "two hundred and thirty-one", read "nineteen ninety-eight"; "two three" is neither."""
    total = group = 0
    for word in words.replace("-", " ").split():
        if word in _SCALES:
            group = max(group, 1) * _SCALES[word]
            if _SCALES[word] >= 1000:
                total, group = total + group, 0
        elif word != "and":
            value = _VALUES[word]
            fits = group % 100 == 0 or (group % 10 == 0 and group % 100 >= 20 and value < 10)
            if not fits and (total or value < 10 or not 10 <= group < 100):
                return None
            group = group + value if fits else group * 100 + value
    return total + group
