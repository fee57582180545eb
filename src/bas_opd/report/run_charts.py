"""The charts of one run, from its steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from bas_opd.report.bars import calls_chart, columns, shares, stacked
from bas_opd.report.charts import Chart, Series, plot
from bas_opd.report.findings import budget_sentence
from bas_opd.report.numerals import ends_of
from bas_opd.report.run import Run
from bas_opd.report.selection import (
    Band,
    rank_bands,
    shares_by_kind,
    shares_by_length,
    utility_by_step,
)

MARKED = 40
"""Lines of more points than this are drawn without marks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionCharts:
    """What the selector did; none where the records do not say."""

    utility: Chart | None
    bands: Chart | None
    band_words: str
    kinds: Chart | None
    lengths: Chart | None


def budget_chart(run: Run) -> Chart | None:
    """Draw the calls of each step against its K."""
    if not run.steps:
        return None
    return calls_chart(
        [step.calls for step in run.steps],
        [step.budget for step in run.steps],
        label=f"Teacher calls of each step against its budget. {budget_sentence(run)}",
    )


def selection_charts(run: Run, kinds: Mapping[str, str]) -> SelectionCharts:
    """Draw what was selected and what it was worth."""
    bands = rank_bands(run.steps)
    by_kind = shares_by_kind(run.steps, kinds) if kinds and run.steps else {}
    by_length = shares_by_length(run.steps)
    names = ("of the candidates", "of the rows asked about")
    return SelectionCharts(
        utility=_utility_chart(run),
        bands=_band_chart(bands),
        band_words=_band_words(run, bands),
        kinds=shares(by_kind, label=_spoken("kind", by_kind), names=names) if by_kind else None,
        lengths=shares(by_length, label=_spoken("length", by_length), names=names)
        if by_length
        else None,
    )


def phase_chart(run: Run) -> Chart | None:
    """Draw where the time went."""
    if not run.seconds:
        return None
    seconds = run.totals["seconds"]
    spoken = ", ".join(f"{name} {100 * part / run.seconds:.1f} %" for name, part in seconds.items())
    return stacked(seconds, label=f"Share of the time in each phase: {spoken}.")


def loss_chart(run: Run) -> Chart | None:
    """Draw the loss of each step that has one."""
    points = [
        (float(number), loss)
        for number, loss in enumerate(run.losses, start=1)
        if loss is not None and math.isfinite(loss)
    ]
    if len(points) < 2:
        return None
    return plot(
        [Series(label="", style="ranked", points=points, has_marks=len(points) <= MARKED)],
        label=f"Loss of each step, from {points[0][1]:.3g} at the first to {points[-1][1]:.3g} at "
        "the last.",
        x_name="step",
        y_name="distillation loss on selected tokens",
    )


def _utility_chart(run: Run) -> Chart | None:
    steps = utility_by_step(run.steps)
    ranked = [(float(each.step), each.ranked) for each in steps if each.ranked is not None]
    drawn = [(float(each.step), each.drawn) for each in steps if each.drawn is not None]
    if len(steps) < 2:
        return None
    marks = len(steps) <= MARKED
    unranked = ("drawn at random", "explored")
    if run.policy == "full":
        unranked = ("every candidate", "plain")
    series = [
        Series(label=label, style=style, points=points, has_marks=marks)
        for label, style, points in (("chosen by score", "ranked", ranked), (*unranked, drawn))
        if points
    ]
    return plot(
        series,
        label="Mean observed utility of each step, by how its rows were chosen.",
        x_name="step",
        y_name="mean observed utility",
    )


def _band_chart(bands: tuple[Band, ...]) -> Chart | None:
    if len(bands) < 2:
        return None
    means = [band.utility.mean for band in bands]
    spoken = ", ".join(f"{band.name} {band.utility.mean:.2g}" for band in bands)
    return columns(
        [band.name for band in bands],
        means,
        [ends_of(band.utility) for band in bands],
        label=f"Mean observed utility by place in the ranking: {spoken}.",
        x_name="place in the ranking of its step",
        y_name="mean observed utility",
    )


def _band_words(run: Run, bands: tuple[Band, ...]) -> str:
    """Say which rows the bands are made of, in the terms of the run's own budget."""
    select = run.config.select
    chosen = 100 * float(select.query_ratio * (1 - select.exploration))
    rows = ", ".join(f"{band.rows:,}" for band in bands)
    return (
        f"Rows by their place in the ranking of their step ({rows} rows). The teacher was asked "
        f"about the upper {chosen:.3g} % of each step; of the rows below, only those drawn at "
        "random are known. 95 % intervals over steps."
    )


def _spoken(what: str, rows: Mapping[str, tuple[float, float]]) -> str:
    listed = "; ".join(
        f"{name} {100 * of_all:.0f} % and {100 * of_some:.0f} %"
        for name, (of_all, of_some) in rows.items()
    )
    return f"Share of the candidates and of the rows asked about, by {what}: {listed}."
