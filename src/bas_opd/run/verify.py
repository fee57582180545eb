"""Whether a run did what its settings say: budget, choice, ledger and files, from its records.

Imports no torch, and trusts nothing that can be recomputed. Only random draws and predictions need
torch, and are recomputed on request.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bas_opd.budget import query_budget
from bas_opd.config.loading import differences, dump, recorded_config
from bas_opd.config.schema import Config, MethodName, SelectConfig
from bas_opd.data.records import grades_by_last_word
from bas_opd.errors import BasOpdError, CheckpointError, DataError
from bas_opd.files import hash_of
from bas_opd.run.history import RunOutline, collect_outline
from bas_opd.run.journal import read_journal
from bas_opd.run.ledger import LATER, Ledger
from bas_opd.run.manifest import (
    STATE,
    published,
    read_json,
    step_of,
    verify_checkpoint,
    verify_files,
)
from bas_opd.run.ordering import order_check, training_data
from bas_opd.run.record import GenerationRecord, PolicyRecord, QueryRecord, Resumed, StepRecord
from bas_opd.run.regrading import generation_problems, policy_problems
from bas_opd.run.replaying import Replay, selection_check
from bas_opd.select.rules import PolicyRule, policy_rule
from bas_opd.serving.request_journal import RequestJournal, read_requests, without_retries
from bas_opd.text import counted, listed
from bas_opd.types import FEATURES, LOGPROB_TOLERANCE, TeacherSupport
from bas_opd.validation import first_problem

KINDS: Mapping[MethodName, type[StepRecord]] = {
    "bas-opd": QueryRecord,
    "opsd": QueryRecord,
    "grpo": PolicyRecord,
    "dapo": PolicyRecord,
    "sft": GenerationRecord,
}
"""Method -> what its steps are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that must hold, with what was found wrong and what was not looked at."""

    name: str
    problems: tuple[str, ...]
    note: str = ""

    @property
    def is_sound(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The checks of one run."""

    run: str
    steps: int
    planned_steps: int | None
    is_finished: bool
    recomputed_draws: bool
    """Whether every random draw and prediction was recomputed, if there are any."""
    checks: tuple[Check, ...]
    remarks: tuple[str, ...] = ()
    """What is in order but surely not meant."""

    @property
    def is_sound(self) -> bool:
        return all(check.is_sound for check in self.checks)


