"""The paper's tables and figures by name: what each shows, and how it is made here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bas_opd import disk
from bas_opd.errors import ConfigError, DataError
from bas_opd.evaluate.benchmarks.summary import EVERY_QUESTION
from bas_opd.files import write_text
from bas_opd.report.arms import Arm
from bas_opd.report.charts.accuracy import (
    accuracy_by_part,
    accuracy_cost,
    accuracy_total,
    budget_sweep,
)
from bas_opd.report.charts.audits import geometry_figures, utility_figures
from bas_opd.report.charts.model import Chart
from bas_opd.report.charts.printed import check_printing, printed, save
from bas_opd.report.costs import ODDITIES, CostTable, supervision_table, time_table, token_table
from bas_opd.reproduce.arms import BASE, BASELINES, FULL, OURS
from bas_opd.reproduce.material import Material, arms_of_results, source_of
from bas_opd.reproduce.policies import Request, reproduce
from bas_opd.reproduce.results import read_results
from bas_opd.reproduce.settings import instructions, run_settings, selector_settings
from bas_opd.reproduce.study import STUDY, read_study
from bas_opd.reproduce.table import folder_table, results_folder, study_of
from bas_opd.run.progress import Progress
from bas_opd.stats.intervals import Interval
from bas_opd.stats.resampling import Estimate
from bas_opd.text import markdown_table, plus_minus

STUDIES = Path(__file__).parent
METHODS = tuple(arm.name for arm in BASELINES)
POLICIES = (FULL, "random25", "entropy25", "learned25")
ABLATIONS = tuple(
    f"learned25-without-{part}" for part in ("overlap", "confidence", "ranking", "exploration")
)
BUDGETS = ("learned10", "learned25", "learned50", FULL)
EXTRA = tuple(arm.name for arm in OURS if arm.name != "regressed25")
"""Arms that the paper does not have; they are shown where there are results of them."""


Made = str | Mapping[str, str]
"""A table as Markdown, or figures (SVG) by the suffix of their file names."""
Make = Callable[[Material, Sequence[str]], Made]


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One table or figure of the paper."""

    shows: str
    arms: tuple[str, ...] = ()
    """The presets whose runs it is made of."""
    make: Make | None = None
    study: str = ""
    """The file beside this module whose runs it is made of, unless others are given."""
    absent: str = ""
    """Why it cannot be made, if it cannot."""


def make_item(
    name: str,
    request: Request,
    progress: Progress,
    *,
    runs: tuple[Path, ...] = (),
    results: Path | None = None,
) -> str:
    """Make a table or figure and return what to print: the table, or the files of the figures.

    It is made from `runs` or from kept `results` if they are given, else from new runs.
    """
    if name not in ITEMS:
        raise ConfigError(
            f"The paper has no {name!r}. `bas-opd reproduce --list` shows its tables and figures."
        )
    wanted = ITEMS[name]
    if wanted.make is None:
        raise ConfigError(f"{name} ({wanted.shows}) cannot be made: {wanted.absent}.")
    if request.scale == "paper" and wanted.arms and not runs and results is None:
        return instructions(name, wanted.arms)
    if wanted.study and results is not None and (results / STUDY).exists():
        return folder_table(results)
    if wanted.study and not runs and results is None:
        return _studied(name, wanted.study, request, progress)
    # First what could fail after hours of training.
    disk.make_folder(request.out, parents=True, exist_ok=True)
    if name.startswith("figure"):
        check_printing()
    material = Material(request=request, progress=progress, paths=runs, results=results)
    made = wanted.make(material, wanted.arms)
    if isinstance(made, str):
        write_text(request.out / f"{name}.md", f"{made}\n")
        return made
    return "\n".join(
        str(file)
        for suffix, figure in made.items()
        for file in save(figure, request.out / f"{name}{suffix}")
    )


def _studied(name: str, file: str, request: Request, progress: Progress) -> str:
    """Make an item by its study, as the file declares it."""
    plain = Request(out=request.out)
    for what in ("base", "train_n", "test_n", "seeds", "overrides"):
        if getattr(request, what) != getattr(plain, what):
            option = "KEY=VALUE" if what == "overrides" else f"--{what.replace('_', '-')}"
            raise ConfigError(
                f"{name} is a study, declared in {STUDIES / file}, which leaves no room for "
                f"{option}. Copy and change it, and run `bas-opd reproduce study COPY --out DIR`."
            )
    study = Request.of_study(
        read_study(STUDIES / file),
        out=request.out,
        jobs=request.jobs,
        device=request.device,
        data=request.data,
        confirm=request.confirm,
    )
    return reproduce(study, progress)


def listing() -> str:
    """Return a line for each item and the commands, as `bas-opd reproduce --list` prints them."""
    lines = [
        f"{name:<9}{each.shows}" + (f" - not here: {each.absent}" if each.absent else "")
        for name, each in ITEMS.items()
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
            "bas-opd reproduce study STUDY.toml --out DIR    arms, seeds and comparisons of a file",
        )
    )


