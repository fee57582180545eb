"""What stands between any trainer and its teacher: lines 4-11 and 14 of Algorithm 1.

A trainer calls `select` after sampling, `admit` before every teacher call, `observe` after it and
`finish` after its update, or `abandon` where the step failed. It needs torch, and no trainer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from bas_opd.budget import query_budget, step_budget
from bas_opd.errors import BudgetError, CheckpointError
from bas_opd.files import write_bytes
from bas_opd.run.ledger import Ledger
from bas_opd.run.record import QueryRecord
from bas_opd.select import (
    EntropySelector,
    FullSelector,
    LearnedSelector,
    RandomSelector,
    Selector,
    features_from,
)
from bas_opd.types import FEATURES, Budget, BudgetKind, Candidates, Costs, Selection

STATE_FILE = "bas_opd.safetensors"
"""What a gate adds to a checkpoint."""


@dataclass(slots=True, kw_only=True)
class _Step:
    """A step whose teacher calls are not all made yet."""

    number: int
    prompt_tokens: list[int]
    response_tokens: list[int]
    candidates: Candidates
    selection: Selection
    asked: list[int] = field(default_factory=list)
    observed: dict[int, float] = field(default_factory=dict)


class QueryGate:
    """Chooses the rows of a step that the teacher may score, and refuses every other row."""

    def __init__(
        self,
        *,
        query_ratio: float | str | Decimal = "0.25",
        selector: Selector | None = None,
        budget: BudgetKind = "calls",
    ) -> None:
        query_budget(query_ratio, 0)  # a bad ratio fails here, not after the first rollouts
        Budget(limit=0, kind=budget, costs=None if budget == "calls" else Costs(rows={}))
        self.query_ratio = query_ratio
        self.budget: BudgetKind = budget
        self.selector = LearnedSelector() if selector is None else selector
        self.ledger = Ledger()
        self.record: QueryRecord | None = None
        """The last step that was finished."""
        self._step: _Step | None = None

    @property
    def reads_features(self) -> bool:
        """Whether the selector needs log-probs and entropies of the rollouts."""
        return not isinstance(self.selector, FullSelector | RandomSelector)

    @property
    def learns(self) -> bool:
        """Whether the selector may learn from utilities."""
        return self.reads_features and not isinstance(self.selector, EntropySelector)

    def select(
        self,
        *,
        step: int,
        response_tokens: Sequence[int],
        prompt_tokens: Sequence[int],
        logprobs: Tensor | None = None,
        entropies: Tensor | None = None,
        crop_areas: Sequence[float] | None = None,
        prompts: Sequence[int] | None = None,
        texts: Sequence[Hashable] | None = None,
    ) -> tuple[int, ...]:
        """Return S, the rows that the teacher may score in this step (Alg. 1, lines 4-10).

        `logprobs` and `entropies` are `[row, token]` as for `features_from`. C has every row with
        at least one response token.
        """
        if self._step is not None:
            raise BudgetError(
                f"Step {step} would select rows while step {self._step.number} is not finished. "
                "Call finish() after the update of each step, or abandon() after one that failed."
            )
        lengths, opened = list(response_tokens), list(prompt_tokens)
        if len(lengths) != len(opened):
            raise ValueError(
                f"response_tokens has {len(lengths)} rows, but prompt_tokens {len(opened)}. Pass "
                "the tokens of every row in both."
            )
        rows = tuple(row for row, length in enumerate(lengths) if length > 0)
        place = list(range(len(lengths))) if prompts is None else list(prompts)
        values = torch.zeros(len(rows), len(FEATURES), dtype=torch.float64)
        if logprobs is not None:
            chosen = list(rows)
            values = features_from(
                logprobs[chosen],
                [lengths[row] for row in rows],
                entropies=None if entropies is None else entropies[chosen],
                prompt_lengths=[opened[row] for row in rows],
                crop_areas=None if crop_areas is None else [crop_areas[row] for row in rows],
            )
        elif self.reads_features:
            raise ValueError(
                f"{type(self.selector).__name__} ranks rows by what their sampler measured. Pass "
                "logprobs, or select with RandomSelector."
            )
        candidates = Candidates(
            rows=rows,
            values=values,
            has_entropy=entropies is not None,
            prompts=tuple(place[row] for row in rows),
            tokens=tuple(lengths[row] for row in rows),
            texts=None if texts is None else tuple(texts[row] for row in rows),
        )
        budget = step_budget(self.query_ratio, rows, self.budget, self._costs(lengths, opened))
        selection = self.selector.select(candidates, budget, step=step)
        self._step = _Step(
            number=step,
            prompt_tokens=opened,
            response_tokens=lengths,
            candidates=candidates,
            selection=selection,
        )
        return selection.rows

    def admit(self, rows: Sequence[int]) -> None:
        """Count rows that the teacher is about to score; raise if they were not selected."""
        step = self._opened("asks the teacher")
        if others := set(rows) - set(step.selection.rows):
            raise BudgetError(
                f"Step {step.number} asks the teacher about row {min(others)}, which was not "
                f"selected. The budget of the step is {step.selection.limit}."
            )
        if len({*step.asked, *rows}) < len(step.asked) + len(rows):
            raise BudgetError(
                f"Step {step.number} asks the teacher about a row twice; a row counts once."
            )
        step.asked.extend(rows)

    def observe(self, utility: Mapping[int, float]) -> None:
        """Take in the utility of rows that the teacher scored (Eq. 9)."""
        step = self._opened("observes utilities")
        if others := utility.keys() - set(step.asked):
            raise BudgetError(
                f"Step {step.number} observes a utility of row {min(others)}, which the teacher "
                "was not asked about."
            )
        step.observed.update(utility)

    def finish(self, *, loss: float | None = None) -> QueryRecord:
        """Let the selector learn and charge the ledger; return the record of the step."""
        step = self._opened("finishes")
        labels = _finite(step.observed)
        learned = self.selector.learn(step.candidates, labels, step=step.number)
        return self._charge(step, labels, learned=learned, loss=loss)

    def abandon(self) -> QueryRecord | None:
        """Charge what an unfinished step has asked, and close it; nothing is learned from it."""
        if (step := self._step) is None:
            return None
        return self._charge(step, _finite(step.observed), learned=False, loss=math.nan)

    def save(self, folder: str | Path) -> None:
        """Write selector and ledger into the folder of a checkpoint."""
        if self._step is not None:
            raise BudgetError(
                f"A checkpoint would be saved while step {self._step.number} is not finished, and "
                "its calls not charged. Call finish() or abandon() first."
            )
        about = {"selector": type(self.selector).__name__, "ledger": self.ledger.totals()}
        state = save(self.selector.state_dict(), metadata={"bas_opd": json.dumps(about)})
        write_bytes(Path(folder) / STATE_FILE, state)

    def load(self, folder: str | Path) -> None:
        """Restore what `save` wrote; a step that was not finished is forgotten."""
        path = Path(folder) / STATE_FILE
        if not path.is_file():
            raise CheckpointError(
                f"{path} is missing, so the state of the selector and the ledger cannot be "
                "restored. Resume from a checkpoint that was saved with a budget."
            )
        try:
            with safe_open(path, framework="pt") as file:
                about = json.loads((file.metadata() or {})["bas_opd"])
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            known, ledger = about["selector"], Ledger.carried_on(about["ledger"])
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{path} is damaged ({error}). Resume from another checkpoint."
            ) from error
        if ledger is None:
            raise CheckpointError(
                f"The ledger in {path} lacks totals that this version keeps. Resume with the "
                "version that saved it, or from another checkpoint."
            )
        if known != type(self.selector).__name__:
            raise CheckpointError(
                f"{path} was saved with {known}, but the selector now is "
                f"{type(self.selector).__name__}. Resume with the selector of the checkpoint."
            )
        self.selector.load_state_dict(state)
        self.ledger, self._step = ledger, None

    def _opened(self, does: str) -> _Step:
        if self._step is None:
            raise BudgetError(
                f"The trainer {does} before it has selected rows. Call select() first."
            )
        return self._step

    def _costs(self, lengths: Sequence[int], prompts: Sequence[int]) -> Costs | None:
        """Return what rows cost in tokens; each has its prompt computed."""
        match self.budget:
            case "calls":
                return None
            case "scored_tokens":
                return Costs(rows=dict(enumerate(lengths)))
            case "processed_tokens":
                both = zip(prompts, lengths, strict=True)
                return Costs(rows={row: sum(tokens) for row, tokens in enumerate(both)})

    def _charge(
        self, step: _Step, labels: Mapping[int, float], *, learned: bool, loss: float | None
    ) -> QueryRecord:
        self.record = self._recorded(step, labels, learned=learned, loss=loss)
        self.ledger.charge(self.record)
        self._step = None
        return self.record

    def _recorded(
        self, step: _Step, labels: Mapping[int, float], *, learned: bool, loss: float | None
    ) -> QueryRecord:
        candidates, selection, asked = step.candidates, step.selection, sorted(step.asked)
        budget = Budget.of(selection.budget)
        responses, prompts = step.response_tokens, step.prompt_tokens
        scored = sum(responses[row] for row in asked)
        processed = scored + sum(prompts[row] for row in asked)
        costs = None if budget.costs is None else budget.costs.rows
        return QueryRecord(
            step=step.number,
            examples=[str(row) for row in range(len(responses))],
            per_prompt=1,
            prompt_tokens=prompts,
            response_tokens=responses,
            student_tokens=processed,
            is_valid=bool(asked) and (loss is None or math.isfinite(loss)),
            seconds={},
            loss=_number(loss),
            candidates=list(candidates.rows),
            candidate_tokens=sum(candidates.tokens or ()),
            feature_names=list(FEATURES),
            features=[[_number(value) for value in row] for row in candidates.values.tolist()],
            has_entropy=candidates.has_entropy,
            query_ratio=str(self.query_ratio),
            budget=budget.limit,
            budget_kind=budget.kind,
            spent=selection.spent,
            full_cost=budget.spent(candidates.rows),
            costs=None if costs is None else [costs[row] for row in candidates.rows],
            selected=list(selection.rows),
            explored=sorted(selection.explored),
            scores=[selection.scores.get(row) for row in candidates.rows],
            utility=[labels.get(row) for row in selection.rows],
            scored=asked,
            dropped=sorted({*selection.rows} - {*asked}),
            calls=len(asked),
            overrun=max(0, budget.spent(asked) - budget.limit),
            scored_tokens=scored,
            processed_tokens=processed,
            prefilled_prompts=len(asked),
            learned=learned,
            dropped_labels=len(step.observed) - len(labels),
        )


def _finite(values: Mapping[int, float]) -> dict[int, float]:
    return {row: value for row, value in values.items() if math.isfinite(value)}


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
