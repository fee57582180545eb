"""The table of policies as Markdown, from results alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean

from bas_opd.errors import DataError
from bas_opd.evaluate.benchmarks.metric import ALL_QUESTIONS
from bas_opd.files import write_text
from bas_opd.reproduce.arms import ARMS, BASE, FULL, effective
from bas_opd.reproduce.results import Cost, RunResult
from bas_opd.stats.intervals import Interval, mean_interval, paired_difference
from bas_opd.text import ends_of, ends_text, markdown_table, plus_minus

REFERENCES = (FULL, "random25")
"""What all are compared with: full querying, and random selection of a quarter."""
MARKERS = ("<!-- table: policies -->", "<!-- /table -->")
"""The table of a page is between them."""

Arms = dict[str, list[RunResult]]
"""Arm -> its results by seed, arms in the order of the table."""


def policies_table(results: Sequence[RunResult]) -> str:
    """Return accuracy, cost, and whether each arm differs significantly from full querying."""
    _check_comparable(results)
    arms: Arms = {
        arm: sorted((r for r in results if r.arm == arm), key=lambda result: result.seed or 0)
        for arm in ARMS
        if any(result.arm == arm for result in results)
    }
    parts = [_heading(results), _accuracy(arms), *_pairs(arms), _cost(arms)]
    if FULL in arms:
        parts.append("\n".join(_findings(arms)))
    return "\n\n".join(parts) + "\n"


def write_table(path: Path, table: str) -> None:
    """Replace the table of a page, and leave the rest as it is."""
    try:
        page = path.read_text(encoding="utf-8")
        replaced = replace_table(page, table)
        write_text(path, replaced)
    except OSError as error:
        raise DataError(f"The table cannot be put into {path}: {error.strerror}.") from error
    except DataError as error:
        raise DataError(f"The table cannot be put into {path}. {error}") from error


def replace_table(page: str, table: str) -> str:
    """Return a page with the part between the two markers replaced."""
    first, last = MARKERS
    pattern = re.compile(f"{re.escape(first)}.*?{re.escape(last)}", re.DOTALL)
    if len(pattern.findall(page)) != 1 or page.count(first) != 1:
        raise DataError(
            f"The page must hold one place for the table: a line {first} and, after it, a line "
            f"{last}. Add them where the table belongs."
        )
    return pattern.sub(lambda _: f"{first}\n{table}{last}", page)


def _check_comparable(results: Sequence[RunResult]) -> None:
    """Refuse results that were measured differently."""
    if any(result.split != "test" for result in results):
        raise DataError(
            "Some of the results were judged on val, which is for choosing settings. Take them out "
            "of the folder; the table is of the test split."
        )
    for what in ("questions", "base", "overrides", "train", "learning_rate"):
        found = {
            str(effective(result.overrides) if what == "overrides" else getattr(result, what))
            for result in results
        }
        if len(found) > 1:
            raise DataError(
                f"The results differ in {what}: {', '.join(sorted(found))}. A table compares runs "
                "that differ in arm and seed alone; keep each kind in a folder of its own."
            )
    names = [(result.arm, result.seed) for result in results]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise DataError(f"Two results are of {twice[0]} with seed {twice[1]}. Remove one of them.")
    if unknown := {arm for arm, _ in names} - set(ARMS):
        raise DataError(f"No arm is named {', '.join(sorted(unknown))}; remove its results.")


def _heading(results: Sequence[RunResult]) -> str:
    any_result = results[0]
    arms = tuple(arm for arm in ARMS if any(result.arm == arm for result in results))
    trained = [result for result in results if result.seed is not None]
    seeds = max((result.seed + 1 for result in trained if result.seed is not None), default=1)
    steps = sorted({len(result.steps.loss) for result in trained if result.steps})
    command = " ".join(
        [
            f"bas-opd reproduce policies --scale small --out DIR --seeds {seeds}",
            f"--train-n {any_result.train_n} --test-n {any_result.n}",
            *([] if arms == ARMS else [f"--arms {','.join(arms)}"]),
            *effective(any_result.overrides),
        ]
    )
    return (
        f"{any_result.task}, small model: {any_result.n:,} test questions, "
        f"{' or '.join(map(str, steps)) or 'no'} steps a run, learning rate "
        f"{any_result.learning_rate:g}. Entries are means over seeds ± half the width of their 95 "
        "% Student-t confidence interval; differences are paired by seed. Made by "
        f"`{command}`."
    )


def _accuracy(arms: Arms) -> str:
    references = [arm for arm in REFERENCES if arm in arms]
    measures: dict[str, Callable[[RunResult], float]] = {"without existence": _without_existence}
    metric = next(iter(arms.values()))[0].metric
    if metric != ALL_QUESTIONS:
        measures[ALL_QUESTIONS.name] = lambda result: result.measured(ALL_QUESTIONS)
    for kind in next(iter(arms.values()))[0].kinds:
        measures[kind] = lambda result, kind=kind: result.kinds[kind].accuracy
    header = ["arm", "seeds", metric.name, *(f"minus {arm}" for arm in references), *measures]
    rows = []
    for arm, results in arms.items():
        seeds = "-" if arm == BASE else str(len(results))
        row = [arm, seeds, _percent(results, lambda result: result.accuracy)]
        for reference in references:
            difference = _difference(arms, arm, reference)
            row.append("-" if difference is None else plus_minus(difference, "+.2f", 100))
        rows.append([*row, *(_percent(results, measure) for measure in measures.values())])
    return markdown_table(header, rows)


def _without_existence(result: RunResult) -> float:
    """The mean over the other kinds: a "no" has no crop, so only "yes" is ever distilled."""
    kept = [count.accuracy for kind, count in result.kinds.items() if kind != "existence"]
    return fmean(kept or [result.accuracy])


def _pairs(arms: Arms) -> Iterator[str]:
    """Yield pairs with both questions right, where the questions have any."""
    cells = []
    for arm, results in arms.items():
        shares = [result.pairs.accuracy for result in results if result.pairs]
        if shares:
            cells.append(f"{arm} {plus_minus(mean_interval(shares), '.1f', 100)}")
    if cells:
        yield f"Pairs with both questions right, in %: {', '.join(cells)}."


def _cost(arms: Arms) -> str:
    header = ["arm", "calls", "scored tokens", "processed tokens", "teacher s", "s a step"]
    header += ["steps ranked", "overrun"]
    rows, runs = [], [result for results in arms.values() for result in results if result.cost]
    for arm, results in arms.items():
        costs = [(r.cost, len(r.steps.loss)) for r in results if r.cost and r.steps]
        if costs:
            rows.append([arm, *_cost_cells(costs)])
    if not rows:
        return "No arm was trained, so there is no cost to show."
    devices = sorted({result.device for result in runs})
    shared = sorted({result.jobs for result in runs})
    note = (
        f"Teacher seconds are of a whole run. Times were taken on {', '.join(devices)} with "
        f"{' or '.join(map(str, shared))} runs in parallel, which slow each other down."
    )
    return f"{markdown_table(header, rows)}\n\n{note}"


def _cost_cells(costs: Sequence[tuple[Cost, int]]) -> Iterator[str]:
    for name in ("calls", "scored_tokens", "processed_tokens"):
        yield plus_minus(mean_interval([getattr(cost, name) for cost, _ in costs]), ",.0f")
    yield plus_minus(mean_interval([cost.seconds.get("teacher", 0.0) for cost, _ in costs]), ".1f")
    per_step = [sum(cost.seconds.values()) / steps for cost, steps in costs]
    yield plus_minus(mean_interval(per_step), ".3f")
    yield plus_minus(mean_interval([cost.ranked_steps for cost, _ in costs]), ".0f")
    yield str(max(cost.overrun for cost, _ in costs))


def _difference(arms: Arms, arm: str, reference: str) -> Interval | None:
    """Return the arm's mean minus that of a reference, over the seeds that both have."""
    if arm == reference:
        return None
    theirs = {result.seed: result.accuracy for result in arms[reference]}
    if arm == BASE:  # the same at every seed
        mine = dict.fromkeys(theirs, arms[BASE][0].accuracy)
    else:
        mine = {result.seed: result.accuracy for result in arms[arm]}
    common = sorted(theirs.keys() & mine.keys(), key=str)
    if not common:
        return None
    return paired_difference([mine[seed] for seed in common], [theirs[seed] for seed in common])


def _findings(arms: Arms) -> Iterator[str]:
    """Yield for each arm whether it differs significantly from full querying."""
    for arm in arms:
        difference = _difference(arms, arm, FULL)
        if difference is None:
            continue
        points = f"{100 * difference.mean:+.2f} points against full querying"
        if difference.n < 2:
            yield f"- {arm}: {points} with one seed, which has no confidence interval."
            continue
        interval = f"95 % CI {ends_text(ends_of(difference), '+.2f')}, {difference.n} seeds"
        verdict = "not significantly" if difference.holds_zero else "significantly"
        yield f"- {arm}: {points} ({interval}): {verdict} different."


def _percent(results: Sequence[RunResult], value: Callable[[RunResult], float]) -> str:
    return plus_minus(mean_interval([value(result) for result in results]), ".1f", 100)
