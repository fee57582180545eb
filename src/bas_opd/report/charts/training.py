"""The charts of training runs, from their steps, and the drawing of a single step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from bas_opd.report.arms import Arm, Entry, estimate_of
from bas_opd.report.charts.accuracy import accuracy_cost, policy_style
from bas_opd.report.charts.model import (
    PARTS,
    Axis,
    Bar,
    Chart,
    Key,
    Line,
    Mark,
    Panel,
    Point,
    Shape,
    axis,
    column_chart,
    line_chart,
    named_rows,
    neighbours,
    percent_tick,
    row_bars,
    short_number,
    value_axis,
)
from bas_opd.report.findings import budget_sentence
from bas_opd.report.run import Run
from bas_opd.report.selection import (
    Band,
    drawn_rows,
    rank_bands,
    shares_by_kind,
    shares_by_length,
    utility_by_step,
)
from bas_opd.run.curves import CURVES, drawn_curves
from bas_opd.run.record import GenerationRecord, QueryRecord
from bas_opd.select.rules import PolicyRule
from bas_opd.text import counted, ends_of, percent

CELL = 14
"""Pixels of a page for each rollout, in both directions."""
STATES = {
    "ranked": "asked, chosen by score",
    "every": "asked, as every candidate",
    "explored": "asked, drawn at random",
    "passed-over": "not asked",
    "no-crop": "cannot be asked",
}
SELECTION_CURVES = ("utility/ranked", "utility/explored")
"""Drawn together, where a page shows what was selected."""
PHASES = {
    "rollout": 0,
    "select": 1,
    "reward": 1,
    "teacher": 2,
    "reference": 2,
    "student": 3,
    "ema": 4,
    "learn": 5,
}
"""Phase -> its colour, the same for every method."""
LEAST_SECONDS = 5e-4
"""Of a phase in a step; one that took less is not shown."""
COMPARED = ("reward/mean", "reward/right", "policy/kl", "gradient_norm", "response_tokens")
"""Curves of which several runs share a chart."""
SHARE_BARS = {"of the candidates": "faded", "of the rows asked about": "ranked"}


def budget_chart(run: Run) -> Chart | None:
    """Draw what each step used as a column, and its K as the line they must not cross."""
    queries = run.queries
    if not queries:
        return None
    groups = neighbours(range(len(queries)))
    gap = 0.15 if len(groups) < 60 else 0.05
    bars: list[Shape] = []
    edge = []
    for group in groups:
        # Of several steps, the one that comes nearest to its budget, or exceeds it most.
        place = max(group, key=lambda at: queries[at].used - queries[at].budget)
        step, low, high = queries[place], group[0] + 0.5, group[-1] + 1.5
        inset = gap * len(group)
        bars.append(
            Bar(
                x=(low + inset, high - inset),
                y=(0.0, step.used),
                style="ranked" if step.used <= step.budget else "over",
                title=f"step {place + 1:,}: {step.used:,} of {step.budget:,}",
            )
        )
        edge += [(low, step.budget), (high, step.budget)]
    highest = max(max(step.used, step.budget) for step in queries)
    unit = run.select.budget.replace("_", " ")
    return Chart(
        title=f"{unit.capitalize()} against K, step by step",
        label=f"Teacher {unit} of each step against its budget. {budget_sentence(run)}",
        panels=(
            Panel(
                x=axis("step", (0.5, len(run.queries) + 0.5), whole=True),
                y=value_axis(f"teacher {unit}", [0, math.ceil(1.04 * highest)]),
                shapes=(*bars, Line(points=tuple(edge), style="edge")),
            ),
        ),
        keys=(
            Key(label=f"teacher {unit}", style="ranked", forms=("bar",)),
            Key(label="budget K", style="edge", forms=("line",)),
        ),
        caption=""
        if len(groups) == len(queries)
        else f"A column is the step of {len(groups[0]):,} that comes nearest to its K.",
    )


def selection_charts(run: Run, kinds: Mapping[str, str]) -> list[Chart]:
    """Draw what was selected and its utility, as far as recorded; `kinds` are by example."""
    by_kind = shares_by_kind(run.queries, kinds) if kinds and run.queries else {}
    charts = (
        _utility_chart(run),
        _band_chart(run, rank_bands(run.queries)),
        _share_chart("Which kinds of question", "kind", by_kind),
        _share_chart("Which lengths of answer", "length", shares_by_length(run.queries)),
    )
    return [chart for chart in charts if chart is not None]


def shown_step(steps: Sequence[QueryRecord]) -> QueryRecord:
    """Return the last step whose rows were chosen by prediction, or else the last."""
    return next((step for step in reversed(steps) if step.is_ranked), steps[-1])


def step_drawing(step: QueryRecord, rule: PolicyRule) -> Chart:
    """Draw a step of a run with that policy."""
    utility = dict(zip(step.selected, step.utility, strict=True))
    largest = max((*(value for value in utility.values() if value is not None), 1e-12))
    marks = []
    for row, state in enumerate(_states(step, rule)):
        column, place = divmod(row, step.per_prompt)
        observed = utility.get(row)
        # The area of a mark follows the utility, but one near zero can still be seen.
        grown = math.sqrt(max(0.0, observed or 0.0) / largest)
        marks.append(
            Mark(
                at=(column + 0.5, -place - 0.5),
                style=state,
                title=_title(step, row, observed, rule),
                size=0.5 if state == "passed-over" else 0.7 + 1.25 * grown,
            )
        )
    used = {mark.style for mark in marks}
    panel = Panel(
        x=Axis(high=len(step.examples)), y=Axis(low=-step.per_prompt, high=0), shapes=tuple(marks)
    )
    return Chart(
        title="One step",
        label=_sentence(step, utility, rule),
        panels=(panel,),
        keys=tuple(
            Key(label=words, style=state, forms=("mark",))
            for state, words in STATES.items()
            if state in used
        ),
        caption="A column is one question, a mark one of its sampled answers; the larger the mark, "
        "the higher its utility.",
        width=len(step.examples) * CELL,
        height=step.per_prompt * CELL,
    )


def run_cost_chart(run: Run) -> Chart | None:
    """Draw accuracy and cost of one run and the accuracy of its base; none if not evaluated.

    Cost is what was saved by asking less, so a method that selects nothing has none.
    """
    if not run.selects:
        return None
    evaluations = {"base": run.before, run.policy: run.own_evaluation}
    arms = []
    for name, evaluation in evaluations.items():
        if evaluation is None or len(evaluation.results) != 1:
            continue
        measure = evaluation.results[0].summary.primary
        if (reached := estimate_of(measure)) is not None:
            is_base = name == "base"
            full = run.totals["candidate_tokens"]
            arms.append(
                Arm(
                    name=name,
                    policy="" if is_base else run.config.select.policy,
                    budget=None if is_base else float(run.config.select.query_ratio),
                    parts={},
                    accuracy=reached,
                    metric=measure.name,
                    token_share=None if is_base else run.totals["scored_tokens"] / max(1, full),
                )
            )
    return accuracy_cost(arms) if any(arm.budget is not None for arm in arms) else None


def shown_phases(run: Run) -> dict[str, float]:
    """Return the seconds of each phase that took any time, in the order of a step."""
    steps = len(run.steps) or 1
    return {n: s for n, s in run.totals["seconds"].items() if s / steps >= LEAST_SECONDS}


def phase_chart(run: Run, longest: float | None = None) -> Chart | None:
    """Draw where the time went, as one bar; its keys are in the order of the phases.

    Of several runs, the `longest` takes the whole width.
    """
    if not run.seconds:
        return None
    bars = []
    done = 0.0
    keys = []
    for name, seconds in shown_phases(run).items():
        style, share = f"part-{PHASES.get(name, 1)}", seconds / run.seconds
        title = f"{name} {percent(share)}"
        width = seconds / (longest or run.seconds)
        bars.append(Bar(x=(done, done + width), y=(0.0, 1.0), style=style, title=title))
        keys.append(Key(label=name, style=style, forms=("bar",)))
        done += width
    return Chart(
        title="Where the time went",
        label=f"Share of the time in each phase: {', '.join(bar.title for bar in bars)}.",
        panels=(Panel(x=Axis(), y=Axis(), shapes=tuple(bars)),),
        keys=tuple(keys),
        width=720,
        height=30,
        is_stretched=True,
    )


def curve_charts(run: Run) -> list[Chart]:
    """Draw what the method of a run follows from step to step, as far as it is on record."""
    charts = []
    for curve, values in drawn_curves(run.steps).items():
        if curve.key in SELECTION_CURVES:
            continue
        numbered = enumerate(values, start=1)
        points = [(float(number), value) for number, value in numbered if value is not None]
        if len(points) < 2:
            continue
        written = percent if curve.is_share else "{:.3g}".format
        tick = percent_tick if curve.is_share else short_number
        charts.append(
            line_chart(
                {("", "ranked"): points},
                title=curve.title,
                label=f"{curve.title}: {written(points[0][1])} at step {points[0][0]:.0f}, "
                f"{written(points[-1][1])} at step {points[-1][0]:.0f}.",
                x="step",
                y=value_axis(curve.unit, [value for _, value in points], tick=tick),
                caption=curve.note,
            )
        )
    return charts


def evaluation_chart(run: Run) -> Chart | None:
    """Draw the accuracy during training, on the questions of the last evaluation."""
    asked = [each for each in run.evaluations if each.questions == run.evaluations[-1].questions]
    if len(asked) < 2:
        return None
    last, best = asked[-1], max(asked, key=lambda each: (each.accuracy, -each.step))
    return line_chart(
        {("", "ranked"): [(float(each.step), each.accuracy) for each in asked]},
        title="Accuracy during training",
        label=f"Accuracy ({last.metric}) from {percent(asked[0].accuracy)} after step "
        f"{asked[0].step:,} to {percent(last.accuracy)} after step {last.step:,}.",
        x="step",
        y=f"accuracy, {last.metric}",
        caption=f"On {last.n:,} questions. Best: {best.words} after step {best.step:,}, whose "
        f"checkpoint is kept. Last: {last.words}.",
    )


def cost_chart(entries: Sequence[Entry]) -> Chart | None:
    """Draw accuracy and cost of runs, numbered as in their table; none if none was evaluated.

    Where a method queries no teacher, the cost of all is their total tokens.
    """
    cost = "scored tokens vs. full"
    shares = {entry.number: entry.token_share for entry in entries}
    if not all(entry.run.has_queries for entry in entries):
        totals = {entry.number: entry.run.totals["total_tokens"] for entry in entries}
        full = [totals[entry.number] for entry in entries if entry.run.is_full]
        cost = f"total tokens vs. {'full' if full else 'most'}"
        whole = max(full or totals.values()) or 1
        shares = {number: total / whole for number, total in totals.items()}
    arms = [
        Arm(
            name=f"{entry.number} {entry.label}",
            policy=entry.run.kind,
            budget=entry.run.query_share,
            parts={},
            accuracy=reached,
            metric=entry.accuracy.name,
            token_share=shares[entry.number],
        )
        for entry in entries
        if entry.accuracy is not None
        and (reached := estimate_of(entry.accuracy)) is not None
        and shares[entry.number] is not None
    ]
    return accuracy_cost(arms, cost) if arms else None


def compared_curves(entries: Sequence[Entry]) -> list[Chart]:
    """Draw what several runs have in common from step to step: accuracy, rewards, lengths."""
    numbered = [(f"{entry.number} {entry.label}", entry.run) for entry in entries]
    accuracies = {
        name: [(float(each.step), each.accuracy) for each in run.evaluations]
        for name, run in numbered
        if run.evaluations and run.evaluations[-1].questions == _asked(entries)
    }
    styles = _styles(entries)
    title = "Accuracy during training"
    charts = [_compared(title, "accuracy", accuracies, styles, is_share=True)]
    for curve in CURVES:
        if curve.key in COMPARED:
            lines = {
                name: [
                    (float(number), value)
                    for number, value in enumerate(curve.of(run.steps), start=1)
                    if value is not None and not isinstance(run.steps[0], GenerationRecord)
                ]
                for name, run in numbered
            }
            charts.append(
                _compared(curve.title, curve.unit, lines, styles, is_share=curve.is_share)
            )
    return [chart for chart in charts if chart is not None]


def _styles(entries: Sequence[Entry]) -> dict[str, str]:
    """Return the look of each run: that of its policy, where this tells the runs apart."""
    names = [f"{entry.number} {entry.label}" for entry in entries]
    styles = [policy_style(entry.run.kind) for entry in entries]
    if len(set(styles)) < len(styles):
        styles = [f"part-{place % PARTS}" for place in range(len(names))]
    return dict(zip(names, styles, strict=True))


def _asked(entries: Sequence[Entry]) -> str:
    """Return the questions of the first run that was evaluated during training."""
    return next((e.run.evaluations[-1].questions for e in entries if e.run.evaluations), "")


def _compared(
    title: str,
    unit: str,
    lines: Mapping[str, Sequence[Point]],
    styles: Mapping[str, str],
    *,
    is_share: bool,
) -> Chart | None:
    drawn = {name: line for name, line in lines.items() if len(line) > 1}
    if not drawn:
        return None
    values = [value for line in drawn.values() for _, value in line]
    return line_chart(
        {(name, styles[name]): line for name, line in drawn.items()},
        title=title,
        label=f"{title} of {', '.join(drawn)}.",
        x="step",
        y=value_axis(unit, values, tick=percent_tick if is_share else short_number),
    )


def utilities_chart(entries: Sequence[Entry]) -> Chart | None:
    """Draw the mean observed utility of each step's selected rows, for each run that selects."""
    lines = {
        (name, style): [
            (float(each.step), each.mean) for each in utility_by_step(entry.run.queries)
        ]
        for entry, (name, style) in zip(entries, _styles(entries).items(), strict=True)
        if entry.run.selects
    }
    lines = {key: points for key, points in lines.items() if len(points) > 1}
    if not lines:
        return None
    return line_chart(
        lines,
        title="Utility of the teacher's replies",
        label="Mean observed utility of the rows asked about, step by step, for each run.",
        x="step",
        y="mean observed utility",
        caption="Mean observed utility of the rows asked about. The better a policy selects, the "
        "higher it is.",
    )


