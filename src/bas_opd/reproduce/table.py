"""The table of policies as Markdown, from results alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean

from bas_opd.data.finesearch.make import TITLES
from bas_opd.errors import DataError
from bas_opd.evaluate.benchmarks.metric import ALL_QUESTIONS
from bas_opd.files import write_text
from bas_opd.reproduce.arms import ARMS, BASE, DEFAULT_ARMS, FULL, arm_config, effective
from bas_opd.reproduce.comparing import Arms, Verdict, difference, evaluate
from bas_opd.reproduce.cuts import cuts_table
from bas_opd.reproduce.questions import QUESTIONS, Questions, read_questions
from bas_opd.reproduce.results import Cost, RunResult, read_results
from bas_opd.reproduce.study import STUDY, Study, read_study
from bas_opd.stats.crossed import CrossedInterval
from bas_opd.stats.intervals import mean_interval
from bas_opd.text import counted, ends_of, ends_text, markdown_table, plus_minus

REFERENCES = (FULL, "random25")
"""What all are compared with: full querying, and random selection of a quarter."""
COUNTED = {
    "calls": "calls",
    "scored_tokens": "scored tokens",
    "processed_tokens": "processed tokens",
    "sampled_tokens": "sampled tokens",
    "total_tokens": "total tokens",
}
"""What the table of costs counts, and its columns."""
METHOD_COUNTS = {
    "rollouts": "student rollouts",
    "generated": "teacher responses",
    "rewards": "graded",
    "deferred": "unread",
    "reference_rows": "reference rows",
    "dropped_groups": "prompts dropped",
    "updates": "updates",
}
"""What the table of methods counts, and its columns."""
MARKERS = ("<!-- table: policies -->", "<!-- /table -->")
"""The table of a page is between them."""


def folder_table(folder: Path) -> str:
    """Return the table of a folder of results, with its study and its questions if it has them."""
    folder = results_folder(folder)
    return policies_table(read_results(folder), read_questions(folder), study_of(folder))


def results_folder(folder: Path) -> Path:
    """Return the folder of results: the given one, or the one in it."""
    return folder / "results" if (folder / "results").is_dir() else folder


def study_of(folder: Path) -> Study | None:
    """Return the study that stands beside results, if they are of one."""
    return read_study(folder / STUDY) if (folder / STUDY).exists() else None


def policies_table(
    results: Sequence[RunResult], questions: Questions | None = None, study: Study | None = None
) -> str:
    """Return accuracy, cost, and whether each arm differs significantly from full querying.

    With the questions, intervals of differences are over seeds and questions. A study comes with
    what it declared to compare.
    """
    _check_comparable(results, study)
    if questions is not None:
        questions.check(results)
    order = ARMS if study is None else [arm.name for arm in study.arms]
    arms: Arms = {
        arm: sorted((r for r in results if r.arm == arm), key=lambda result: result.seed or 0)
        for arm in order
        if any(result.arm == arm for result in results)
    }
    if study is None:
        parts = [_heading(results, questions)]
    else:
        parts = [_study_heading(study, arms, questions)]
    if study is not None and study.declared.comparisons:
        if questions is None:
            raise DataError(f"{QUESTIONS} is missing, so the study cannot be evaluated.")
        parts.append("\n".join(map(_verdict, evaluate(study, arms, questions))))
    parts += [_accuracy(arms, questions, study), *_pairs(arms), _cost(arms), *_methods(arms)]
    if (cuts := cuts_table(arms)) is not None:
        parts.append(cuts)
    if FULL in arms:
        parts.append("\n".join(_findings(arms, questions)))
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


def _check_comparable(results: Sequence[RunResult], study: Study | None) -> None:
    """Refuse results that were measured differently, or not as their study declares."""
    if any(result.split != "test" for result in results):
        raise DataError(
            "Some of the results were judged on val, which is for choosing settings. Take them out "
            "of the folder; the table is of the test split."
        )
    hashes = {result.study for result in results}
    if hashes != {None if study is None else study.hash}:
        raise DataError(
            f"Some of the results are of another study than the {STUDY} beside them, or of none. "
            "Keep the results of each study, and those of none, in a folder of their own."
        )
    shared = ("questions", "base", "overrides", "train")
    for what in (*shared, "learning_rate") if study is None else shared:
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
    if study is None:
        if unknown := {arm for arm, _ in names} - set(ARMS):
            raise DataError(f"No arm is named {', '.join(sorted(unknown))}; remove its results.")
        return
    declared = {arm: seeds or (None,) for arm, seeds in study.arms.items()}
    for result in results:
        if result.seed not in declared.get(result.spec, ()):
            raise DataError(
                f"The study does not declare {result.arm} with seed {result.seed} and these "
                "settings. Remove that result."
            )


OVER_BOTH = "over seeds and questions"
"""Name of the intervals that cover other seeds as well as other questions."""


def _heading(results: Sequence[RunResult], questions: Questions | None) -> str:
    any_result = results[0]
    arms = tuple(arm for arm in ARMS if any(result.arm == arm for result in results))
    trained = [result for result in results if result.seed is not None]
    seeds = max((result.seed + 1 for result in trained if result.seed is not None), default=1)
    steps = sorted({len(result.steps.loss) for result in trained if result.steps})
    command = " ".join(
        [
            f"bas-opd reproduce policies --scale small --out DIR --seeds {seeds}",
            f"--train-n {any_result.train_n} --test-n {any_result.n}",
            *([] if arms == DEFAULT_ARMS else [f"--arms {','.join(arms)}"]),
            *effective(any_result.overrides),
        ]
    )
    return (
        f"{any_result.task}, small model: {any_result.n:,} test questions, "
        f"{' or '.join(map(str, steps)) or 'no'} steps a run, learning rate "
        f"{any_result.learning_rate:g}. {_reading(questions)} Made by `{command}`."
    )


def _reading(questions: Questions | None) -> str:
    """Say what the intervals are."""
    entries = "Entries are means over seeds ± half the width of their 95 % Student-t confidence "
    if questions is None:
        return f"{entries}interval; differences are paired by seed."
    return (
        f"{entries}interval. Differences are paired by seed and by question; their 95 % intervals "
        f"are {OVER_BOTH}, which are crossed."
    )


def _study_heading(study: Study, arms: Arms, questions: Questions | None) -> str:
    declared = study.declared
    results = [result for those in arms.values() for result in those]
    planned = 1 + sum(len(arm.seeds) for arm in declared.arms)
    return (
        f"{declared.title}. {results[0].task}: {declared.test:,} test questions, {declared.steps} "
        f"steps a run, {len(results)} of {planned} results. Arms, seeds, learning rates and "
        "primary comparisons were declared before the runs, in a file with SHA-256 "
        f"{study.hash[:16]}. {_reading(questions)} Made by `bas-opd reproduce study STUDY.toml "
        "--out DIR`."
    )


def _verdict(verdict: Verdict) -> str:
    """Return a declared comparison with its outcome."""
    declared = verdict.comparison
    claim = f"**{declared.arm} against {declared.against}, {declared.claim}"
    if verdict.difference is None:
        missing = counted(verdict.missing, "run")
        return f"- {claim}: not evaluated**; {missing} of it {_are(verdict.missing)} missing."
    points = (
        f"{100 * verdict.difference.mean:+.2f} points (95 % CI {OVER_BOTH} "
        f"{ends_text(ends_of(verdict.difference), '+.2f')}, {verdict.difference.n} seeds)"
    )
    if declared.margin is not None and verdict.gain is not None:
        points += (
            f", margin {100 * verdict.margin:.2f}: {100 * declared.margin:.0f} % of the "
            f"{100 * verdict.gain:.2f} points that {declared.against} gains over the base"
        )
    return f"- {claim}: {'met' if verdict.is_met else 'not met'}**; {points}."


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _accuracy(arms: Arms, questions: Questions | None, study: Study | None) -> str:
    against = () if study is None else (each.against for each in study.declared.comparisons)
    references = [arm for arm in dict.fromkeys((*REFERENCES, *against)) if arm in arms]
    measures: dict[str, Callable[[RunResult], float]] = {}
    any_result = next(iter(arms.values()))[0]
    if any_result.task == TITLES["finesearch"]:
        measures["without existence"] = _without_existence
    metric = any_result.metric
    if metric != ALL_QUESTIONS:
        measures[ALL_QUESTIONS.name] = lambda result: result.measured(ALL_QUESTIONS)
    for kind in any_result.kinds:
        measures[kind] = lambda result, kind=kind: result.kinds[kind].accuracy
    header = ["arm", "seeds", metric.name, *(f"minus {arm}" for arm in references), *measures]
    if study is not None:
        header.insert(2, "learning rate")
    rows = []
    for arm, results in arms.items():
        seeds = "-" if arm == BASE else str(len(results))
        row = [arm, seeds, _percent(results, lambda result: result.accuracy)]
        for reference in references:
            gap = difference(arms, arm, reference, questions)
            row.append("-" if gap is None else plus_minus(gap, "+.2f", 100))
        rows.append([*row, *(_percent(results, measure) for measure in measures.values())])
        if study is not None:
            rows[-1].insert(2, "-" if arm == BASE else f"{results[0].learning_rate:g}")
    return markdown_table(header, rows)


def _without_existence(result: RunResult) -> float:
    """The mean over the other kinds: there a "no" has no crop, so only "yes" is ever distilled."""
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
    rows, runs = [], [result for results in arms.values() for result in results if result.cost]
    # Results of version 0.1 have not counted the others.
    names = [
        name for name in COUNTED if any(getattr(result.cost, name) is not None for result in runs)
    ]
    header = ["arm", *(COUNTED[name] for name in names), "teacher s", "s a step"]
    if has_reach := any(result.cost and result.cost.prompts_asked is not None for result in runs):
        header.append("prompts asked, %")
    header += ["steps ranked", "overrun"]
    for arm, results in arms.items():
        costs = [(r.cost, len(r.steps.loss)) for r in results if r.cost and r.steps]
        if costs:
            rows.append([arm, *_cost_cells(costs, names, has_reach=has_reach)])
    if not rows:
        return "No arm was trained, so there is no cost to show."
    devices = sorted({result.device for result in runs})
    shared = sorted({result.jobs for result in runs})
    note = f"Teacher seconds are of a whole run. Times were taken on {', '.join(devices)} with "
    if shared == [1]:
        note += "one run at a time."
    else:
        note += f"{' or '.join(map(str, shared))} runs in parallel, which slow each other down."
    return f"{markdown_table(header, rows)}\n\n{note}"


def _methods(arms: Arms) -> Iterator[str]:
    """Yield what each method learns from and how much of it, where there are several methods."""
    costs = {arm: [r.cost for r in results if r.cost] for arm, results in arms.items()}
    if not any(cost.rewards or cost.generated for those in costs.values() for cost in those):
        return
    rows = []
    for arm, those in costs.items():
        if not those:
            continue
        first = arms[arm][0]
        settings = [*first.overrides, "model.path=x", "data.path=x"]
        config = arm_config(first.spec, 0, settings)
        used = {"crops": config.needs_crops, "answers": config.needs_answers}
        known = [[getattr(cost, name) for cost in those] for name in METHOD_COUNTS]
        cells = ["-" if None in v else plus_minus(mean_interval(v), ",.0f") for v in known]
        rows.append([arm, " and ".join(name for name in used if used[name]) or "-", *cells])
    yield markdown_table(["arm", "learns from", *METHOD_COUNTS.values()], rows)


def _cost_cells(
    costs: Sequence[tuple[Cost, int]], names: Sequence[str], *, has_reach: bool
) -> Iterator[str]:
    for name in names:
        known = [value for cost, _ in costs if (value := getattr(cost, name)) is not None]
        yield plus_minus(mean_interval(known), ",.0f") if known else "-"
    yield plus_minus(mean_interval([cost.seconds.get("teacher", 0.0) for cost, _ in costs]), ".1f")
    per_step = [sum(cost.seconds.values()) / steps for cost, steps in costs]
    yield plus_minus(mean_interval(per_step), ".3f")
    if has_reach:
        asked = [share for cost, _ in costs if (share := cost.prompts_asked) is not None]
        yield plus_minus(mean_interval(asked), ".1f", 100) if asked else "-"
    yield plus_minus(mean_interval([cost.ranked_steps for cost, _ in costs]), ".0f")
    yield str(max(cost.overrun for cost, _ in costs))


def _findings(arms: Arms, questions: Questions | None) -> Iterator[str]:
    """Yield for each arm whether it differs significantly from full querying."""
    for arm in arms:
        gap = difference(arms, arm, FULL, questions)
        if gap is None:
            continue
        points = f"{100 * gap.mean:+.2f} points against full querying"
        if gap.n < 2:
            yield f"- {arm}: {points} with one seed, which has no confidence interval."
            continue
        if ends_of(gap) is None:
            yield f"- {arm}: {points}; a kind with one picture has no confidence interval."
            continue
        over = f" {OVER_BOTH}" if isinstance(gap, CrossedInterval) else ""
        interval = f"95 % CI{over} {ends_text(ends_of(gap), '+.2f')}, {gap.n} seeds"
        verdict = "not significantly" if gap.holds_zero else "significantly"
        yield f"- {arm}: {points} ({interval}): {verdict} different."


def _percent(results: Sequence[RunResult], value: Callable[[RunResult], float]) -> str:
    return plus_minus(mean_interval([value(result) for result in results]), ".1f", 100)
