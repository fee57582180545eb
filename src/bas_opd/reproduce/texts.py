"""Tables as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bas_opd.report.costs import CostRow
from bas_opd.report.figures import Arm
from bas_opd.stats.resampling import Estimate
from bas_opd.text import markdown_table


def policy_table(arms: Sequence[Arm]) -> str:
    """Return accuracy and teacher cost of policies, in the layout of Tables 3 and 4."""
    header = ["policy", "query ratio", "token ratio", *arms[0].parts, "mean"]
    rows = [
        [
            arm.name.replace("|", r"\|"),  # it may be that of a folder
            _share(arm.budget),
            _share(arm.token_share),
            *(_points(value) for value in arm.parts.values()),
            _points(arm.mean),
        ]
        for arm in arms
    ]
    return markdown_table(header, rows)


def markdown(header: Sequence[str], rows: Iterable[CostRow]) -> str:
    """Return a table of costs, the paper's own rows marked."""
    return markdown_table(
        header,
        [
            [f"{row.cells[0]}{' (quoted from the paper)' if row.is_quoted else ''}", *row.cells[1:]]
            for row in rows
        ],
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


def _points(value: Estimate) -> str:
    reach = (value.high - value.low) / 2
    return f"{100 * value.value:.1f}" + (f" ± {100 * reach:.1f}" if reach else "")
