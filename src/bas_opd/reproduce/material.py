"""The runs behind a table or figure: named by the user, kept as results, or trained for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from bas_opd.audit.records import GeometryAudit, UtilityAudit, geometry_audit, utility_audits
from bas_opd.errors import DataError
from bas_opd.evaluate.benchmarks.metric import ALL_QUESTIONS
from bas_opd.report.arms import Arm, arms_of_runs, over_seeds
from bas_opd.report.run import Run, read_run
from bas_opd.reproduce.arms import ARMS, BASE, FULL, arm_config
from bas_opd.reproduce.policies import Request, ask, common_inputs, reproduce
from bas_opd.reproduce.results import Cost, RunResult, read_results
from bas_opd.run.progress import Progress, StepsAsBar

if TYPE_CHECKING:
    from bas_opd.audit.session import Outcome

AUDITED = "learned25"
KEEP_EVERY = 18
"""Leaves six checkpoints of 111 steps, besides the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """Runs of any model or kept results if they are given; else FineSearch and the small model,
    of which whatever is missing is trained."""

    request: Request
    progress: Progress
    paths: tuple[Path, ...] = ()
    """Runs that were trained, evaluated and audited before."""
    results: Path | None = None
    """Folder of results of runs which may be gone: accuracy and cost, nothing else."""

    def arms(self, names: Sequence[str], also: Sequence[str] = ()) -> tuple[list[Arm], str]:
        """Return accuracy and cost of policies, and a sentence on what they were measured on.

        Arms of `also` are there if kept results have them. Runs that the user named are taken
        whatever their policies are.
        """
        if self.paths:
            runs = [read_run(path) for path in self.paths]
            arms = arms_of_runs(runs)
            return arms, f"{_task(runs)}; 95 % confidence intervals {_over(arms)}."
        if self.results is not None:
            return _arms(self.results, (*names, *also))
        self._train(names, self.request.seeds)
        return _arms(self.request.out / "results", names, self.request.seeds)

    def runs(self, names: Sequence[str]) -> tuple[dict[str, Run], str]:
        """Return one run of each policy, by its name in a table, and a sentence on them."""
        if self.paths:
            read = [read_run(path) for path in self.paths]
            runs = {run.policy: run for run in read}
            if len(runs) < len(read):
                raise DataError(
                    "Two of the runs have the same policy. Name one run of each policy."
                )
            return runs, f"{_task(read)}."
        self._train(names, seeds=1)
        runs = {name: read_run(self.request.out / "runs" / f"{name}-0") for name in names}
        return runs, f"{_task(list(runs.values()))}, seed 0."

    def utility(self) -> list[UtilityAudit]:
        """Return the audits of a run of the learned policy, on training and held-out batches."""
        return list(utility_audits(self._one()) if self.paths else self._audit("utility").utility)

    def geometry(self) -> GeometryAudit:
        """Return the comparison of gradients along that run."""
        audit = geometry_audit(self._one()) if self.paths else self._audit("geometry").geometry
        if audit is None:
            run = self._one()
            raise DataError(f"The gradients of {run} were not audited. Run `bas-opd audit {run}`.")
        return audit

    def _one(self) -> Path:
        if len(self.paths) != 1:
            raise DataError("This figure is of one run. Name one with --run.")
        return self.paths[0]

    def _train(self, names: Sequence[str], seeds: int) -> None:
        self._refuse_results()
        reproduce(replace(self.request, arms=tuple(names), seeds=seeds), self.progress)

    def _audit(self, only: Literal["utility", "geometry"]) -> Outcome:
        self._refuse_results()
        from transformers.utils import logging

        from bas_opd.audit import session
        from bas_opd.run import loop

        name = f"{AUDITED}-audited"
        runs = self.request.out / "runs"
        ask(self.request, [] if (runs / name / "model").is_dir() else [AUDITED])
        logging.disable_progress_bar()
        inputs = common_inputs(self.request, self.progress, split="val")
        config = arm_config(
            AUDITED,
            0,
            [
                f"run.checkpoint_every={KEEP_EVERY}",
                f"run.keep_every={KEEP_EVERY}",
                "run.examples_per_step=4",
                *inputs.settings(name),
            ],
        )
        run = loop.train(config, StepsAsBar(self.progress)).directory
        asked = session.Request(
            run=run,
            only=only,
            batches=min(10, len(inputs.questions) // config.rollout.prompts_per_step),
            held_out=inputs.questions.folder,
            device=self.request.device,
        )
        return session.audit_run(asked, self.progress)

    def _refuse_results(self) -> None:
        if self.results is not None:
            raise DataError(
                f"The results in {self.results} hold accuracy and cost alone. Name the run itself "
                "with --run."
            )


def _task(runs: Sequence[Run]) -> str:
    """Name model and data without their folders, for a table that may be sent on."""
    models = {Path(run.config.model.path).name for run in runs}
    sets = {Path(run.started.data.folder).name for run in runs}
    steps = {f"{len(run.steps):,}" for run in runs}
    return (
        f"{', '.join(sorted(models))} on {', '.join(sorted(sets))}, "
        f"{' or '.join(sorted(steps))} steps"
    )


def _over(arms: Sequence[Arm]) -> str:
    single = [arm.name for arm in arms if arm.seeds == 1]
    if not single:
        return "over seeds"
    if len(single) == len(arms):
        return "over questions, one seed each"
    return f"over seeds, but over questions for {', '.join(single)}"


def _arms(folder: Path, names: Sequence[str], seeds: int | None = None) -> tuple[list[Arm], str]:
    results = [
        each
        for each in read_results(folder)
        if each.arm in names and (seeds is None or (each.seed or 0) < seeds)
    ]
    if not results:
        raise DataError(f"None of {', '.join(names)} has a result in {folder}.")
    return arms_of_results(results), source_of(results)


def arms_of_results(results: Sequence[RunResult]) -> list[Arm]:
    """Return every arm that has results, in the order of the table."""
    full = [each.cost for each in results if each.arm == FULL and each.cost]
    # Arms of a study that have no place in the table come last.
    order = dict.fromkeys((*ARMS, *(each.arm for each in results)))
    by_arm = {arm: [each for each in results if each.arm == arm] for arm in order}
    return [_arm(arm, mine, full) for arm, mine in by_arm.items() if mine]


def source_of(results: Sequence[RunResult]) -> str:
    """Return what the arms were measured on, in a sentence."""
    counts = set(Counter(r.arm for r in results if r.seed is not None).values()) or {0}
    seeds = " to ".join(map(str, sorted({min(counts), max(counts)})))
    task, n = results[0].task, results[0].n
    return (
        f"{task}, small model: {n:,} questions, {seeds} seeds; 95 % Student-t confidence intervals."
    )


def _arm(name: str, results: Sequence[RunResult], full: Sequence[Cost]) -> Arm:
    costs = [result.cost for result in results if result.cost]
    metric = results[0].metric
    settings = [*results[0].overrides, "model.path=x", "data.path=x"]
    config = arm_config(results[0].spec, 0, settings)
    method, queries = config.method.name, config.queries
    policy = config.select.policy if method == "bas-opd" else method
    return Arm(
        name=name,
        policy="" if name == BASE else policy,
        budget=None if name == BASE else float(queries.query_ratio if queries else 0),
        parts={
            kind: over_seeds([result.kinds[kind].accuracy for result in results])
            for kind in results[0].kinds
        },
        accuracy=over_seeds([result.accuracy for result in results]),
        metric=metric.name,
        beside=None
        if metric == ALL_QUESTIONS
        else over_seeds([result.measured(ALL_QUESTIONS) for result in results]),
        token_share=_share(costs, full, "scored_tokens"),
        total_share=_share(costs, full, "total_tokens"),
    )


def _share(costs: Sequence[Cost], full: Sequence[Cost], name: str) -> float | None:
    """Return a mean cost over that of full querying, where both are known."""
    mine, whole = ([getattr(each, name) for each in those] for those in (costs, full))
    if not mine or not whole or None in (*mine, *whole):
        return None
    return fmean(mine) / fmean(whole)
