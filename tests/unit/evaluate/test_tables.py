"""The tables of an evaluation: what they mark, and what they never let through."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bas_opd.evaluate.benchmarks import SEVEN, Scored, Summary, benchmark
from bas_opd.evaluate.benchmarks.summary import share
from bas_opd.evaluate.tables import NOTES, QUOTED, latex, markdown


def summary(name: str, *, correct: int = 1) -> Summary:
    number = share("accuracy", correct, 4)
    return Summary(
        benchmark=name,
        n=4,
        expected=4,
        primary=number,
        rule_only=number,
        also=(),
        deferred=0,
        unscored=0,
    )


def row(table: str, model: str) -> str:
    (line,) = [line for line in table.splitlines() if line.removeprefix("| ").startswith(model)]
    return line


def test_the_papers_rows_are_marked_as_quoted_and_a_partial_set_as_partial() -> None:
    scored = [
        Scored(id=str(n), outcome="correct" if n % 2 else "wrong", groups={"category": "x"})
        for n in range(10)
    ]
    summaries = [benchmark("vstar").summarise(scored)]
    text = markdown("my_model|1", summaries)
    assert r"| my\_model" not in text
    assert r"| my_model\|1 | 50.00 † | -" in text
    assert text.count("(quoted from the paper)") == len(QUOTED)
    assert "10 of 191 questions" in text
    table = latex("my_model & {co}", summaries)
    assert r"my\_model \& \{co\} & 50.00$^{\dagger}$ & -- &" in table
    assert table.count("(quoted)") == len(QUOTED)


def test_the_papers_rows_are_left_out_where_none_of_its_benchmarks_was_asked() -> None:
    summaries = [summary("finesearch", correct=4)]
    text, table = markdown("m", summaries), latex("m", summaries)
    assert text.splitlines()[:3] == ["| model | FineSearch |", "| --- | --: |", "| m | 100.00 |"]
    assert "quoted" not in text + table
    assert r"Model & FineSearch \\" in table
    assert r"\begin{tabular}{lc}" in table
    assert table.count("midrule") == 1


def test_the_quoted_rows_average_to_what_the_paper_states() -> None:
    # The paper prints 81.60 for its learned selector at 4B.
    assert row(latex("m", []), "BAS-OPD (4B)").endswith(r"& 81.60 \\")
    assert row(markdown("m", []), "BAS-OPD (4B)").endswith("| 81.60 |")


def test_whole_and_scored_numbers_bear_no_mark() -> None:
    summaries = [summary(name) for name in SEVEN]
    assert row(markdown("m", summaries), "m ") == f"| m | {' | '.join(['25.00'] * 8)} |"
    assert row(latex("m", summaries), "m ") == rf"m & {' & '.join(['25.00'] * 8)} \\"
    for note in NOTES.values():
        assert note not in markdown("m", summaries) + latex("m", summaries)


@pytest.mark.parametrize(
    ("change", "mark", "tex"),
    [
        ({"is_partial": True}, "†", r"\dagger"),
        ({"unscored": 1}, "‡", r"\ddagger"),
        ({"is_partial": True, "unscored": 1}, "†‡", r"\dagger\ddagger"),
    ],
)
def test_a_mark_goes_with_the_number_and_with_the_average(
    change: dict[str, int], mark: str, tex: str
) -> None:
    summaries = [summary(name) for name in SEVEN]
    summaries[2] = replace(summaries[2], **change)
    marked = [f"25.00 {mark}" if place in (2, 7) else "25.00" for place in range(8)]
    text = markdown("m", summaries)
    assert row(text, "m ") == f"| m | {' | '.join(marked)} |"
    cells = [f"25.00$^{{{tex}}}$" if place in (2, 7) else "25.00" for place in range(8)]
    table = latex("m", summaries)
    assert row(table, "m ") == rf"m & {' & '.join(cells)} \\"
    for each in mark:
        assert f"\n\n{each} {NOTES[each]}\n" in text
        assert table.count(NOTES[each]) == 1


def test_both_tables_have_finesearch_and_the_average() -> None:
    summaries = [*(summary(name) for name in SEVEN), summary("finesearch", correct=4)]
    numbers = ["25.00"] * 7 + ["100.00", "25.00"]
    assert row(markdown("m", summaries), "m ") == f"| m | {' | '.join(numbers)} |"
    table = latex("m", summaries)
    assert row(table, "m ") == rf"m & {' & '.join(numbers)} \\"
    assert row(table, "Model").endswith(r"& POPE & FineSearch & Avg. \\")
    widths = {line.count("&") for line in table.splitlines() if "&" in line}
    assert widths == {9}


def test_there_is_no_average_without_the_seven() -> None:
    assert row(markdown("m", [summary("pope")]), "m ").endswith("| 25.00 | - |")
    assert row(latex("m", [summary("pope")]), "m ").endswith(r"& 25.00 & -- \\")


def test_answers_that_were_cut_empty_or_refused_leave_a_trace() -> None:
    text = markdown("m", [replace(summary("vstar"), cut=1, empty=2, refused=3)])
    assert "25.0% cut at the limit, 50.0% empty, 75.0% refused by the server." in text


def test_a_set_of_the_right_number_in_other_parts_is_not_called_whole() -> None:
    text = markdown("m", [replace(summary("vstar"), is_partial=True)])
    assert "4 questions, not in the parts of the whole benchmark" in text


def test_a_name_from_a_dataset_steers_neither_the_terminal_nor_the_table() -> None:
    name = "\x1b]0;gone\x07 a|b\nc"
    scored = [Scored(id="1", outcome="correct", groups={"category": name})]
    text = markdown("m\x1b[2J", [benchmark("vstar").summarise(scored)])
    assert "\x1b" not in text
    assert "\x07" not in text
    assert r"| accuracy, category \x1b]0;gone\x07 a\|b c | 100.00 |" in text
    assert "\x1b" not in latex("m\x1b[2J", [])


def test_every_character_that_latex_reads_is_escaped() -> None:
    table = latex(r"\ & % $ # _ { } ~ ^ < > |", [])
    assert (
        r"\textbackslash{} \& \% \$ \# \_ \{ \} \textasciitilde{} \textasciicircum{} "
        r"\textless{} \textgreater{} \textbar{} & --"
    ) in table
