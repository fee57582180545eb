"""The paper's tables and figures by name: what each shows, and how it is made here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bas_opd.audit.records import GeometryAudit, UtilityAudit
from bas_opd.errors import ConfigError, DataError
from bas_opd.report.arms import Arm
from bas_opd.report.charts.accuracy import accuracy_by_part, accuracy_cost, budget_sweep
from bas_opd.report.charts.audits import geometry_figures, utility_figures
from bas_opd.report.charts.model import Chart
from bas_opd.report.charts.printed import printed
from bas_opd.report.costs import ODDITIES, CostTable, supervision_table, time_table
from bas_opd.report.run import Run
from bas_opd.reproduce.arms import BASE, FULL
from bas_opd.reproduce.settings import run_settings, selector_settings
from bas_opd.stats.intervals import Interval
from bas_opd.stats.resampling import Estimate
from bas_opd.text import markdown_table, plus_minus

POLICIES = (FULL, "random25", "entropy25", "learned25")
ABLATIONS = tuple(
    f"learned25-without-{part}" for part in ("overlap", "confidence", "ranking", "exploration")
)
BUDGETS = ("learned10", "learned25", "learned50", FULL)


class Material(Protocol):
    """The runs behind a table or figure: trained for it, or named by the user."""

    def arms(self, names: Sequence[str]) -> tuple[list[Arm], str]:
        """Return accuracy and cost of policies, and a sentence on what they were measured on."""
        ...

    def runs(self, names: Sequence[str]) -> tuple[dict[str, Run], str]:
        """Return one run of each policy, by its name in a table, and a sentence on them."""
        ...

    def utility(self) -> list[UtilityAudit]: ...
    def geometry(self) -> GeometryAudit: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A table as Markdown, or figures by the suffix of their file names."""

    text: str = ""
    figures: Mapping[str, str] = field(default_factory=dict)