def cost_figure(folder: Path) -> str:
    """Draw accuracy and total tokens of every arm that has results in a folder, as SVG."""
    folder = results_folder(folder)
    results = read_results(folder)
    arms = arms_of_results(results)
    if (study := study_of(folder)) is not None:
        order = [arm.name for arm in study.arms]
        arms.sort(key=lambda arm: order.index(arm.name))
    chart = accuracy_total(arms)
    return printed([chart], note=f"{chart.caption} {source_of(results)}".strip())


def policy_table(arms: Sequence[Arm]) -> str:
    """Return accuracy and teacher cost of policies, in the layout of Tables 3 and 4."""
    shares = {"query ratio": "budget", "token ratio": "token_share", "total ratio": "total_share"}
    if all(arm.total_share is None for arm in arms):  # kept results of version 0.1
        del shares["total ratio"]
    header = ["policy", *shares, *arms[0].parts, arms[0].metric]
    has_beside = any(arm.beside for arm in arms)
    rows = [
        [
            arm.name.replace("|", r"\|"),  # it may be the name of a folder
            *(
                "-" if each is None else f"{100 * each:.2f}"
                for each in (getattr(arm, name) for name in shares.values())
            ),
            *(_points(value) for value in (*arm.parts.values(), arm.accuracy)),
            *([_points(arm.beside) if arm.beside else "-"] if has_beside else []),
        ]
        for arm in arms
    ]
    return markdown_table([*header, *([EVERY_QUESTION] if has_beside else [])], rows)


def _points(value: Estimate) -> str:
    reach = (value.high - value.low) / 2
    return plus_minus(Interval(mean=value.value, half_width=reach, n=1), ".1f", 100)


def _policies(material: Material, names: Sequence[str]) -> Made:
    arms, source = material.arms(names, EXTRA)
    return f"{policy_table(arms)}\n\n{source}"


def _of_arms(draw: Callable[[Sequence[Arm]], Chart]) -> Make:
    """Return how a figure is made that `draw` describes."""

    def make(material: Material, names: Sequence[str]) -> Made:
        arms, source = material.arms(names, EXTRA)
        chart = draw(arms)
        return {"": printed([chart], note=f"{chart.caption} {source}".strip())}

    return make


def _sweep(arms: Sequence[Arm]) -> Chart:
    return budget_sweep([arm for arm in arms if arm.policy == "learned" or arm.name == FULL])


def _supervision(material: Material, names: Sequence[str]) -> Made:
    runs, source = material.runs(names)
    full = {name: runs[FULL] for name in runs if FULL in runs}
    tokens = token_table(runs, full)
    parts = (
        _cost(supervision_table(runs, full), source),
        "All tokens, prompts included:",
        markdown_table(tokens.header, tokens.rows),
    )
    return "\n\n".join(parts)


def _seconds(material: Material, names: Sequence[str]) -> Made:
    runs, source = material.runs(names)
    return _cost(time_table(runs), source)


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
    return made


def _geometry(material: Material, names: Sequence[str]) -> Made:
    found = geometry_figures(material.geometry())
    (chart,) = found.figure
    note = f"{chart.caption} {found.words} {found.teacher}"
    return {"": printed([chart], note=note)}


ITEMS: Mapping[str, Item] = {
    "table1": Item(
        shows="accuracy against other models on seven benchmarks",
        absent="other models are not trained here; `bas-opd eval RUN` fills a model's own row and "
        "quotes the paper's",
    ),
    "table2": Item(
        shows="accuracy against SFT, GRPO, DAPO and OPSD",
        arms=(BASE, *METHODS, FULL, "learned25"),
        make=_policies,
        study="table2.toml",
    ),
    "table3": Item(
        shows="policies: accuracy and teacher cost", arms=(BASE, *POLICIES), make=_policies
    ),
    "table4": Item(
        shows="ablations of the learned selector", arms=("learned25", *ABLATIONS), make=_policies
    ),
    "table5": Item(
        shows="settings of the selector", make=lambda material, names: selector_settings()
    ),
    "table6": Item(
        shows="settings of the four runs", make=lambda material, names: run_settings(POLICIES)
    ),
    "table7": Item(
        shows="candidates, calls, scored tokens, overrun", arms=POLICIES, make=_supervision
    ),
    "table8": Item(shows="seconds of teacher and step", arms=POLICIES, make=_seconds),
    "figure0": Item(
        shows="accuracy over benchmarks, above the abstract",
        arms=(BASE, *POLICIES),
        make=_of_arms(accuracy_by_part),
    ),
    "figure1": Item(shows="the method", absent="it is a drawing, not a measurement: docs/loop.svg"),
    "figure2": Item(shows="accuracy over query budgets", arms=BUDGETS, make=_of_arms(_sweep)),
    "figure3": Item(shows="utility captured, and by rank", arms=("learned25",), make=_utility),
    "figure4": Item(
        shows="gradients of selected and unselected rows", arms=("learned25",), make=_geometry
    ),
    "figure5": Item(
        shows="accuracy over cost", arms=(BASE, *POLICIES), make=_of_arms(accuracy_cost)
    ),
}
