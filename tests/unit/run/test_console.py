from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
from rich.text import Text

from bas_opd.run.console import Console, step_line
from bas_opd.run.ledger import Ledger
from bas_opd.run.record import QueryRecord, StepRecord
from bas_opd.text import duration, printable

STEP = QueryRecord(
    step=36,
    examples=["e"] * 28,
    per_prompt=8,
    response_tokens=[87] * 224,
    student_tokens=0,
    prefilled_prompts=0,
    processed_tokens=0,
    feature_names=[],
    features=[[]] * 224,
    has_entropy=True,
    query_ratio="0.25",
    scored=[],
    overrun=0,
    learned=True,
    dropped_labels=0,
    seconds={},
    calls=56,
    budget=56,
    candidates=list(range(224)),
    candidate_tokens=19377,
    selected=list(range(56)),
    explored=list(range(50, 56)),
    scores=[0.1] * 224,
    utility=[5.5e-3] * 50 + [3.1e-3] * 6,
    scored_tokens=3081,
    loss=0.0412,
    is_valid=True,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")


def ticks(*seconds: float) -> Iterator[float]:
    yield from seconds


def line(**changes: Any) -> str:
    return step_line(STEP.model_copy(update=changes), place="37/111", seconds=41, remaining=3034)


def test_a_step_is_one_line() -> None:
    assert line() == (
        "step 37/111  loss 0.0412  queries 56/56 (6 explored)  tokens 3,081 (15.9 % of full)  "
        "u 5.5e-3 / 3.1e-3  41 s  eta 51 m"
    )


def test_what_is_not_known_is_left_out() -> None:
    warm_up = line(explored=[], scores=[None] * 224)
    assert "explored" not in warm_up
    assert "  u " not in warm_up
    assert "loss" not in line(loss=None)
    assert "loss" not in line(loss=float("nan"))


def test_a_step_that_changed_nothing_says_why() -> None:
    assert "skipped: the loss or its gradient is not finite" in line(is_valid=False, loss=None)
    idle = line(selected=[], utility=[], explored=[], calls=0, scored_tokens=0, is_valid=False)
    assert "empty: no row was selected" in idle


def test_a_step_without_candidates_has_no_share() -> None:
    assert "tokens 0  " in line(candidate_tokens=0, scored_tokens=0)


def test_rows_without_a_label_do_not_enter_the_mean() -> None:
    few = {"selected": [0, 1, 2], "explored": [2], "utility": [0.5, None, 0.25]}
    assert STEP.model_copy(update=few).mean_utility == (0.5, 0.25)
    few["utility"] = [0.5, None, None]
    assert STEP.model_copy(update=few).mean_utility == (0.5, None)


def test_a_step_of_a_method_without_queries_has_its_core_alone() -> None:
    plain = StepRecord.model_validate(STEP.model_dump(include=set(StepRecord.model_fields)))
    shown = step_line(plain, place="1/2", seconds=1, remaining=2)
    assert shown == "step 1/2  loss 0.0412  1.0 s  eta 2.0 s"


def test_without_a_terminal_there_are_plain_lines_and_no_escapes() -> None:
    out = io.StringIO()
    clock = ticks(0, 0, 41, 82)
    with Console(out, clock=lambda: next(clock)) as console:
        console.start(3)
        console.step(STEP)
        console.step(STEP)
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
            console.start(2)
            console.step(STEP)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    text = out.getvalue()
    assert "step 1/2" in text
    assert "teacher calls 56 (25.0 % of full)" in Text.from_ansi(text).plain
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


@pytest.mark.parametrize(("name", "value"), [("CI", "true"), ("TERM", "dumb")])
def test_a_terminal_that_nobody_watches_gets_plain_lines(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    out = Terminal()
    with Console(out) as console:
        console.start(1)
        console.step(STEP)
    assert "\x1b" not in out.getvalue()
    assert out.getvalue().startswith("step 1/1")


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    with Console(out) as console:
        console.start(1)
        console.step(STEP)
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
    # Every total of the ledger is in the table.
    assert len(cells) == len(ledger.totals())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (99.4, "99 s"), (99.6, "2 m")),
        *((3000, "50 m"), (5969, "99 m"), (5990, "1 h 40 m"), (11100, "3 h 05 m")),
    ],
)
def test_a_duration_is_said_as_a_person_says_it(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_run_goes_on_when_nobody_reads_it_any_more() -> None:
    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    console = Console(Gone())
    console.start(2)
    console.message("hello")
    console.step(STEP)