Make = Callable[[Material, Sequence[str]], Made]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One table or figure of the paper."""

    name: str
    shows: str
    arms: tuple[str, ...] = ()
    """The presets whose runs it is made of."""
    make: Make | None = None
    absent: str = ""
    """Why it cannot be made, if it cannot."""


def item(name: str) -> Item:
    """Return an item by name."""
    for each in ITEMS:
        if each.name == name:
            return each
    raise ConfigError(
        f"The paper has no {name!r}. `bas-opd reproduce --list` shows its tables and figures."
    )


def listing() -> str:
    """Return a line for each item and the commands, as `bas-opd reproduce --list` prints them."""
    lines = [
        f"{each.name:<9}{each.shows}" + (f" - not here: {each.absent}" if each.absent else "")
        for each in ITEMS
    ]
    return "\n".join(
        (
            *lines,
            "",
            "bas-opd reproduce NAME --out DIR                FineSearch, small model; trains "
            "what is missing",
            "bas-opd reproduce NAME --out DIR --run RUN ...  from your own runs",
            "bas-opd reproduce NAME --out DIR --scale paper  the commands for Qwen3.5-4B",
            "bas-opd reproduce policies --out DIR            every policy and ablation in a table",
        )
    )


def policy_table(arms: Sequence[Arm]) -> str:
    """Return accuracy and teacher cost of policies, in the layout of Tables 3 and 4."""
    header = ["policy", "query ratio", "token ratio", *arms[0].parts, "mean"]
    rows = [
        [
            arm.name.replace("|", r"\|"),  # it may be the name of a folder
            *(
                "-" if each is None else f"{100 * each:.2f}"
                for each in (arm.budget, arm.token_share)
            ),
            *(_points(value) for value in (*arm.parts.values(), arm.mean)),
        ]
        for arm in arms
        for ratios in [(arm.budget, arm.token_share)]
    ]
    return markdown_table(header, rows)


def _points(value: Estimate) -> str:
    reach = (value.high - value.low) / 2
    return plus_minus(Interval(mean=value.value, half_width=reach, n=1), ".1f", 100)


def _policies(material: Material, names: Sequence[str]) -> Made:
    arms, source = material.arms(names)
    return Made(text=f"{policy_table(arms)}\n\n{source}")


def _of_arms(draw: Callable[[Sequence[Arm]], Chart]) -> Make:
    """Return how a figure is made that `draw` describes."""

    def make(material: Material, names: Sequence[str]) -> Made:
        arms, source = material.arms(names)
        chart = draw(arms)
        return Made(figures={"": printed([chart], note=f"{chart.caption} {source}".strip())})

    return make


def _sweep(arms: Sequence[Arm]) -> Chart:
    return budget_sweep([arm for arm in arms if arm.policy in ("full", "learned")])


def _supervision(material: Material, names: Sequence[str]) -> Made:
    runs, source = material.runs(names)
    full = {name: runs[FULL] for name in runs if FULL in runs}
    return Made(text=_cost(supervision_table(runs, full), source))


def _seconds(material: Material, names: Sequence[str]) -> Made:
    runs, source = material.runs(names)
    return Made(text=_cost(time_table(runs), source))


def _cost(table: CostTable, source: str) -> str:
    quoted = [(f"{name} (quoted from the paper)", *cells) for name, *cells in table.quoted]
    notes = "\n".join(f"- {oddity}" for oddity in ODDITIES)
    return f"{markdown_table(table.header, [*table.rows, *quoted])}\n\nOurs: {source}\n\n{notes}"


def _utility(material: Material, names: Sequence[str]) -> Made:
    found = [utility_figures(audit) for audit in material.utility()]
    if not found:
        raise DataError("The run has no utility audit. Make one with `bas-opd audit RUN`.")
    made = {}
    for each in found:
        if not each.figure:
            raise DataError(each.words)
        made[f"-{each.source}"] = printed(each.figure, note=f"{each.words} {each.teacher}")
    return Made(figures=made)


def _geometry(material: Material, names: Sequence[str]) -> Made:
    found = geometry_figures(material.geometry())
    (chart,) = found.figure
    note = f"{chart.caption} {found.words} {found.teacher}"
    return Made(figures={"": printed([chart], note=note)})


ITEMS = (
    Item(
        name="table1",
        shows="accuracy against other models on seven benchmarks",
        absent="other models are not trained here; `bas-opd eval RUN` fills a model's own row and "
        "quotes the paper's",
    ),
    Item(
        name="table2",
        shows="accuracy against SFT, GRPO, DAPO and OPSD",
        absent="the baselines do not exist yet",
    ),
    Item(
        name="table3",
        shows="policies: accuracy and teacher cost",
        arms=(BASE, *POLICIES),
        make=_policies,
    ),
    Item(
        name="table4",
        shows="ablations of the learned selector",
        arms=("learned25", *ABLATIONS),
        make=_policies,
    ),
    Item(
        name="table5",
        shows="settings of the selector",
        make=lambda material, names: Made(text=selector_settings()),
    ),
    Item(
        name="table6",
        shows="settings of the four runs",
        make=lambda material, names: Made(text=run_settings(POLICIES)),
    ),
    Item(
        name="table7",
        shows="candidates, calls, scored tokens, overrun",
        arms=POLICIES,
        make=_supervision,
    ),
    Item(name="table8", shows="seconds of teacher and step", arms=POLICIES, make=_seconds),
    Item(
        name="figure0",
        shows="accuracy over benchmarks, above the abstract",
        arms=(BASE, *POLICIES),
        make=_of_arms(accuracy_by_part),
    ),
    Item(
        name="figure1",
        shows="the method",
        absent="it is a drawing, not a measurement: docs/loop.svg",
    ),
    Item(name="figure2", shows="accuracy over query budgets", arms=BUDGETS, make=_of_arms(_sweep)),
    Item(name="figure3", shows="utility captured, and by rank", arms=("learned25",), make=_utility),
    Item(
        name="figure4",
        shows="gradients of selected and unselected rows",
        arms=("learned25",),
        make=_geometry,
    ),
    Item(
        name="figure5",
        shows="accuracy over cost",
        arms=(BASE, *POLICIES),
        make=_of_arms(accuracy_cost),
    ),
)
