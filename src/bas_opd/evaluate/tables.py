"""The numbers of an evaluation as Markdown and LaTeX, in the layout of the paper's Table 1."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from bas_opd.evaluate.benchmarks import SEVEN, Measure, Summary, benchmark, overall

QUOTED: dict[str, tuple[float, ...]] = {
    # The paper's Table 1, in the order of SEVEN: quoted, not measured here.
    "Qwen3.5-4B": (84.82, 51.72, 84.38, 76.67, 87.13, 78.53, 88.28),
    "Qwen3.5-9B": (86.91, 54.56, 85.75, 83.33, 88.29, 80.93, 88.88),
    "BAS-OPD (4B)": (90.58, 59.88, 85.62, 79.33, 87.63, 79.27, 88.91),
    "BAS-OPD (9B)": (92.67, 63.08, 87.25, 83.33, 90.23, 83.07, 90.00),
}

_ESCAPED = {"\\": r"\textbackslash{}"}


def markdown(model: str, summaries: Sequence[Summary]) -> str:
    """Return the whole report: the paper's layout, then every number of every benchmark."""
    parts = [_overview(model, summaries), *(_details(summary) for summary in summaries)]
    return "\n\n".join(parts) + "\n"


def latex(model: str, summaries: Sequence[Summary]) -> str:
    """Return a table of booktabs in the paper's layout, the paper's rows marked as quoted."""
    by_name = {summary.benchmark: summary for summary in summaries}
    rows = [
        rf"{_tex(name)} (quoted) & {' & '.join(f'{value:.2f}' for value in values)} \\"
        for name, values in QUOTED.items()
    ]
    mine = [_percent(by_name[name].primary) if name in by_name else "--" for name in SEVEN]
    titles = " & ".join(_tex(benchmark(name).title) for name in SEVEN)
    lines = [
        r"\begin{tabular}{l" + "c" * len(SEVEN) + "}",
        r"\toprule",
        rf"Model & {titles} \\",
        r"\midrule",
        *rows,
        r"\midrule",
        rf"{_tex(model)} & {' & '.join(mine)} \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _overview(model: str, summaries: Sequence[Summary]) -> str:
    by_name = {summary.benchmark: summary for summary in summaries}
    names = [*SEVEN, *(name for name in by_name if name not in SEVEN)]
    header = ["model", *(benchmark(name).title for name in names), "average of seven"]
    average = overall(summaries)
    rows = [
        [model, *_cells(by_name, names), "-" if average is None else _percent(average)],
        *(
            [
                f"{name} (quoted from the paper)",
                *(f"{value:.2f}" for value in values),
                *["-"] * (len(names) - len(SEVEN)),
                f"{sum(values) / len(values):.2f}",
            ]
            for name, values in QUOTED.items()
        ),
    ]
    return _table(header, rows)


def _cells(by_name: Mapping[str, Summary], names: Sequence[str]) -> list[str]:
    cells = []
    for name in names:
        summary = by_name.get(name)
        cell = "-" if summary is None else _percent(summary.primary)
        cells.append(f"{cell} (partial)" if summary is not None and summary.is_partial else cell)
    return cells


def _details(summary: Summary) -> str:
    of = f" of {summary.expected:,}" if summary.is_partial else ""
    words = (
        f"**{benchmark(summary.benchmark).title}**: {summary.n:,}{of} questions; "
        f"{summary.deferral_rate:.1%} deferred to a judge, {summary.unscored_rate:.1%} unscored "
        "(counted as not correct)."
    )
    rows = [
        ["rule and judge", *_measure(summary.primary)],
        ["rule alone", *_measure(summary.rule_only)],
        *([f"{each.name} {each.part}".strip(), *_measure(each)] for each in summary.also),
    ]
    return f"{words}\n\n{_table(['', '%', '95 % interval', 'n'], rows)}"


def _measure(measure: Measure) -> list[str]:
    interval = "-"
    if measure.interval is not None:
        low, high = measure.interval
        interval = f"{100 * low:.1f} to {100 * high:.1f}"
    return [_percent(measure), interval, f"{measure.n:,}"]


def _percent(measure: Measure) -> str:
    return "-" if measure.value is None else f"{100 * measure.value:.2f}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] + ["--:"] * (len(header) - 1), *rows]
    return "\n".join(f"| {' | '.join(_cell(text) for text in line)} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")


def _tex(text: str) -> str:
    return re.sub(r"[\\&%$#_{}]", lambda found: _ESCAPED.get(found[0], f"\\{found[0]}"), text)