def verify(
    run: Path,
    *,
    unfinished: bool = False,
    draws: bool = False,
    files: bool = True,
    data: Path | None = None,
    outline: RunOutline | None = None,
    steps: Iterable[StepRecord] | None = None,
) -> Verification:
    """Check a run directory; `unfinished` accepts one that has steps left, `draws` needs torch.

    `data` is where the training data is now, if it has moved; `outline` is of the run, if it was
    read already, and `steps` are those of the records, if the caller reads them.
    Without `files`, checkpoints and model are left alone: hashing them reads every gigabyte.
    """
    outline = outline or collect_outline(run)
    damage = list(outline.problems)
    if outline.is_cut and not (unfinished and outline.finished is None):
        damage.append(outline.cut)
    if outline.started is None and not damage:
        damage.append("The started event, which comes first, is missing.")
    config, settings = _settings(outline)
    select = config.queries if config else None
    rule = policy_rule(select.policy) if select else None
    replay = Replay(select) if draws and select else None
    found = training_data(outline.started, data) if config else None

    foreign, learned = _StepCheck(_foreign(config)), _StepCheck(_learning(outline, config))
    order, cost = _StepCheck(_order()), _StepCheck(_cost)
    ranks = _StepCheck(_ranks(outline))
    examples = _StepCheck(order_check(config, found) if config and found else _nothing)
    budget, selection = _StepCheck(_nothing), _StepCheck(_nothing)
    drawn = _StepCheck(_drawing(outline, config) if config else _nothing)
    requests = _Requests(outline, config)
    if config and select and rule:
        budget = _StepCheck(_queries(_budget(config, select)))
        selection = _StepCheck(_queries(selection_check(select, rule, replay)))
    checkpoints = published(outline.directory.checkpoints) if files else []
    sums = _Sums(at=frozenset(map(step_of, checkpoints)))
    for step in outline.read_steps(damage.append) if steps is None else steps:
        for check in (foreign, order, examples, drawn, learned, budget, selection, cost, ranks):
            check.add(step)
        requests.add(step)
        sums.add(step)

    taken = sums.ledger.steps
    damage += foreign.problems
    checks = [
        _check("records", damage, f"{taken} steps, chain intact"),
        _check("settings", settings, "hash and run.json agree"),
        _check("order", order.problems, "each step once"),
    ]
    if config is None:
        unknown = ["not checked, since the settings of the run are not known."]
        checks += [_check(name, unknown) for name in ("examples", "budget", "selection")]
    else:
        scope = "in the order of the data" if found else "not checked: the data is not there"
        checks.append(_check("examples", examples.problems, scope))
        note = _drawing_note(config)
        if drawn.problems or note:
            checks.append(_check("rollouts", drawn.problems, note))
    if config and select and rule:
        checks += [
            _check("budget", budget.problems, _budget_note(select)),
            _check("selection", selection.problems, _scope(rule, replay)),
        ]
    elif config:
        checks.append(_check("learning", learned.problems, _learning_note(config)))
    checks += [
        _check("cost", cost.problems, "calls and tokens" if select else "tokens"),
        *_processes(outline, ranks.problems),
        _check("totals", _ledger(outline, sums.ledger), "sums of the steps"),
        *(_journal(outline, sums.ledger) if select else ()),
        *requests.checks(),
        _check(
            "complete",
            _completeness(outline, taken, unfinished=unfinished),
            f"all {taken} steps"
            if outline.finished
            else f"{taken} of {outline.planned} steps, unfinished",
        ),
    ]
    if files:
        model = "hashes agree" if outline.finished else "none yet"
        run_id = outline.started.run_id if outline.started else ""
        checks += [
            _check(
                "checkpoints", _checkpoints(checkpoints, sums, run_id), f"{len(checkpoints)} intact"
            ),
            _check("model", _model(outline), model),
        ]
    return Verification(
        run=str(run),
        steps=taken,
        planned_steps=outline.planned,
        is_finished=outline.finished is not None,
        recomputed_draws=replay is not None or not (rule and rule.draws_at_random),
        checks=tuple(checks),
        remarks=(
            *_accepted(outline),
            *(_remarks(outline, sums, select, rule) if select and rule else ()),
            *(_unlearned(config, sums.ledger) if config and not select else ()),
        ),
    )


StepProblems = Callable[[StepRecord], Iterable[str]]
"""Says what is wrong with a step; steps come in their order."""


class _StepCheck:
    """What is wrong with the steps, one at a time."""

    def __init__(self, problems_of: StepProblems) -> None:
        self._problems_of = problems_of
        self.problems: list[str] = []

    def add(self, step: StepRecord) -> None:
        self.problems += [f"step {step.step}: {each}" for each in self._problems_of(step)]


def _queries(problems_of: Callable[[QueryRecord], Iterable[str]]) -> StepProblems:
    """Leave out steps without queries."""
    return lambda step: problems_of(step) if isinstance(step, QueryRecord) else ()


def _nothing(step: StepRecord) -> Iterable[str]:
    return ()


class _Sums:
    """Sums over the steps, at the end and at some of them."""

    def __init__(self, *, at: frozenset[int]) -> None:
        self._at = at
        self.ledger = Ledger()
        self.batches = 0
        self.saved: dict[int, tuple[dict[str, Any], int]] = {0: (Ledger().totals(), 0)}
        """Steps -> totals, and batches that were taken from the data."""
        self.with_candidates = self.asked_nothing = self.ranked = self.labels = 0
        """Steps with candidates, those of them that asked nothing or ranked; and all labels."""
        self.supports: list[tuple[int, TeacherSupport]] = []
        """Each step from which on a served teacher was compared at the tokens of another model."""

    def add(self, step: StepRecord) -> None:
        self.ledger.charge(step)
        self.batches += step.batches
        if self.ledger.steps in self._at:
            self.saved[self.ledger.steps] = (self.ledger.totals(), self.batches)
        if isinstance(step, QueryRecord) and step.candidates:
            self.with_candidates += 1
            self.asked_nothing += not step.selected
            self.ranked += step.is_ranked
            self.labels += step.labels
            if step.support and step.support not in (each for _, each in self.supports[-1:]):
                self.supports.append((step.step, step.support))


def _foreign(config: Config | None) -> StepProblems:
    """Find the steps that are not of the run's method."""
    name = config.method.name if config else "bas-opd"
    kind = KINDS[name]
    problem = "candidates is missing." if kind is QueryRecord else f"it is no step of {name}."
    return lambda step: () if type(step) is kind else (problem,)