def _utility_chart(run: Run) -> Chart | None:
    steps = utility_by_step(run.queries)
    if len(steps) < 2:
        return None
    drawn = ("drawn at random", "explored")
    if run.rule.asks_everything:
        drawn = ("every candidate", "plain")
    caption = "Utility as observed."
    if run.rule.learns:
        caption += " Once rows are ranked, the random ones are drawn from the rest."
    lines = {
        ("chosen by score", "ranked"): [
            (float(each.step), each.ranked) for each in steps if each.ranked is not None
        ],
        drawn: [(float(each.step), each.drawn) for each in steps if each.drawn is not None],
    }
    return line_chart(
        {key: points for key, points in lines.items() if points},
        title="Utility of the teacher's replies",
        label="Mean observed utility of each step, by how its rows were chosen.",
        x="step",
        y="mean observed utility",
        caption=caption,
    )


def _band_chart(run: Run, bands: Sequence[Band]) -> Chart | None:
    """Draw utility by rank; the caption says which rows are known under the run's budget."""
    if len(bands) < 2:
        return None
    select = run.select
    chosen = f"the upper {100 * float(select.query_ratio * (1 - select.exploration)):.3g} %"
    if select.coverage or run.rule.covers or select.budget != "calls":
        chosen = "rows of any place, chosen by cost or to cover the prompts,"
    rows = ", ".join(f"{band.rows:,}" for band in bands)
    spoken = ", ".join(f"{band.name} {band.utility.mean:.2g}" for band in bands)
    return column_chart(
        [band.name for band in bands],
        [band.utility.mean for band in bands],
        [ends_of(band.utility) for band in bands],
        title="Observed utility, by rank",
        label=f"Mean observed utility by place in the ranking: {spoken}.",
        x_name="place in the ranking of its step",
        y_name="mean observed utility",
        caption=f"Rows by their place in the ranking of their step ({rows} rows). The teacher was "
        f"asked about {chosen} of each step; of the other rows, only those drawn at random are "
        "known. 95 % confidence intervals over steps.",
    )


