"""Makes a table or figure from runs trained here, runs the user names, or kept results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from bas_opd.audit.records import GeometryAudit, UtilityAudit, geometry_audit, utility_audits
from bas_opd.errors import ConfigError, DataError
from bas_opd.files import write_text
from bas_opd.report.arms import Arm, arms_of_runs, over_seeds
from bas_opd.report.charts.printed import save
from bas_opd.report.run import Run, read_run
from bas_opd.reproduce.arms import ARMS, BASE, FULL, arm_config
from bas_opd.reproduce.catalogue import Made, Material, item
from bas_opd.reproduce.paper_scale import instructions
from bas_opd.reproduce.policies import Request, common_inputs, reproduce
from bas_opd.reproduce.results import RunResult, read_results
from bas_opd.run.progress import Progress, StepsAsBar

if TYPE_CHECKING:
    from bas_opd.audit.session import Outcome

AUDITED = "learned25"
KEEP_EVERY = 18
"""Leaves six checkpoints of 111 steps, besides the last."""


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
    wanted = item(name)
    if wanted.make is None:
        raise ConfigError(f"{name} ({wanted.shows}) cannot be made: {wanted.absent}.")
    material: Material
    if runs:
        material = GivenRuns(runs)
    elif results is not None:
        material = KeptResults(results)
    elif request.scale == "paper" and wanted.arms:
        return instructions(wanted)
    else:
        material = SmallScale(request=request, progress=progress)
    return _write(name, wanted.make(material, wanted.arms), request.out)


def _write(name: str, made: Made, out: Path) -> str:
    out.mkdir(parents=True, exist_ok=True)
    if made.text:
        write_text(out / f"{name}.md", f"{made.text}\n")
        return made.text
    files = [
        file
        for suffix, figure in made.figures.items()
        for file in save(figure, out / f"{name}{suffix}")
    ]
    return "\n".join(str(file) for file in files)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallScale:
    """FineSearch and the small model: whatever is missing is trained."""

    request: Request
    progress: Progress

    def arms(self, names: Sequence[str]) -> tuple[list[Arm], str]:
        """Train the policies that have no result yet, and return them."""
        self._train(names, self.request.seeds)
        return _arms(self.request.out / "results", names, self.request.seeds)

    def runs(self, names: Sequence[str]) -> tuple[dict[str, Run], str]:
        """Return the run of each policy with the paper's seeds."""
        self._train(names, seeds=1)
        runs = {name: read_run(self.request.out / "runs" / f"{name}-0") for name in names}
        return runs, f"{_task(list(runs.values()))}, seed 0."

    def utility(self) -> list[UtilityAudit]:
        """Audit a run of the learned policy on training and on held-out batches."""
        return list(self._audit("utility").utility)

    def geometry(self) -> GeometryAudit:
        """Compare gradients along that run."""
        geometry = self._audit("geometry").geometry
        assert geometry is not None  # asked for alone, it is made or the reason raised
        return geometry

    def _train(self, names: Sequence[str], seeds: int) -> None:
        reproduce(replace(self.request, arms=tuple(names), seeds=seeds), self.progress)

    def _audit(self, only: Literal["utility", "geometry"]) -> Outcome:
        from transformers.utils import logging

        from bas_opd.audit import session
        from bas_opd.data.records import PreparedSet
        from bas_opd.run import loop

        logging.disable_progress_bar()
        inputs = common_inputs(self.request, self.progress, split="val")
        config = arm_config(
            AUDITED,
            0,
            [
                f"run.checkpoint_every={KEEP_EVERY}",
                f"run.keep_every={KEEP_EVERY}",
                "run.examples_per_step=4",
                *self.request.overrides,
                f"model.path={inputs.base}",
                f"model.device={inputs.device}",
                f"data.path={inputs.train}",
                f"run.output={self.request.out / 'runs' / f'{AUDITED}-audited'}",
            ],
        )
        run = loop.train(config, StepsAsBar(self.progress)).directory
        held_out = PreparedSet.load(inputs.questions.folder)
        asked = session.Request(
            run=run,
            only=only,
            batches=min(10, len(held_out) // config.rollout.prompts_per_step),
            held_out=held_out.folder,
            device=self.request.device,
        )
        return session.audit_run(asked, self.progress)


@dataclass(frozen=True, slots=True)
class GivenRuns:
    """Runs of any model, trained, evaluated and audited before."""

    paths: tuple[Path, ...]

    def arms(self, names: Sequence[str]) -> tuple[list[Arm], str]:
        """Return the policies of these runs, whatever they are."""
        runs = self._read()
        arms = arms_of_runs(runs)
        return arms, f"{_task(runs)}; 95 % confidence intervals {_over(arms)}."

    def runs(self, names: Sequence[str]) -> tuple[dict[str, Run], str]:
        """Return these runs by policy."""
        read = self._read()
        runs = {run.policy: run for run in read}
        if len(runs) < len(self.paths):
            raise DataError("Two of the runs have the same policy. Name one run of each policy.")
        return runs, f"{_task(read)}."

    def utility(self) -> list[UtilityAudit]:
        """Return the utility audits of the one run."""
        return list(utility_audits(self._one()))

    def geometry(self) -> GeometryAudit:
        """Return the gradient audit of the one run."""
        audit = geometry_audit(self._one())
        if audit is None:
            raise DataError(
                f"The gradients of {self._one()} were not audited. Run `bas-opd audit "
                f"{self._one()}`."
            )
        return audit

    def _one(self) -> Path:
        if len(self.paths) != 1:
            raise DataError("This figure is of one run. Name one with --run.")
        return self.paths[0]

    def _read(self) -> list[Run]:
        return [read_run(path) for path in self.paths]


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


@dataclass(frozen=True, slots=True)
class KeptResults:
    """Results that were kept of runs which may be gone: accuracy and cost, nothing else."""

    folder: Path

    def arms(self, names: Sequence[str]) -> tuple[list[Arm], str]:
        """Return those of the policies that have results."""
        return _arms(self.folder, names)

    def runs(self, names: Sequence[str]) -> tuple[dict[str, Run], str]:
        """Refuse: results hold no run."""
        raise self._too_little()

    def utility(self) -> list[UtilityAudit]:
        """Refuse: results hold no audit."""
        raise self._too_little()

    def geometry(self) -> GeometryAudit:
        """Refuse: results hold no audit."""
        raise self._too_little()

    def _too_little(self) -> DataError:
        return DataError(
            f"The results in {self.folder} hold accuracy and cost alone. Name the run itself with "
            "--run."
        )


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
    full = [each.cost.scored_tokens for each in results if each.arm == FULL and each.cost]
    by_arm = {arm: [each for each in results if each.arm == arm] for arm in ARMS}
    return [_arm(arm, mine, fmean(full) if full else None) for arm, mine in by_arm.items() if mine]


def source_of(results: Sequence[RunResult]) -> str:
    """Return what the arms were measured on, in a sentence."""
    seeds = max((result.seed or 0) for result in results) + 1
    task, n = results[0].task, results[0].n
    return (
        f"{task}, small model: {n:,} questions, {seeds} seeds; 95 % Student-t confidence intervals."
    )


def _arm(name: str, results: Sequence[RunResult], full_tokens: float | None) -> Arm:
    tokens = [result.cost.scored_tokens for result in results if result.cost]
    select = arm_config(name, 0, ["model.path=x", "data.path=x"]).select
    return Arm(
        name=name,
        policy="" if name == BASE else select.policy,
        budget=None if name == BASE else float(select.query_ratio),
        parts={
            kind: over_seeds([result.kinds[kind].accuracy for result in results])
            for kind in results[0].kinds
        },
        mean=over_seeds([result.mean for result in results]),
        token_share=fmean(tokens) / full_tokens if tokens and full_tokens else None,
    )