def _drawing(outline: RunOutline, config: Config) -> StepProblems:
    """Find steps whose rollouts are drawn or weighed otherwise than the settings say."""
    # A run that is prolonged has drawn nothing for the step after its first end.
    ends = {each.steps for each in (outline.started, *outline.resumed) if each is not None}
    allowed = max((_largest_gap(each) for each in _configs(outline)), default=_largest_gap(config))

    def problems(step: StepRecord) -> Iterator[str]:
        ahead, number = config.rollout.ahead, step.step
        drawn_at = {max(0, number - 1), *({number} & ends)} if ahead else {None}
        if step.examples and step.sampled_at not in drawn_at:
            yield f"sampled_at is {step.sampled_at}, which is not what rollout.ahead={ahead} says."
        yield from _engine_problems(step, config, allowed)
        rows = step.scored if isinstance(step, QueryRecord) else step.rows or []
        found = step.importance
        if (found is not None) != (config.importance_cap is not None and bool(rows)):
            yield f"importance is {'missing' if found is None else 'on record, but not in use'}."
        if found is None or not set(rows) <= set(range(len(step.response_tokens))):
            return
        if found.tokens != (tokens := sum(step.response_tokens[row] for row in rows)):
            yield f"importance is of {found.tokens} tokens, but its rows have {tokens}."
        if not 0 <= found.truncated <= found.tokens:
            yield f"importance has {found.truncated} of {found.tokens} weights truncated."
        mean, most = found.mean_difference, found.max_difference
        if mean is None or most is None:
            if step.loss is not None:
                yield "importance has no differences, but the loss is finite."
            return
        if not 0 <= mean <= most * (1 + 1e-6):
            yield f"importance has a mean difference of {mean} and a largest one of {most}."
        # A weight is truncated where log p - log q is above the logarithm of the cap.
        least = math.log(config.importance_cap or 1) - 1e-5
        if found.truncated and (most < least or mean * found.tokens < found.truncated * least):
            yield (
                f"importance has {found.truncated} weights truncated, but a mean difference of "
                f"{mean} and a largest one of {most}."
            )

    return problems


def _largest_gap(config: Config) -> float:
    """Return how far another engine's log-probs may be from the trainer's."""
    usual = LOGPROB_TOLERANCE.get(config.model.precision, max(LOGPROB_TOLERANCE.values()))
    return config.rollout.logprob_tolerance or usual


def _engine_problems(step: StepRecord, config: Config, most: float) -> Iterator[str]:
    """Find engine records that contradict the step or the settings."""
    found, engine = step.engine, config.rollout.engine
    if (found is not None) != (engine != "sampler" and bool(step.examples)):
        yield f"engine is {'missing' if found is None else 'on record'}, but {engine} draws."
    if found is None:
        return
    # SFT draws with the initial weights, which never change.
    drawn_at = step.step if step.sampled_at is None else step.sampled_at
    if found.version != (version := 0 if config.method.name == "sft" else drawn_at):
        yield f"engine had version {found.version} of the weights, not {version}."
    rows, lengths = found.rescored_rows, step.response_tokens
    if not rows or len({*rows} & {*range(len(lengths))}) < len(rows):
        yield f"engine has rescored rows {rows}, which are not rows of the step, each once."
    else:
        rounds = step.rounds if isinstance(step, PolicyRecord) else [len(step.examples)]
        # Earlier versions counted the rows of one of several rounds from its own first.
        firsts = accumulate((prompts * step.per_prompt for prompts in rounds[:-1]), initial=0)
        tokens = [
            sum(lengths[first + row] for row in rows if first + row < len(lengths))
            for first in firsts
        ]
        if found.rescored_tokens not in tokens:
            yield (
                f"engine has {found.rescored_tokens} rescored tokens, but its rows have "
                f"{tokens[0]}."
            )
    if not 0 <= found.logprob_gap <= most:
        yield f"engine has a logprob_gap of {found.logprob_gap}, but may have {most:g} at most."


def _drawing_note(config: Config) -> str:
    cap = config.importance_cap
    parts = ["one step ahead"] if config.rollout.ahead else []
    parts += [f"drawn by {config.rollout.engine}"] if config.rollout.engine != "sampler" else []
    return ", ".join([*parts, *([] if cap is None else [f"importance weights up to {cap:g}"])])


