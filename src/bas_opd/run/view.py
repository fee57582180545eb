"""A run as one screen of text: its last step, curves, and shares of what full querying costs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from bas_opd.run.curves import drawn_curves
from bas_opd.run.directory import RunDirectory
from bas_opd.run.history import summed_steps
from bas_opd.run.ledger import Ledger
from bas_opd.run.record import (
    EvaluationRecord,
    GradedRecord,
    PolicyRecord,
    QueryRecord,
    StepRecord,
    parse_step,
)
from bas_opd.run.record_file import Line, read_lines
from bas_opd.text import counted, duration, listed, percent

LEDGER = {
    "steps": "steps",
    "ranked_steps": "  that ranked by score",
    "learned_steps": "  that updated the predictor",
    "empty_steps": "  with nothing to learn from",
    "skipped_steps": "  skipped, not finite",
    "candidates": "candidates",
    "candidate_tokens": "candidate tokens",
    "calls": "teacher calls",
    "repeated": "  made again after a kill",
    "overrun": "  over budget, worst step",
    "scored_tokens": "teacher scored tokens",
    "processed_tokens": "teacher processed tokens",
    "prefilled_prompts": "teacher prefilled prompts",
    "student_tokens": "student processed tokens",
    "prefilled_tokens": "prompt tokens prefilled",
    "sampled_tokens": "response tokens sampled",
    "total_tokens": "total tokens, student's x 3",
    "dropped_labels": "labels dropped, not finite",
    "rollouts": "rollouts",
    "generated": "responses of the teacher",
    "rewards": "responses graded",
    "deferred": "  not readable by rule",
    "judged": "  decided by the judge",
    "reference_rows": "rows scored by the initial model",
    "dropped_groups": "prompts dropped",
    "updates": "optimizer updates",
}
"""Totals of the ledger in the order of the closing table, with their labels."""
QUERIES = frozenset(
    {
        *("ranked_steps", "learned_steps", "candidates", "candidate_tokens", "calls", "overrun"),
        *("scored_tokens", "processed_tokens", "prefilled_prompts", "dropped_labels", "repeated"),
    }
)
"""Totals of methods that query a teacher."""
REWARDS = frozenset({"rewards", "deferred"})
"""Totals of methods that grade responses."""
RARE = frozenset({"rollouts", "generated", "judged", "reference_rows", "dropped_groups"})
"""Totals that are shown where there is something to count."""
SHARES = {"calls": "candidates", "scored_tokens": "candidate_tokens"}
"""Totals that are shown as a share of what full querying costs."""
BARS = "▁▂▃▄▅▆▇█"
WIDTH = 60
"""Steps that a curve shows."""
PACE = 10
"""Steps that the remaining time is estimated from."""


@dataclass(slots=True, kw_only=True)
class RunView:
    """The steps of a run that were seen so far."""

    title: str = ""
    total: int = 0
    done: int = 0
    resumed: int = 0
    ledger: Ledger = field(default_factory=Ledger)
    recent: list[StepRecord] = field(default_factory=list)
    """The last steps."""
    evaluations: list[EvaluationRecord] = field(default_factory=list)

    def add_evaluation(self, evaluation: EvaluationRecord) -> None:
        """Take in one evaluation."""
        self.evaluations = [*self.evaluations, evaluation][-WIDTH:]

    def evaluation_line(self) -> str:
        """Return the last evaluation on one line."""
        last = self.evaluations[-1]
        return (
            f"evaluation after step {last.step}/{self.total}  {last.words}  "
            f"{counted(last.n, 'question')}  {duration(last.seconds)}"
        )

    def add(self, step: StepRecord) -> None:
        """Take in one step."""
        self.done = step.step + 1
        self.ledger.charge(step)
        self.recent = [*self.recent, step][-WIDTH:]

    def catch_up(self, run: RunDirectory) -> None:
        """Take in the steps and evaluations so far."""
        past = Past(run)
        for line in read_lines(run.records):
            event = past.event(line) or {}
            if event.get("event") == "step":
                self.add(parse_step(event))
            elif event.get("event") == "evaluation":
                self.add_evaluation(EvaluationRecord.model_validate(event))
            self.ledger = past.ledger(line) or self.ledger

    def line(self) -> str:
        """Return the last step on one line; what is not known is left out."""
        step = self.recent[-1]
        parts = [f"step {self.done}/{self.total}"]
        if step.is_empty:
            parts.append(f"empty: {_why_empty(step)}")
        elif step.is_skipped:
            parts.append("skipped: the loss or its gradient is not finite")
        parts += [part.text for part in _parts(step)]
        spent = [sum(each.seconds.values()) for each in self.recent[-PACE:]]
        remaining = fmean(spent) * max(0, self.total - self.done)
        parts += [duration(spent[-1]), f"eta {duration(remaining)}"]
        return "  ".join(parts)

    def lines(self) -> tuple[str, ...]:
        """Return the last step, the shares of full querying, curves, and where the time goes."""
        if not self.recent:
            return ("No step is on record yet.",)
        ledger = self.ledger
        totals = ledger.totals()
        lines = [self.title] if self.title else []
        lines += [self.line(), _summary(totals)]
        lines += [_curve(curve.name, values) for curve, values in drawn_curves(self.recent).items()]
        if self.evaluations:
            values = [each.accuracy for each in self.evaluations]
            lines.append(_curve(self.evaluations[-1].metric, values))
            lines.append(self.evaluation_line())
        spent = sum(ledger.seconds.values())
        if spent:
            phases = (f"{phase} {s / spent:.0%}" for phase, s in ledger.seconds.items() if s)
            lines.append(f"time {duration(spent)}: {', '.join(phases)}")
        if ledger.skipped_steps:
            lines.append(f"steps skipped, not finite: {ledger.skipped_steps:,}")
        if self.resumed:
            lines.append(f"times resumed: {self.resumed:,}")
        return tuple(lines)


class Past:
    """Leaves out the steps that a checkpoint has counted, but for the last, which are shown."""

    def __init__(self, run: RunDirectory) -> None:
        self._summed = summed_steps(run)
        self._steps = 0

    def event(self, line: Line) -> dict[str, Any] | None:
        """Return what a line holds, unless it is left out; lines must come in their order."""
        if line.is_step:
            self._steps += 1
            if self._steps <= self._summed.steps - WIDTH:
                return None
        return line.event()

    def ledger(self, line: Line) -> Ledger | None:
        """Return the ledger of all steps up to a line, if it is where the checkpoint was made."""
        return self._summed.ledger if line.end == self._summed.end else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the line of a step."""

    text: str
    meaning: str = ""
    """What its word means, where that must be said."""


