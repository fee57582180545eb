from __future__ import annotations

import math

from bas_opd.stats.intervals import Interval
from bas_opd.text import aligned, counted, ends_text, markdown_table, percent, plus_minus, points


def test_a_markdown_table_has_numbers_to_the_right() -> None:
    assert markdown_table(["run", "calls"], [["full", "224"], ["learned", "56"]]) == (
        "| run | calls |\n| --- | --: |\n| full | 224 |\n| learned | 56 |"
    )


def test_columns_are_as_wide_as_their_widest_cell_and_lines_end_at_their_last() -> None:
    assert aligned([("run", "calls", ""), ("learned", "56", "x")]) == (
        "run      calls\nlearned     56  x"
    )


def test_half_a_width_that_is_zero_or_unknown_is_left_out() -> None:
    assert plus_minus(Interval(mean=0.123, half_width=0.04, n=3), "+.1f", 100) == "+12.3 ± 4.0"
    assert plus_minus(Interval(mean=0.123, half_width=0.0, n=3), ".1f", 100) == "12.3"
    assert plus_minus(Interval(mean=0.123, half_width=math.inf, n=1), ".1f", 100) == "12.3"


def test_an_interval_is_written_by_its_ends_if_they_are_known() -> None:
    assert ends_text((0.25, 0.75)) == "25.0 to 75.0"
    assert ends_text(None) == ""
    assert points(Interval(mean=-0.02, half_width=0.03, n=5)) == ("-2.0", "-5.0 to +1.0")
    assert points(Interval(mean=-0.02, half_width=math.inf, n=1)) == ("-2.0", "unknown")


def test_a_share_of_nothing_is_a_dash_and_one_thing_is_singular() -> None:
    assert (percent(1, 4), percent(1, 0)) == ("25.0 %", "-")
    assert (counted(1, "batch", "batches"), counted(2240, "row")) == ("1 batch", "2,240 rows")