def _learning(outline: RunOutline, config: Config | None) -> StepProblems:
    """Find what a method without queries should not have learned from."""
    if config is None or config.queries:
        return _nothing
    by_last_word = grades_by_last_word(outline.started.data.source if outline.started else "")
    has_prompts = False

    def problems(step: StepRecord) -> Iterable[str]:
        nonlocal has_prompts
        if isinstance(step, GenerationRecord) and config.method.name == "sft":
            found = generation_problems(step, config, by_last_word=by_last_word)
            if step.student_prompt_tokens is not None:
                has_prompts = True
            elif has_prompts:  # Steps of an earlier version, which a run may begin with, have none.
                return (*found, "student_prompt_tokens is missing, which earlier steps have.")
            return found
        if isinstance(step, PolicyRecord) and config.method.name != "sft":
            return policy_problems(step, config, by_last_word=by_last_word)
        return ()

    return problems


def _learning_note(config: Config) -> str:
    if config.method.name == "sft":
        return f"{config.sft.keep} responses of the teacher"
    return "rewards, advantages, kept prompts, updates"


def _accepted(outline: RunOutline) -> Iterator[str]:
    for opening in (outline.started, *outline.resumed):
        if opening is not None and opening.accepted_changes:
            step = opening.step if isinstance(opening, Resumed) else 0
            names = ", ".join(opening.accepted_changes)
            yield f"From step {step} on, changed files were accepted: {names}."


def _remarks(
    outline: RunOutline, sums: _Sums, select: SelectConfig, rule: PolicyRule
) -> Iterator[str]:
    if 2 * sums.asked_nothing > sums.with_candidates:
        ratio, kind = select.query_ratio, select.budget
        yield (
            f"In {sums.asked_nothing:,} of {sums.with_candidates:,} steps the teacher was asked "
            f"nothing: select.query_ratio={ratio} in {kind} paid for no query. Raise "
            "select.query_ratio or rollout.prompts_per_step."
        )
    if rule.learns and outline.finished is not None and not sums.ranked:
        yield (
            f"The {rule.name} policy ranked no row: it learns from {select.replay_start} "
            f"labels on (select.replay_start), and the run observed {sums.labels:,}. All rows "
            "were drawn at random."
        )
    for step, support in sums.supports[1:]:
        yield (
            f"From step {step} on, the teacher was compared at the likeliest tokens of the "
            f"{support}: the server had changed, and teacher.support is auto."
        )


def _unlearned(config: Config, ledger: Ledger) -> Iterator[str]:
    """Say that a method with rewards learned nothing in most steps."""
    if 2 * ledger.empty_steps <= ledger.steps:
        return
    if config.method.name == "sft":
        why = "no response of the teacher was kept"
    else:
        why = "the rollouts of each prompt all earned the same"
    yield (
        f"In {ledger.empty_steps:,} of {ledger.steps:,} steps nothing was learned: {why}. "
        "Compare the responses, which a report shows, with the answers of the data."
    )


def _check(name: str, problems: Iterable[str], note: str = "") -> Check:
    found = tuple(problems)
    return Check(name=name, problems=found, note="" if found else note)


def _settings(outline: RunOutline) -> tuple[Config | None, list[str]]:
    """Every recorded configuration must be valid, match its hash, and be of the same run."""
    started = outline.started
    if started is None:
        return None, ["the records hold no settings."]
    problems: list[str] = []
    sources = [("the started event", started.config, started.config_hash)]
    sources += [
        ("the resumed event", resumed.config, resumed.config_hash or "")
        for resumed in outline.resumed
        if resumed.config is not None
    ]
    identity = None
    try:
        if not outline.directory.identity.exists():
            raise DataError(f"{outline.directory.identity} is missing.")
        identity = outline.directory.read_identity()
        sources.append((outline.directory.identity.name, identity.config, identity.config_hash))
    except BasOpdError as error:
        problems.append(str(error))
    first: Config | None = None
    for place, settings, claimed in sources:
        try:
            config = recorded_config(settings)
        except ValidationError as error:
            problems.append(f"config of {place} is not valid: {first_problem(error)}.")
            continue
        first = first or config
        # The hash is of what was written, so that a setting which came later changes none.
        if claimed != hash_of(settings):
            problems.append(f"config_hash of {place} is not the hash of its config.")
        changes = differences(dump(first), dump(config))
        problems += [f"config of {place} is of another run: {change}." for change in changes]
    if identity is not None:
        facts = {
            "fingerprint": (identity.dataset.fingerprint, started.data.fingerprint),
            "steps": (identity.steps, outline.planned),
            "run_id": (identity.run_id, started.run_id),
            "teacher_files": (identity.teacher_files, started.teacher_files),
        }
        problems += [
            f"{name} of run.json is {theirs}, but the records say {ours}."
            for name, (theirs, ours) in facts.items()
            if theirs != ours
        ]
    if first and first.teacher.path is not None and not started.teacher_files:
        problems.append("the teacher is another model, but its files are not on record.")
    return first, problems


