from __future__ import annotations

import pytest

from bas_opd.cli.progress import Board


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_without_a_terminal_a_line_a_minute_says_how_far_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    with Board(clock=clock) as board:
        board.start(2_000, "pope: asking", done=1_000)
        for _ in range(100):
            clock.now += 1.5
            board.advance()
    assert capsys.readouterr().err.splitlines() == [
        "pope: asking: 1,040 of 2,000, about 24 m left",
        "pope: asking: 1,080 of 2,000, about 23 m left",
    ]


def test_work_of_less_than_a_minute_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Board(clock=clock) as board:
        for what in ("vstar: asking", "vstar: scoring"):
            board.start(29, what)
            for _ in range(29):
                clock.now += 1
                board.advance()
    assert capsys.readouterr().err == ""
