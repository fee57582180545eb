"""Tables as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bas_opd.audit.resampling import Estimate
from bas_opd.report.costs import CostRow
from bas_opd.report.figures import Arm


def policy_table(arms: Sequence[Arm]) -> str:
    """Return accuracy and teacher cost of policies, in the layout of Tables 3 and 4."""
    header = ["policy", "query ratio", "token ratio", *arms[0].parts, "mean"]
    rows = [
        [
            arm.name,
            _share(arm.budget),
            _share(arm.token_share),
            *(_points(value) for value in arm.parts.values()),
            _points(arm.mean),
        ]
        for arm in arms
    ]
    return lines(header, rows)


def markdown(header: Sequence[str], rows: Iterable[CostRow]) -> str:
    """Return a table of costs, the paper's own rows marked."""
    return lines(
        header,
        [
            [f"{row.cells[0]}{' (quoted from the paper)' if row.is_quoted else ''}", *row.cells[1:]]
            for row in rows
        ],
    )


def lines(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lay out a table whose columns but the first hold numbers."""
    table = [header, ["---", *["--:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in table)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


def _points(value: Estimate) -> str:
    reach = (value.high - value.low) / 2
    return f"{100 * value.value:.1f}" + (f" ± {100 * reach:.1f}" if reach else "")