def _share_chart(title: str, what: str, rows: Mapping[str, tuple[float, float]]) -> Chart | None:
    if not rows:
        return None
    spoken = "; ".join(
        f"{name} {100 * of_all:.0f} % and {100 * of_some:.0f} %"
        for name, (of_all, of_some) in rows.items()
    )
    styles = list(SHARE_BARS.values())
    shapes = tuple(
        shape for row, pair in enumerate(rows.values()) for shape in row_bars(row, pair, styles)
    )
    largest = max(max(pair) for pair in rows.values()) or 1.0
    return Chart(
        title=title,
        label=f"Share of the candidates and of the rows asked about, by {what}: {spoken}.",
        panels=(
            Panel(x=Axis(high=1.25 * largest), y=named_rows(list(rows)), shapes=tuple(shapes)),
        ),
        keys=tuple(
            Key(label=name, style=style, forms=("bar",)) for name, style in SHARE_BARS.items()
        ),
        height=34 * len(rows) + 4,
    )


def _states(step: QueryRecord, rule: PolicyRule) -> list[str]:
    """Return the state of each row."""
    states = ["no-crop"] * (len(step.examples) * step.per_prompt)
    for rows, state in (
        (step.candidates, "passed-over"),
        (step.selected, "ranked"),
        (drawn_rows(step), "every" if rule.asks_everything else "explored"),
    ):
        for row in rows:
            states[row] = state
    return states


