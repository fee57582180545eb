"""A run as a report shows it: everything its directory says, without torch and without its model.

The records are the source of truth. An incomplete last line is left out; damaged or changed records
are an error, since a page made from them would claim more than is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bas_opd.audit.records import GeometryAudit, UtilityAudit, geometry_audit, utility_audits
from bas_opd.config.schema import Config, SelectConfig
from bas_opd.evaluate.results import RunEvaluation, read_evaluation
from bas_opd.run.history import RunOutline, read_outline, sound
from bas_opd.run.journal import read_journal
from bas_opd.run.ledger import Ledger
from bas_opd.run.record import (
    EvaluationRecord,
    PolicyRecord,
    QueryRecord,
    ShownRow,
    Started,
    StepRecord,
)
from bas_opd.run.verify import Verification, verify
from bas_opd.select.rules import PolicyRule, policy_rule
from bas_opd.serving.request_journal import read_requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run directory, read."""

    path: Path
    config: Config
    started: Started
    planned_steps: int
    steps: tuple[StepRecord, ...]
    """Slim ones, without features."""
    evaluations: tuple[EvaluationRecord, ...]
    """Those during training."""
    totals: Mapping[str, Any]
    resumed: tuple[int, ...]
    """Steps after which the run was resumed."""
    is_finished: bool
    model: Mapping[str, str]
    """File -> hash of the trained model; empty until there is one."""
    evaluation: RunEvaluation | None
    base_evaluation: RunEvaluation | None
    """That of the model before training."""
    utility_audits: tuple[UtilityAudit, ...]
    geometry: GeometryAudit | None
    repeated_calls: int = 0
    """Teacher calls that were lost in a kill and made again; the totals charge each once."""
    requests: Mapping[int, int] | None = None
    """Step -> requests that were sent for it, where the teacher is behind a server."""

    @property
    def shown(self) -> tuple[tuple[StepRecord, ShownRow], ...]:
        """Rows with their texts, each with its step."""
        return tuple((step, row) for step in self.steps for row in step.shown)

    @property
    def name(self) -> str:
        """The name of the run where several are compared."""
        return self.path.resolve().name

    @property
    def queries(self) -> tuple[QueryRecord, ...]:
        """The steps that queried a teacher under a budget."""
        return tuple(step for step in self.steps if isinstance(step, QueryRecord))

    @property
    def method(self) -> str:
        """The name of its method."""
        return self.config.method.name

    @property
    def has_queries(self) -> bool:
        """Whether its method queries a teacher under a budget."""
        return self.config.queries is not None

    @property
    def selects(self) -> bool:
        """Whether its method chooses what the teacher is asked about, under a budget."""
        return self.method == "bas-opd"

    @property
    def has_teacher(self) -> bool:
        """Whether a teacher scored or generated responses."""
        return self.has_queries or self.method == "sft"

    @property
    def select(self) -> SelectConfig:
        """How its queries are selected, if its method makes any."""
        return self.config.queries or self.config.select

    @property
    def rule(self) -> PolicyRule:
        """What is known of its policy."""
        return policy_rule(self.select.policy)

    @property
    def is_full(self) -> bool:
        """Whether it is BAS-OPD with full querying, the reference of costs."""
        return self.selects and self.rule.asks_everything

    @property
    def kind(self) -> str:
        """Its policy, or its method if that is not BAS-OPD."""
        return self.select.policy if self.selects else self.method

    @property
    def query_share(self) -> float:
        """Share of the candidates that it may query."""
        return float(self.select.query_ratio) if self.has_queries else 0.0

    @property
    def rewarded(self) -> tuple[PolicyRecord, ...]:
        """The steps that were rewarded."""
        return tuple(step for step in self.steps if isinstance(step, PolicyRecord))

    @property
    def policy(self) -> str:
        """How rows were selected, in the paper's words: full, learned-25; or the method."""
        if not self.selects:
            return self.method
        select = self.select
        kind = "" if select.budget == "calls" else f" of {select.budget.replace('_', ' ')}"
        covering = ", covering" if select.coverage and not self.rule.covers else ""
        return f"{self.rule.label(select.query_ratio)}{kind}{covering}"

    @property
    def leaves_nothing(self) -> bool:
        """Whether every candidate is asked about, so that no row is left to compare with."""
        return self.select.query_ratio == 1

    @property
    def own_evaluation(self) -> RunEvaluation | None:
        """The evaluation, unless it is known to be of other weights than this run's model."""
        found = self.evaluation
        return None if found is None or found.is_of_other_weights(self.model) else found

    @property
    def before(self) -> RunEvaluation | None:
        """The evaluation of the base, if it is on the questions of this run's own."""
        base, own = self.base_evaluation, self.own_evaluation
        is_comparable = base is not None and own is not None and own.is_comparable(base)
        return base if is_comparable else None

    @property
    def seconds(self) -> float:
        """The time of all phases together."""
        return sum(self.totals["seconds"].values())


def read_run(path: Path) -> Run:
    """Read a run directory, finished or not, or say why it cannot be read."""
    outline, steps = read_outline(path), list[StepRecord]()
    for _ in _kept(outline, steps):
        pass
    return _run(path, outline, steps)


def read_and_verify(path: Path) -> tuple[Run, Verification]:
    """Read and check a run directory in one pass over its records."""
    outline, steps = read_outline(path), list[StepRecord]()
    checked = verify(
        path, unfinished=True, files=False, outline=outline, steps=_kept(outline, steps)
    )
    return _run(path, outline, steps), checked


def _kept(outline: RunOutline, steps: list[StepRecord]) -> Iterator[StepRecord]:
    """Yield the steps of a run, and keep them slim."""
    for step in outline.read_steps(outline.problems.append):
        steps.append(step.slim())
        yield step


def _run(path: Path, history: RunOutline, steps: Sequence[StepRecord]) -> Run:
    sound(history)
    finished = history.finished
    totals, made = Ledger.of(steps).totals(), read_journal(history.directory.calls)
    asked = read_requests(history.directory.requests)
    return Run(
        path=path,
        config=history.config(),
        started=history.opening(),
        planned_steps=len(steps) if history.planned is None else history.planned,
        steps=tuple(steps),
        evaluations=tuple(history.evaluations),
        totals=totals,
        resumed=tuple(each.step for each in history.resumed),
        is_finished=finished is not None,
        model={} if finished is None else finished.model,
        evaluation=read_evaluation(history.directory.evaluation),
        base_evaluation=read_evaluation(history.directory.base_evaluation),
        utility_audits=utility_audits(path),
        geometry=geometry_audit(path),
        repeated_calls=0 if made is None else made.repeated(totals["calls"]),
        requests=None if asked is None else asked.requests,
    )
