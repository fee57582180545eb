from __future__ import annotations

from bas_opd.text import aligned, markdown_table


def test_a_markdown_table_has_numbers_to_the_right() -> None:
    assert markdown_table(["run", "calls"], [["full", "224"], ["learned", "56"]]) == (
        "| run | calls |\n| --- | --: |\n| full | 224 |\n| learned | 56 |"
    )


def test_columns_are_as_wide_as_their_widest_cell_and_lines_end_at_their_last() -> None:
    assert aligned([("run", "calls", ""), ("learned", "56", "x")]) == (
        "run      calls\nlearned     56  x"
    )