def _order() -> StepProblems:
    expected = 0

    def problems(step: StepRecord) -> Iterator[str]:
        nonlocal expected
        if step.step > expected:
            yield f"step {expected} is missing before it."
        elif step.step < expected:
            yield f"on record again, where step {expected} should stand."
        expected = step.step + 1

    return problems


def _budget(config: Config, select: SelectConfig) -> Callable[[QueryRecord], Iterator[str]]:
    """K is the exact floor, and S is within it and within C (Eq. 4), which is within the batch."""
    rollout = config.rollout
    batch = (rollout.prompts_per_step, rollout.per_prompt)
    opening_of: dict[str, int] = {}

    def problems(step: QueryRecord) -> Iterator[str]:
        if (len(step.examples), step.per_prompt) != batch:
            yield (
                f"{len(step.examples)} examples by {step.per_prompt} rollouts, where the settings "
                f"say {batch[0]} by {batch[1]}."
            )
        if step.query_ratio != str(select.query_ratio):
            yield f"query_ratio is {step.query_ratio}, not {select.query_ratio}."
        if step.budget_kind != select.budget:
            yield f"budget_kind is {step.budget_kind}, not {select.budget}."
        yield from _lengths(step)
        yield from _prices(step)
        yield from _openings(step, config.data.max_prompt_tokens, opening_of)
        yield from _spending(step, select)
        if len(set(step.selected)) != len(step.selected):
            yield "selected names a row twice."
        if outside := set(step.selected) - set(step.candidates):
            yield f"selected names row {min(outside)}, which is no candidate."
        if outside := set(step.explored) - set(step.selected):
            yield f"explored names row {min(outside)}, which was not selected."

    return problems


