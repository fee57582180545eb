"""The paper's tables and figures by name: what each shows, and what it is made of here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from bas_opd.audit.records import GeometryAudit, UtilityAudit
from bas_opd.errors import ConfigError, DataError
from bas_opd.report import figures
from bas_opd.report.costs import (
    ODDITIES,
    SUPERVISION_HEADER,
    TIME_HEADER,
    CostRow,
    supervision_table,
    time_table,
)
from bas_opd.report.figures import Arm
from bas_opd.report.run import Run
from bas_opd.reproduce.arms import BASE, FULL
from bas_opd.reproduce.settings import run_settings, selector_settings
from bas_opd.reproduce.texts import markdown, policy_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POLICIES = (FULL, "random25", "entropy25", "learned25")
ABLATIONS = tuple(
    f"learned25-without-{part}" for part in ("overlap", "confidence", "ranking", "exploration")
)
BUDGETS = ("learned10", "learned25", "learned50", FULL)


class Material(Protocol):
    """Where the runs behind a table come from: made on the spot, or named by the user."""

    def arms(self, names: Sequence[str]) -> tuple[list[Arm], str]:
        """Return accuracy and cost of policies, and a sentence on what they were measured on."""
        ...

    def runs(self, names: Sequence[str]) -> tuple[dict[str, Run], str]:
        """Return one run of each policy, by the name a table gives it, and what they are of."""
        ...

    def utility(self) -> list[UtilityAudit]: ...
    def geometry(self) -> GeometryAudit: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A table as Markdown, or figures by the end of their file names."""

    text: str = ""
    figures: dict[str, Figure] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One table or figure of the paper."""

    name: str
    shows: str
    arms: tuple[str, ...] = ()
    """The presets whose runs it is made of."""
    make: Callable[[Material, Sequence[str]], Made] | None = None
    absent: str = ""
    """Why it cannot be made, if it cannot."""


def item(name: str) -> Item:
    """Return an item, or say which there are."""
    for each in ITEMS:
        if each.name == name:
            return each
    raise ConfigError(
        f"The paper has no {name!r}. `bas-opd reproduce --list` shows its tables and figures."
    )


def _policies(material: Material, names: Sequence[str]) -> Made:
    arms, source = material.arms(names)
    return Made(text=f"{policy_table(arms)}\n\n{source}")


def _benchmarks(material: Material, names: Sequence[str]) -> Made:
    arms, source = material.arms(names)
    return Made(figures={"": figures.accuracy_by_part(arms, source=source)})


def _cost_plot(material: Material, names: Sequence[str]) -> Made:
    arms, source = material.arms(names)
    return Made(figures={"": figures.accuracy_cost(arms, source=source)})


def _sweep(material: Material, names: Sequence[str]) -> Made:
    arms, source = material.arms(names)
    swept = [arm for arm in arms if arm.is_full or arm.name.startswith("learned")]
    return Made(figures={"": figures.budget_sweep(swept, source=source)})


def _supervision(material: Material, names: Sequence[str]) -> Made:
    runs, source = material.runs(names)
    full = {name: runs[FULL] for name in runs if FULL in runs}
    return Made(text=_cost(SUPERVISION_HEADER, supervision_table(runs, full), source))


def _seconds(material: Material, names: Sequence[str]) -> Made:
    runs, source = material.runs(names)
    return Made(text=_cost(TIME_HEADER, time_table(runs), source))


def _cost(header: Sequence[str], rows: Sequence[CostRow], source: str) -> str:
    notes = "\n".join(f"- {oddity}" for oddity in ODDITIES)
    return f"{markdown(header, rows)}\n\nOurs: {source}\n\n{notes}"


def _utility(material: Material, names: Sequence[str]) -> Made:
    audits = material.utility()
    if not audits:
        raise DataError("The run has no utility audit. Make one with `bas-opd audit RUN`.")
    return Made(
        figures={f"-{audit.source}": figures.utility_diagnostics(audit) for audit in audits}
    )


def _geometry(material: Material, names: Sequence[str]) -> Made:
    return Made(figures={"": figures.gradient_geometry(material.geometry())})


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
        make=_benchmarks,
    ),
    Item(
        name="figure1",
        shows="the method",
        absent="it is a drawing, not a measurement: docs/loop.svg",
    ),
    Item(name="figure2", shows="accuracy over query budgets", arms=BUDGETS, make=_sweep),
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
        make=_cost_plot,
    ),
)