def _title(step: QueryRecord, row: int, observed: float | None, rule: PolicyRule) -> str:
    parts = [f"{step.examples[row // step.per_prompt]}, rollout {row % step.per_prompt + 1}"]
    if (score := step.score_of.get(row)) is not None:
        parts.append(f"score {score:.2g} ({rule.score})")
    if observed is not None:
        parts.append(f"observed utility {observed:.2g}")
    return "; ".join(parts)


def _sentence(step: QueryRecord, utility: dict[int, float | None], rule: PolicyRule) -> str:
    drawn = drawn_rows(step)
    parts = []
    for name, rows in (
        (" chosen by their score", set(step.selected) - drawn),
        (", as every candidate" if rule.asks_everything else " drawn at random", drawn),
    ):
        values = [value for row in rows if (value := utility[row]) is not None]
        if rows:
            mean = f" (mean utility {fmean(values):.2g})" if values else ""
            parts.append(f"{len(rows)}{name}{mean}")
    asked = f"{len(step.selected)}: {' and '.join(parts)}" if len(parts) > 1 else "".join(parts)
    return (
        f"Step {step.step + 1}: {len(step.examples) * step.per_prompt} rollouts of "
        f"{len(step.examples)} questions. {counted(len(step.candidates), 'rollout')} can be "
        f"asked about. The teacher was asked about {asked or 'none'}."
    )