def _prices(step: QueryRecord) -> Iterator[str]:
    """What each row costs in tokens is what its response has, and repeats are as long."""
    for row, cost in zip(step.candidates, step.costs or (), strict=bool(step.costs)):
        own = step.response_tokens[row] - (step.budget_kind == "processed_tokens")
        if cost != own:
            yield f"costs has {cost} for row {row}, but {own} of its tokens are {step.budget_kind}."
    if step.budget_kind == "scored_tokens" and any(step.openings or ()):
        yield "openings charges prompts, but only response tokens are scored."
    tokens_of: dict[tuple[int, int], int] = {}
    for row, text in (step.text_of or {}).items():
        tokens = step.response_tokens[row]
        if tokens_of.setdefault((row // step.per_prompt, text), tokens) != tokens:
            yield f"texts has row {row} as a repeat of another, but their lengths differ."


def _lengths(step: QueryRecord) -> Iterator[str]:
    """The lengths among the features are those on record."""
    if step.feature_names != list(FEATURES):
        yield "feature_names are not those that the selector reads."
        return
    lengths = {
        "response_tokens": {row: step.response_tokens[row] for row in step.candidates},
        "prompt_tokens": {row: step.prompt_tokens[p] for row, p in step.prompt_of.items()},
    }
    for name, expected in lengths.items():
        if step.feature_of(name) != expected:
            yield f"features has other {name} than the step."


def _openings(step: QueryRecord, longest: int, known: dict[str, int]) -> Iterator[str]:
    """What a prompt costs is the same in every step; `known` has the prompts of earlier ones."""
    if step.budget_kind != "processed_tokens":
        return
    openings = dict(enumerate(step.openings or ()))
    for prompt in sorted(set(step.prompt_of.values())):
        example, cost = step.examples[prompt], openings.get(prompt, 0)
        if not 0 < cost <= longest:
            yield f"openings has {cost} for {example}, but a prompt has 1 to {longest} tokens."
        elif known.setdefault(example, cost) != cost:
            yield f"openings has {cost} for {example}, but {known[example]} in an earlier step."


def _spending(step: QueryRecord, select: SelectConfig) -> Iterator[str]:
    full = step.budget_of(0).spent(step.candidates)
    allowed = query_budget(select.query_ratio, full)
    if step.full_cost != full and not (step.full_cost is None and step.budget_kind == "calls"):
        yield f"full_cost is {step.full_cost}, but its candidates make {full}."
    if step.budget != allowed:
        yield (f"budget is {step.budget}, but floor({select.query_ratio} x {full}) is {allowed}.")
    if not set(step.selected) <= set(step.candidates):
        return
    budget = step.budget_of(allowed)
    spent = budget.spent(step.selected)
    if step.spent != spent and not (step.spent is None and step.budget_kind == "calls"):
        yield f"spent is {step.spent}, but its selected rows make {spent}."
    if spent > allowed and budget.kind == "calls":
        yield f"selected holds {spent} rows, more than K = {allowed}."
    elif spent > allowed:
        yield f"selected costs {spent} {budget.unit}, more than K = {allowed}."


def _budget_note(select: SelectConfig) -> str:
    kind = "" if select.budget == "calls" else f" in {select.budget}"
    return f"K of {select.query_ratio}{kind}"


def _scope(rule: PolicyRule, replay: Replay | None) -> str:
    if replay is not None or not rule.draws_at_random:
        return rule.name
    what = "random draws and predictions" if rule.learns else "random draws"
    return f"{rule.name}; {what} not recomputed"


def _cost(step: StepRecord) -> Iterator[str]:
    """What a step cost is what its rows cost."""
    if isinstance(step, QueryRecord):
        yield from _query_cost(step)
        return
    for name, value in step.token_costs.items():
        if getattr(step, name) != value:
            yield f"{name} is {getattr(step, name)}, but its rows make {value}."
    if len(step.prompt_tokens) != len(step.examples):
        yield "prompt_tokens and examples differ in length."


def _query_cost(step: QueryRecord) -> Iterator[str]:
    """The teacher scored S and nothing else, and what it cost is what those rows cost."""
    if sorted(step.scored + step.dropped) != sorted(step.selected):
        yield "scored and selected name different rows."
    expected = {
        "calls": len(step.scored),
        "overrun": max(0, step.used - step.budget),
        "candidate_tokens": step.tokens_of(step.candidates),
    }
    if set(step.scored) <= set(step.candidates):
        expected["scored_tokens"] = step.tokens_of(step.scored)
    if step.budget_kind == "processed_tokens" and step.spent is not None:
        expected["processed_tokens"] = step.spent  # itself compared with the rows' costs
    expected |= {k: v for k, v in step.token_costs.items() if getattr(step, k) is not None}
    for name, value in expected.items():
        if getattr(step, name) != value:
            yield f"{name} is {getattr(step, name)}, but its rows make {value}."
    yield from _passes(step)
    if step.overrun:
        yield f"overrun is {step.overrun}: the teacher was asked too much."


def _passes(step: QueryRecord) -> Iterator[str]:
    """Teacher and student compute a prompt at least once, and at most once for each of its rows."""
    if not set(step.selected) <= set(step.candidates):
        return  # the budget check names the row
    rows = [row for row in step.selected if row not in step.dropped]
    places = [step.prompt_of[row] for row in rows]
    prompts = set(places)
    once = step.budget_kind == "processed_tokens"
    bounds = {
        "prefilled_prompts": (len(prompts), len(prompts if once else places)),
        "student_tokens": _fed(step, rows),
        # Before the teacher was asked none were dropped.
        "rescored_tokens": _fed(step, step.selected) if step.support == "student" else (0, 0),
    }
    for name, (least, most) in bounds.items():
        if not least <= getattr(step, name) <= most:
            yield f"{name} is {getattr(step, name)}, but its rows make {least} to {most}."


def _fed(step: QueryRecord, rows: Sequence[int]) -> tuple[int, int]:
    """Return the fewest and the most tokens that the student computes for rows."""
    places = [step.prompt_of[row] for row in rows]
    read = step.tokens_of(rows) - len(rows)  # the last token is never fed
    least, most = (sum(step.prompt_tokens[p] for p in each) for each in (set(places), places))
    return read + least, read + most


def _sizes(outline: RunOutline) -> Iterator[tuple[int, int | None]]:
    """Yield each step from which on there were so many processes; older runs do not say."""
    for opening in (outline.started, *outline.resumed):
        if opening is not None:
            step = opening.step if isinstance(opening, Resumed) else 0
            found = (opening.environment or {}).get("processes", 1)
            is_known = opening.environment is not None and isinstance(found, int)
            yield step, found if is_known else None


def _ranks(outline: RunOutline) -> StepProblems:
    """What the processes computed together is what the step says; see `learn/learner.py`."""
    sizes = list(_sizes(outline))

    def problems(step: StepRecord) -> Iterator[str]:
        size = next((size for first, size in reversed(sizes) if first <= step.step), None)
        tokens, idle = step.student_tokens_of_ranks, step.idle_passes
        if size is not None:
            expected = size if size > 1 and step.student_tokens else 0
            if len(tokens or ()) != expected:
                yield (
                    f"student_tokens_of_ranks has {len(tokens or ())} numbers, but there were "
                    f"{counted(size, 'process', 'processes')}."
                )
        if tokens and (sum(tokens) != step.student_tokens or min(tokens) < 0):
            yield (
                f"student_tokens_of_ranks is {tokens}, but student_tokens is {step.student_tokens}."
            )
        if idle is None:
            return
        least = (tokens or ()).count(0)
        if idle < least or (idle and size == 1):
            yield f"idle_passes is {idle}, but {least} of {size} processes had no tokens."

    return problems


def _processes(outline: RunOutline, problems: Sequence[str]) -> Iterator[Check]:
    """Yield the check of a run that had several processes."""
    sizes = {size or 1 for _, size in _sizes(outline)}
    if problems or sizes - {1}:
        yield _check("processes", problems, f"tokens of {listed([*map(str, sorted(sizes))])}")


def _journal(outline: RunOutline, ledger: Ledger) -> Iterator[Check]:
    """Compare the calls that were made with those that are charged, where there is a journal."""
    try:
        made = read_journal(outline.directory.calls)
    except (DataError, OSError) as error:
        yield _check("journal", [str(error)])
        return
    if made is None:
        if outline.started and outline.started.has_journal:
            lost = "calls.jsonl is missing or empty: calls that a kill lost are not known."
            yield _check("journal", [lost])
        return
    repeated = made.repeated(ledger.calls)
    missing = f"calls.jsonl lacks {-repeated} of the {ledger.calls:,} calls that are on record."
    note = f"{ledger.calls:,} teacher calls charged, {repeated:,} made again after a kill"
    yield _check("journal", [missing] if repeated < 0 else [], note)


class _Requests(_StepCheck):
    """Whether the requests to a served teacher kept to their limits, from their own journal."""

    def __init__(self, outline: RunOutline, config: Config | None) -> None:
        super().__init__(_queries(self._problems))
        self._is_served = config is not None and config.teacher.server is not None
        # The limits may be raised when a run is resumed.
        settings = [each.teacher for each in _configs(outline)] if self._is_served else []
        self._retries = max((each.retries for each in settings), default=0)
        select = config.queries if config else None
        self._in_tokens = select is not None and select.budget == "scored_tokens"
        self._price = config.teacher.price_per_million_tokens if config else None
        self._support = config.teacher.support if config else "auto"
        self._sees_full = config is not None and config.teacher.view == "full"
        self._limit = max((each.spend_limit for each in settings if each.spend_limit), default=None)
        self._journal: RequestJournal | None = None
        try:
            if self._is_served:
                self._journal = read_requests(outline.directory.requests)
        except (DataError, OSError) as error:
            self.problems.append(str(error))

    def _problems(self, step: QueryRecord) -> Iterator[str]:
        if step.dropped and not self._is_served:
            yield "rows were dropped, but the teacher is not served."
        if step.support and not self._is_served:
            yield "log-probs were known at some tokens only, but the teacher is not served."
        elif step.support and self._support not in ("auto", step.support):
            yield f"support is {step.support}, but teacher.support is {self._support}."
        if self._journal is None:
            if step.scored and self._is_served:
                yield "the journal of requests is missing."
            return
        sent, most = self._journal.requests[step.step], len(step.selected) + self._retries
        if sent > most:
            yield f"{sent} requests were sent, more than {most}."
        if self._in_tokens:
            sent = without_retries(self._journal.response_tokens(step.step), self._retries)
            if sent > (most := step.tokens_of(step.selected)):
                yield (
                    f"{sent} response tokens were sent, more than {most}, without those of "
                    f"{self._retries} requests (teacher.retries)."
                )
        if missing := set(step.scored) - self._journal.rows(step.step):
            yield f"row {min(missing)} was scored, but no request for it is on record."
        if self._sees_full and set(step.scored) <= set(step.candidates):
            # The student's prompt, once for each row.
            prompts = sum(step.prompt_tokens[step.prompt_of[row]] for row in step.scored)
            if step.processed_tokens != (due := prompts + step.tokens_of(step.scored)):
                yield f"processed_tokens is {step.processed_tokens}, but its rows make {due}."

    def checks(self) -> Iterator[Check]:
        """Yield the check of a run with a served teacher."""
        if not self._is_served:
            if self.problems:
                yield _check("requests", self.problems)
            return
        if self._journal is None:
            yield _check("requests", self.problems, "none sent")
            return
        tokens, sent = self._journal.tokens, self._journal.requests.total()
        note = f"{sent:,} sent, {tokens:,} tokens"
        if self._price is not None and self._limit is not None:
            cost = tokens * self._price / 1_000_000
            note += f", cost {cost:f} of {self._limit}"
            if cost > self._limit:
                self.problems.append(f"requests cost {cost:f}, more than {self._limit}.")
        yield _check("requests", self.problems, note)


def _configs(outline: RunOutline) -> Iterator[Config]:
    """Yield the valid configurations on record, that of each resume too."""
    for opening in (outline.started, *outline.resumed):
        with suppress(ValidationError):
            if opening is not None and opening.config is not None:
                yield recorded_config(opening.config)


def _ledger(outline: RunOutline, ledger: Ledger) -> Iterator[str]:
    if outline.finished is not None:
        yield from _difference("totals", outline.finished.totals, ledger.totals())


def _difference(
    place: str, recorded: Mapping[str, Any], summed: Mapping[str, Any]
) -> Iterator[str]:
    later = set(LATER) - set(recorded)
    for name in sorted({*recorded, *summed} - {"seconds"} - later):
        # A total that this version counts and an older one did not is absent; it must be 0.
        if recorded.get(name, 0) != summed.get(name, 0):
            yield (
                f"{name} of the {place} is {recorded.get(name)}, but the steps make "
                f"{summed.get(name)}."
            )
    claimed = recorded.get("seconds")
    seconds = claimed if isinstance(claimed, dict) else {}
    for phase in sorted({*seconds, *summed["seconds"]}):
        spent, sum_of_steps = seconds.get(phase), summed["seconds"].get(phase, 0.0)
        if not isinstance(spent, float | int) or not math.isclose(spent, sum_of_steps):
            yield f"seconds.{phase} of the {place} is not the sum of the steps."


def _completeness(outline: RunOutline, steps: int, *, unfinished: bool) -> Iterator[str]:
    if outline.finished is None:
        if not unfinished:
            yield (
                f"step {steps} of {outline.planned} and later ones are missing: the run has not "
                "finished. Run its command again, or check it with --unfinished."
            )
        return
    for name, said in (("finished event", outline.finished.steps), ("plan", outline.planned)):
        if said != steps:
            yield f"the {name} has {said} steps, but {steps} are on record."


def _checkpoints(paths: Sequence[Path], sums: _Sums, run_id: str) -> Iterator[str]:
    for path in paths:
        try:
            verify_checkpoint(path)
            state = read_json(path / STATE)
        except (BasOpdError, OSError) as error:
            yield str(error)
            continue
        step = state.get("step")
        if state.get("run_id", run_id) != run_id:
            yield f"{path} is of another run."
        if not isinstance(step, int) or path.name != f"step-{step:08d}":
            yield f"{path} holds the state of step {step}."
        elif step not in sums.saved:
            yield f"{path} is of step {step}, but {sums.ledger.steps} steps are on record."
        else:
            summed, taken = sums.saved[step]
            ledger = state.get("ledger")
            ledger = ledger if isinstance(ledger, dict) else {}
            yield from _difference(f"checkpoint {path.name}", ledger, summed)
            # Checkpoints of version 0.1 have no cursor: every step took one batch.
            if state.get("cursor", taken) != taken:
                yield (
                    f"cursor of {path.name} is {state['cursor']}, but its steps took {taken} "
                    "batches of prompts."
                )


def _model(outline: RunOutline) -> Iterator[str]:
    if outline.finished is not None:
        try:
            verify_files(outline.directory.model, outline.finished.model)
        except (CheckpointError, OSError) as error:
            yield str(error)
