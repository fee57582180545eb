from __future__ import annotations

import pytest

from bas_opd.answers import grade


@pytest.mark.parametrize(
    ("output", "reference", "expected"),
    [
        ("red", "red", "right"),
        ("The plate is red.", "red", "right"),
        ("The plate is blue.", "red", "wrong"),
        ("47", "47", "right"),
        ("The sign says 48", "47", "wrong"),
        ("Yes, there is one.", "yes", "right"),
        ("No.", "yes", "wrong"),
        ("", "red", "unread"),
        ("red", "", "unread"),
        ("It is hard to say; it could be red or blue.", "red", "unread"),
    ],
)
def test_a_response_is_right_wrong_or_unread(output: str, reference: str, expected: str) -> None:
    assert grade(output, reference) == expected
