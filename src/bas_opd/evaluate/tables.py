"""The numbers of an evaluation as Markdown and LaTeX, in the layout of the paper's Table 1."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from statistics import fmean

from bas_opd.evaluate.benchmarks import SEVEN, Measure, Summary, benchmark, overall
from bas_opd.text import ends_text, markdown_table, printable

QUOTED: dict[str, tuple[float, ...]] = {
    # The paper's Table 1, in the order of SEVEN: quoted, not measured here.
    "Qwen3.5-4B": (84.82, 51.72, 84.38, 76.67, 87.13, 78.53, 88.28),
    "Qwen3.5-9B": (86.91, 54.56, 85.75, 83.33, 88.29, 80.93, 88.88),
    "BAS-OPD (4B)": (90.58, 59.88, 85.62, 79.33, 87.63, 79.27, 88.91),
    "BAS-OPD (9B)": (92.67, 63.08, 87.25, 83.33, 90.23, 83.07, 90.00),
}
NOTES = {
    "†": "Not the whole benchmark.",
    "‡": "Some answers are unscored, and count as not correct.",
}

_TEX = {
    "†": r"\dagger",
    "‡": r"\ddagger",
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}


def markdown(model: str, summaries: Sequence[Summary]) -> str:
    """Return the whole report: the paper's table, then every number of every benchmark."""
    titles, cells, quoted = _overview(summaries)
    rows = [
        [_line(model), *cells],
        *([f"{name} (quoted from the paper)", *row] for name, row in quoted.items()),
    ]
    notes = "".join(f"\n\n{note}" for note in _notes(summaries, cells))
    header = ["model", *titles, "average of seven"][: len(cells) + 1]
    overview = _table(header, rows) + notes
    return "\n\n".join([overview, *map(_details, summaries)]) + "\n"


def latex(model: str, summaries: Sequence[Summary]) -> str:
    """Return a booktabs table in the paper's layout; the paper's rows are marked as quoted."""
    titles, cells, quoted = _overview(summaries)
    width = len(cells) + 1
    lines = [
        r"\begin{tabular}{l" + "c" * (width - 1) + "}",
        r"\toprule",
        _tex_row("Model", [*map(_tex, titles), "Avg."][: len(cells)]),
        r"\midrule",
        *(_tex_row(f"{name} (quoted)", map(_tex_number, row)) for name, row in quoted.items()),
        *([r"\midrule"] if quoted else []),
        _tex_row(_line(model), map(_tex_number, cells)),
        r"\bottomrule",
        *(
            rf"\multicolumn{{{width}}}{{l}}{{\footnotesize {_tex_note(note)}}} \\"
            for note in _notes(summaries, cells)
        ),
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _overview(summaries: Sequence[Summary]) -> tuple[list[str], list[str], dict[str, list[str]]]:
    """Return the titles of the columns but the last, the model's cells, and the paper's rows.

    The columns are the seven benchmarks, any others, and the average of the seven. Where none of
    the seven was asked, there is nothing to set beside the paper's rows, and they are left out.
    """
    by_name = {summary.benchmark: summary for summary in summaries}
    others = [name for name in by_name if name not in SEVEN]
    is_papers = not summaries or len(others) < len(by_name)
    names = [*(SEVEN if is_papers else ()), *others]
    average = overall(summaries)
    cells = [
        _marked(by_name[name].primary, [by_name[name]]) if name in by_name else "-"
        for name in names
    ]
    if not is_papers:
        return [benchmark(name).title for name in names], cells, {}
    cells.append("-" if average is None else _marked(average, [by_name[name] for name in SEVEN]))
    quoted = {
        name: [*(f"{value:.2f}" for value in values), *"-" * len(others), f"{fmean(values):.2f}"]
        for name, values in QUOTED.items()
    }
    return [benchmark(name).title for name in names], cells, quoted


def _marked(measure: Measure, behind: Sequence[Summary]) -> str:
    """Return a number with the marks of all summaries behind it, as in "50.00 †"."""
    partial = "†" if any(each.is_partial for each in behind) else ""
    unscored = "‡" if any(each.unscored for each in behind) else ""
    return f"{_percent(measure)} {partial}{unscored}".strip()


def _notes(summaries: Sequence[Summary], cells: Sequence[str]) -> list[str]:
    """Return which number stands for each benchmark, and what the marks mean."""
    names = [f"{benchmark(each.benchmark).title} {each.primary.label}" for each in summaries]
    marks = [f"{mark} {NOTES[mark]}" for mark in NOTES if any(mark in cell for cell in cells)]
    return [*([f"In %: {', '.join(names)}."] if names else []), *marks]


def _details(summary: Summary) -> str:
    words = (
        f"**{benchmark(summary.benchmark).title}**: {_count(summary)}; "
        f"{summary.deferral_rate:.1%} deferred to a judge, {summary.unscored_rate:.1%} unscored "
        f"(counted as not correct); {summary.rate(summary.cut):.1%} cut at the limit, "
        f"{summary.rate(summary.empty):.1%} empty, {summary.rate(summary.refused):.1%} refused by "
        "the server."
    )
    rows = [
        [summary.primary.label, *_measure(summary.primary)],
        [f"{summary.rule_only.label}, by rule alone", *_measure(summary.rule_only)],
        *([each.label, *_measure(each)] for each in summary.also),
    ]
    return f"{words}\n\n{_table(['', '%', '95 % interval', 'n'], rows)}"


def _count(summary: Summary) -> str:
    if not summary.is_partial:
        return f"{summary.n:,} questions"
    if summary.n == summary.expected:
        return f"{summary.n:,} questions, not in the parts of the whole benchmark"
    return f"{summary.n:,} of {summary.expected:,} questions"


def _measure(measure: Measure) -> list[str]:
    return [_percent(measure), ends_text(measure.interval) or "-", f"{measure.n:,}"]


def _percent(measure: Measure) -> str:
    return "-" if measure.value is None else f"{100 * measure.value:.2f}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    first, *rest = ([_cell(text) for text in line] for line in (header, *rows))
    return markdown_table(first, rest)


def _cell(text: str) -> str:
    """Escape text of a dataset, which must not control the terminal or break the table."""
    return _line(text).replace("|", r"\|")


def _line(text: str) -> str:
    return printable(text).replace("\n", " ")


def _tex_row(label: str, cells: Iterable[str]) -> str:
    return rf"{' & '.join([_tex(label), *cells])} \\"


def _tex_number(cell: str) -> str:
    number, _, marks = cell.partition(" ")
    return ("--" if number == "-" else number) + (_tex_marks(marks) if marks else "")


def _tex_note(note: str) -> str:
    mark, _, words = note.partition(" ")
    return f"{_tex_marks(mark)} {words}" if mark in NOTES else _tex(note)


def _tex_marks(marks: str) -> str:
    return f"$^{{{''.join(_TEX[mark] for mark in marks)}}}$"


def _tex(text: str) -> str:
    return re.sub(r"[\\&%$#_{}~^<>|]", lambda found: _TEX.get(found[0], f"\\{found[0]}"), text)