def legend(step: StepRecord, explained: set[str]) -> str:
    """Return what the words in the line of a step mean that were not explained before."""
    new = [part.meaning for part in _parts(step) if part.meaning not in {"", *explained}]
    explained.update(new)
    return f"In the line of a step, {listed(new)}." if new else ""


def shown_total(name: str, totals: Mapping[str, Any]) -> str:
    """Return a total of the ledger, as a share of full querying where it is one."""
    if name in SHARES:
        return _share(totals[name], totals[SHARES[name]])
    return f"{totals[name]:,}"


def shown_totals(totals: Mapping[str, Any]) -> list[str]:
    """Return the totals that a method has, in the order of the closing table."""
    absent = {name for name in RARE if not totals[name]}
    if not totals["rewards"]:
        absent |= REWARDS
    if not totals["candidates"] and totals["steps"]:
        absent |= QUERIES
    return [name for name in LEDGER if name in totals and name not in absent]


def _summary(totals: Mapping[str, Any]) -> str:
    """Return what the run has cost so far, on one line."""
    if "calls" in shown_totals(totals):
        shares = "  ".join(f"{LEDGER[name]} {shown_total(name, totals)}" for name in SHARES)
        return f"{shares}  over budget, worst step {totals['overrun']}"
    names = ("rollouts", "generated", "rewards", "deferred", "dropped_groups", "updates")
    shown = [name for name in names if totals[name]]
    return "  ".join(f"{LEDGER[name].strip()} {shown_total(name, totals)}" for name in shown)


