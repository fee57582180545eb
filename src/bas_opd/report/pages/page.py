"""The page of a run, or of several: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from bas_opd import __version__
from bas_opd.audit.summary import ANGLES, RANKINGS
from bas_opd.config.loading import dump, flat
from bas_opd.config.schema import Config, DataConfig, ModelConfig
from bas_opd.report.arms import PATHS
from bas_opd.report.charts import training
from bas_opd.report.charts.steps import shown_step, step_drawing
from bas_opd.report.comparison import RunComparison, findings, headline
from bas_opd.report.costs import (
    ODDITIES,
    SUPERVISION_HEADER,
    TIME_HEADER,
    TOKENS_HEADER,
    supervision_table,
    time_table,
    token_table,
)
from bas_opd.report.findings import (
    AuditFigures,
    budget_sentence,
    interval_text,
    not_run,
    result,
    stale_sentence,
    tiles,
    value_text,
)
from bas_opd.report.pages.examples import shown_examples
from bas_opd.report.pages.templates import template
from bas_opd.report.run import Run
from bas_opd.report.selection import learns, reach
from bas_opd.run.verify import Verification
from bas_opd.text import clock, percent, plus_minus, points
from bas_opd.types import Example


def run_page(
    run: Run, checked: Verification, audits: AuditFigures, examples: Mapping[str, Example]
) -> str:
    """Return the page of one run; `examples` are those it was trained on, if available."""
    kinds = {name: example.kind for name, example in examples.items()}
    return template("run.html.jinja").render(
        version=__version__,
        run=run,
        checked=checked,
        result=result(run),
        tiles=tiles(run),
        budget=budget_sentence(run),
        budget_chart=training.budget_chart(run),
        selection=training.selection_charts(run, kinds),
        reach=reach(run.steps),
        is_learning=learns(run),
        drawing=step_drawing(shown_step(run.steps), policy=run.config.select.policy)
        if run.steps
        else None,
        audits=audits,
        angles=ANGLES,
        stale=stale_sentence(run),
        phases=phases(run),
        phase_chart=training.phase_chart(run),
        loss_chart=training.loss_chart(run),
        supervision=supervision_table({run.policy: run}),
        times=time_table({run.policy: run}),
        has_examples=bool(examples),
        shown=shown_examples(run, examples),
        not_run=list(not_run(run, checked)),
        environment=environment(run),
        settings=settings(run),
        **_words(),
    )


def comparison_page(
    comparison: RunComparison,
    checked: Mapping[str, Verification],
    audits: Mapping[str, AuditFigures],
) -> str:
    """Return the page of several runs; `checked` and `audits` are by label."""
    runs = {entry.label: entry.run for entry in comparison.entries}
    full = {entry.label: entry.full for entry in comparison.entries if entry.full is not None}
    whole = {label: run for label, run in runs.items() if run.policy == "full"}
    return template("comparison.html.jinja").render(
        version=__version__,
        comparison=comparison,
        checked=checked,
        result=headline(comparison),
        findings=findings(comparison),
        groups=[
            (
                group.name,
                len(group.members),
                plus_minus(group.accuracy, ".1f", 100) if group.accuracy else "-",
                plus_minus(group.total("scored_tokens"), ",.0f"),
                plus_minus(group.total("processed_tokens"), ",.0f"),
                plus_minus(group.seconds, ",.1f"),
            )
            for group in comparison.groups
        ],
        contrasts=[
            (f"{each.a} - {each.b}", each.difference.n, *points(each.difference))
            for each in comparison.contrasts
        ],
        plot=training.cost_chart(comparison.entries),
        budget_charts={label: training.budget_chart(run) for label, run in runs.items()},
        budgets={label: budget_sentence(run) for label, run in runs.items()},
        phase_charts={label: training.phase_chart(run) for label, run in runs.items()},
        phases={label: phases(run) for label, run in runs.items()},
        utilities=training.utilities_chart(comparison.entries),
        audited=[(label, each) for label, those in audits.items() for each in those.utility],
        rankings=RANKINGS,
        tokens_header=TOKENS_HEADER,
        tokens=token_table(runs, {**full, **whole}),
        supervision=supervision_table(runs, full),
        times=time_table(runs),
        environments={label: environment(run) for label, run in runs.items()},
        differing=differing_settings(runs),
        **_words(),
    )


def _words() -> dict[str, Any]:
    """What the templates of both pages use."""
    return {
        "supervision_header": SUPERVISION_HEADER,
        "time_header": TIME_HEADER,
        "oddities": ODDITIES,
        "percent": percent,
        "clock": clock,
        "value_text": value_text,
        "interval_text": interval_text,
        "points": points,
    }


def phases(run: Run) -> list[tuple[str, str, str, str]]:
    """Return name, seconds, share and mean per step of each phase, in the order of a step."""
    steps = len(run.steps) or 1
    return [
        (name, f"{seconds:,.1f} s", percent(seconds, run.seconds), f"{seconds / steps:,.3f} s")
        for name, seconds in run.totals["seconds"].items()
    ]


def environment(run: Run) -> dict[str, str]:
    """Return what the numbers of a run depend on besides its settings."""
    started = run.started
    known = started.environment
    packages = known.get("packages")
    versions = packages.items() if isinstance(packages, dict) else ()
    return {
        "settings hash": started.config_hash,
        "base model": f"{_short(run.config.model.path)}, weights {started.base[:16]}",
        "data": f"{_short(started.data.folder)}, {started.data.examples:,} examples, fingerprint "
        f"{started.data.fingerprint[:16]}",
        "device": f"{known.get('gpu') or started.device}, {started.precision}",
        "machine": f"{known.get('platform')}, {known.get('threads')} threads",
        "python": str(known.get("python")),
        "packages": ", ".join(f"{name} {version}" for name, version in versions),
        "resumed": ", ".join(f"after step {step:,}" for step in run.resumed) or "never",
    }


def settings(run: Run) -> list[tuple[str, str, str]]:
    """Return key, value and default of every setting; paths have no default."""
    plain = Config(model=ModelConfig(path="-"), data=DataConfig(path="-"))
    defaults = flat(dump(plain))
    return [
        (key, _short(value), "")
        if key in PATHS and value
        else (key, _written(value), "" if key in PATHS else _written(defaults[key]))
        for key, value in flat(dump(run.config)).items()
    ]


def differing_settings(runs: dict[str, Run]) -> dict[str, tuple[str, ...]]:
    """Return the settings in which runs differ, with the value of each run."""
    written = [{key: value for key, value, _ in settings(run)} for run in runs.values()]
    return {
        key: values
        for key in written[0]
        if key not in PATHS and len(set(values := tuple(each[key] for each in written))) > 1
    }


def _written(value: Any) -> str:
    return "unset" if value is None else str(value)


def _short(path: str) -> str:
    """Return the end of a path: a page that is sent on shows no folders of its writer."""
    parts = PurePath(path).parts
    return "/".join(("…", *parts[-2:])) if len(parts) > 2 else path
