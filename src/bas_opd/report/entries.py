"""The runs of a comparison: what each is called, and what it is measured against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bas_opd.evaluate.benchmarks import Measure
from bas_opd.report.run import Run

ORDER = ("learned", "regressed", "entropy", "random", "full")
"""Of two policies, the one that comes later here is what the other is measured against."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One run in a comparison."""

    number: int
    label: str
    run: Run
    full: Run | None
    """The run with full querying that it can be measured against; none, if it is that one."""

    @property
    def place(self) -> int:
        """Of its policy in `ORDER`."""
        return ORDER.index(self.run.config.select.policy)

    @property
    def accuracy(self) -> Measure | None:
        evaluation = self.run.own_evaluation
        return None if evaluation is None else evaluation.headline

    @property
    def token_share(self) -> float | None:
        """Scored tokens over those of full querying: of that run, or of its own candidates."""
        whole = self.run.totals["candidate_tokens"]
        if self.full is not None:
            whole = self.full.totals["scored_tokens"]
        return self.run.totals["scored_tokens"] / whole if whole else None

    @property
    def processed_share(self) -> float | None:
        """Tokens the teacher processed, prompts counted, over those of the run with full querying.

        Without that run it is not known: a prompt nobody asked about was never counted.
        """
        full = self.run if self.run.policy == "full" else self.full
        if full is None or not full.totals["processed_tokens"]:
            return None
        return self.run.totals["processed_tokens"] / full.totals["processed_tokens"]


def entries_of(runs: Sequence[Run]) -> tuple[Entry, ...]:
    """Number and name the runs in the order given."""
    return tuple(
        Entry(number=number, label=label, run=run, full=_full_of(run, runs))
        for number, (label, run) in enumerate(zip(_labels(runs), runs, strict=True), start=1)
    )


def _labels(runs: Sequence[Run]) -> list[str]:
    """Call a run by its policy; where that is not unique, by its folder; else by its place."""
    for names in (
        [run.policy for run in runs],
        [run.name for run in runs],
        [f"{run.path.resolve().parent.name}/{run.name}" for run in runs],
    ):
        if len(set(names)) == len(names):
            return names
    return [str(run.path) for run in runs]


def _full_of(run: Run, runs: Sequence[Run]) -> Run | None:
    if run.policy == "full":
        return None
    partners = [each for each in runs if each.policy == "full" and _same_task(run, each)]
    same_seed = [each for each in partners if each.config.run.seed == run.config.run.seed]
    return next(iter([*same_seed, *partners]), None)


def _same_task(a: Run, b: Run) -> bool:
    """Whether two runs had the same data, start, batches and number of steps."""
    return (a.started.data.fingerprint, a.started.base, a.config.rollout, len(a.steps)) == (
        b.started.data.fingerprint,
        b.started.base,
        b.config.rollout,
        len(b.steps),
    )