def _parts(step: StepRecord) -> list[Part]:
    """Return what the line of a step says of it; what is not known is left out."""
    if isinstance(step, PolicyRecord):
        return _policy_parts(step)
    parts = []
    if step.updates_made and step.loss is not None and math.isfinite(step.loss):
        parts.append(Part(text=f"loss {step.loss:.4f}"))
    if isinstance(step, QueryRecord):
        parts += _query_parts(step)
    elif isinstance(step, GradedRecord):
        parts += _grade_parts(step)
    return parts


def _why_empty(step: StepRecord) -> str:
    if isinstance(step, QueryRecord):
        return "no row was selected"
    if isinstance(step, PolicyRecord):
        return "no prompt has rewards that differ"
    return "no row to learn from"


def _policy_parts(step: PolicyRecord) -> list[Part]:
    """Lead with the reward: with one update a step the loss is 0 but for the KL penalty."""
    parts = [
        Part(
            text=f"reward {fmean(step.rewards or [0.0]):.3f}",
            meaning="reward is the mean of all rollouts",
        ),
        *_grade_parts(step),
    ]
    if step.kl is not None:
        parts.append(Part(text=f"KL {step.kl:.2g}", meaning="KL is that to the initial model"))
    if step.updates_made and step.gradient_norm is not None:
        parts.append(
            Part(
                text=f"gradient {step.gradient_norm:.3g}",
                meaning="gradient is its norm before clipping",
            )
        )
    if step.clip_share is not None:
        parts.append(
            Part(
                text=f"clipped {percent(step.clip_share)}",
                meaning="clipped are the tokens whose gradient the clipped ratio takes away",
            )
        )
    if step.dropped_groups or len(step.rounds) > 1:
        parts.append(
            Part(
                text=f"rounds {len(step.rounds)}, kept {len(step.kept)}/{len(step.examples)}",
                meaning="rounds are batches of prompts that were sampled, with prompts kept / "
                "drawn",
            )
        )
    return parts


def _grade_parts(step: GradedRecord) -> list[Part]:
    if not step.grades:
        return []
    parts = [
        Part(
            text=f"right {step.right}/{len(step.grades)}",
            meaning="right are responses that are right / graded",
        )
    ]
    if step.deferred:
        parts.append(
            Part(
                text=f"deferred {step.deferred}",
                meaning="deferred are responses that no rule could read",
            )
        )
    return parts


def _query_parts(step: QueryRecord) -> list[Part]:
    queries = f"queries {step.calls}/{step.budget}"
    meaning = "queries are teacher calls made / allowed (K)"
    if step.budget_kind != "calls":
        unit = step.budget_kind.replace("_", " ")
        queries = f"queries {step.calls}, {step.used:,}/{step.budget:,} {unit}"
        meaning = f"queries are teacher calls, with {unit} used / allowed (K)"
    if step.explored:
        queries += f" ({len(step.explored)} explored)"
    parts = [
        Part(text=queries, meaning=meaning),
        Part(
            text=f"tokens {_share(step.scored_tokens, step.candidate_tokens)}",
            meaning="tokens are those the teacher scored",
        ),
    ]
    ranked, explored = step.mean_utility
    if ranked is not None and explored is not None:
        parts.append(
            Part(
                text=f"u {_scientific(ranked)} / {_scientific(explored)}",
                meaning="u is the mean utility of rows chosen by score / at random",
            )
        )
    return parts


def _share(part: int, full: int) -> str:
    return f"{part:,} ({100 * part / full:.1f} % of full)" if full else f"{part:,}"


def _scientific(value: float) -> str:
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def _curve(label: str, values: Sequence[float | None]) -> str:
    """Draw numbers as a row of bars between the lowest and the highest."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return f"{label:<18}not known"
    low, high = min(known), max(known)
    reach = (high - low) or 1.0
    bars = "".join(
        " "
        if value is None or not math.isfinite(value)
        else BARS[round((value - low) / reach * (len(BARS) - 1))]
        for value in values
    )
    return f"{label:<18}{bars}  {known[-1]:.3g} ({low:.3g} to {high:.3g})"
