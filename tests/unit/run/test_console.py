from __future__ import annotations

import errno
import io
from pathlib import Path

import pytest
from rich.text import Text
from synthetic_steps import A_STEP

from bas_opd.run.console import Console
from bas_opd.run.ledger import Ledger
from bas_opd.run.view import LEDGER, RARE, REWARDS
from bas_opd.text import duration, printable


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")


def test_without_a_terminal_there_are_plain_lines_and_no_escapes() -> None:
    out = io.StringIO()
    with Console(out) as console:
        console.start(3)
        console.step(A_STEP.model_copy(update={"step": 0}))
        console.step(A_STEP.model_copy(update={"step": 1}))
    first, second = out.getvalue().splitlines()
    assert first.startswith("step 1/3  loss")
    assert first.endswith("41 s  eta 82 s")
    assert second.startswith("step 2/3  loss")
    assert second.endswith("41 s  eta 41 s")
    assert "\x1b" not in out.getvalue()


def test_a_terminal_gets_a_live_display_and_its_cursor_back_even_after_a_failure() -> None:
    out = Terminal()

    def fail() -> None:
        with Console(out) as console:
            console.start(40)
            console.step(A_STEP)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    text = out.getvalue()
    assert "step 37/40" in text
    assert "teacher calls 56 (25.0 % of full)" in Text.from_ansi(text).plain
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


@pytest.mark.parametrize(("name", "value"), [("CI", "true"), ("TERM", "dumb")])
def test_a_terminal_that_nobody_watches_gets_plain_lines(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    out = Terminal()
    with Console(out) as console:
        console.start(40)
        console.step(A_STEP)
    assert "\x1b" not in out.getvalue()
    assert out.getvalue().startswith("step 37/40")


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    with Console(out) as console:
        console.start(40)
        console.step(A_STEP)
    assert "\x1b[3" not in out.getvalue()


def test_a_message_cannot_steer_the_terminal_or_style_itself() -> None:
    out = Terminal()
    Console(out).message("[bold]x[/bold] :smile: \x1b[2J\x07\u202e \ud800 " + "long " * 40)
    expected = "[bold]x[/bold] :smile: \\x1b[2J\\x07\\u202e \\ud800 " + "long " * 40
    assert out.getvalue() == expected + "\n"


def test_plain_text_stays_as_it_is() -> None:
    assert printable("Wie groß? 图像 🙂\nline") == "Wie groß? 图像 🙂\nline"


def test_the_run_ends_with_the_table_of_its_ledger() -> None:
    out = io.StringIO()
    ledger = Ledger(
        steps=111,
        candidates=24864,
        candidate_tokens=2167850,
        calls=6216,
        scored_tokens=342089,
        seconds={"teacher": 4345.0},
    )
    Console(out).finish(ledger.totals())
    cells = [
        tuple(cell.strip() for cell in row.strip("│").split("│"))
        for row in out.getvalue().splitlines()
        if "│" in row
    ]
    assert ("teacher calls", "6,216 (25.0 % of full)") in cells
    assert ("teacher scored tokens", "342,089 (15.8 % of full)") in cells
    assert ("over budget, worst step", "0") in cells
    assert ("time: teacher", "72 m") in cells
    # Every total of the ledger is in the table, but for those of other methods.
    assert len(cells) == len(ledger.totals()) - len(REWARDS | RARE)
    assert ledger.totals().keys() - {"seconds"} == LEDGER.keys() - {"repeated"}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (99.4, "99 s"), (99.6, "2 m")),
        *((3000, "50 m"), (5969, "99 m"), (5990, "1 h 40 m"), (11100, "3 h 05 m")),
    ],
)
def test_a_duration_is_said_as_a_person_says_it(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_run_continues_after_a_broken_pipe(tmp_path: Path) -> None:
    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    console = Console(Gone(), run=tmp_path)
    console.start(40)
    console.message("hello")
    console.step(A_STEP)


def test_a_full_device_stops_whoever_watches_and_not_the_run(tmp_path: Path) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    Console(Full(), run=tmp_path).message("hello")
    with pytest.raises(OSError, match="No space left"):
        Console(Full()).message("hello")
