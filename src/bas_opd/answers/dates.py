"""Dates and times of day in their various notations."""

from __future__ import annotations

import re

_NAMES = "january february march april may june july august september october november december"
_MONTHS = _NAMES.split()
_SPELLED = "one two three four five six seven eight nine ten eleven twelve"
_NAME = "|".join(f"{month[:3]}(?:{month[3:]})?" for month in _MONTHS) + "|sept"
_DAY_FIRST = re.compile(rf"\b(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? ({_NAME})\b\.?,?(?: (\d{{4}}))?")
_MONTH_FIRST = re.compile(rf"\b({_NAME})\b\.? (\d{{1,2}})(?:st|nd|rd|th)?\b(?:,? (\d{{4}}))?")
_ISO = re.compile(r"\b(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})\b")
_CLOCK = re.compile(r"\b(\d{1,2})[:.](\d{2})(?::\d{2})? ?([ap])?\.?(?:m\b)?")
_OCLOCK = re.compile(r"\b(\d{1,2}) ?(?:([ap])\.?m\b|o'clock)")

_HOURS = {word: hour for hour, word in enumerate(_SPELLED.split(), start=1)}
_SPOKEN = re.compile(
    rf"\b(?:(?P<past>half|(?:a )?quarter) past |(?P<to>(?:a )?quarter to ))?"
    rf"(?P<hour>\d{{1,2}}|{'|'.join(_HOURS)})\b(?P<sharp> o'clock)?"
)

Moment = tuple[int | None, int | None, int | None, int | None, int | None, str | None]
"""Year, month, day, hour of twelve, minute, and a for before noon or p for after."""


def moment(text: str) -> Moment | None:
    """Read the one date or time of day of a text in lower case; None if there is none."""
    if match := _ISO.search(text):
        return (int(match[1]), int(match[2]), int(match[3]), None, None, None)
    if match := _DAY_FIRST.search(text):
        return _date(match[2], match[1], match[3])
    if match := _MONTH_FIRST.search(text):
        return _date(match[1], match[2], match[3])
    if (match := _CLOCK.search(text)) and (":" in match[0] or match[3]):
        return _time(int(match[1]), int(match[2]), match[3])
    if match := _OCLOCK.search(text):
        return _time(int(match[1]), 0, match[2])
    for match in _SPOKEN.finditer(text):
        if match["past"] or match["to"] or match["sharp"]:
            hour = _HOURS.get(match["hour"]) or int(match["hour"])
            minute = 0 if match["sharp"] else 30 if match["past"] == "half" else 15
            return _time(hour - 1 or 12, 45, None) if match["to"] else _time(hour, minute, None)
    return None


def _time(hour: int, minute: int, half: str | None) -> Moment:
    if half is None and (hour > 12 or hour == 0):
        half = "p" if hour else "a"
    return (None, None, None, hour % 12, minute, half)


def _date(month: str, day: str, year: str | None) -> Moment:
    number = next(n for n, name in enumerate(_MONTHS, start=1) if name.startswith(month[:3]))
    return (int(year) if year else None, number, int(day), None, None, None)
