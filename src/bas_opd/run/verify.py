"""Whether a run did what its settings say: budget, choice, ledger and files, from its records.

Imports no torch, and trusts nothing that can be recomputed. Only random draws and predictions need
torch, and are recomputed on request.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bas_opd.budget import query_budget
from bas_opd.config.loading import differences, dump
from bas_opd.config.schema import Config, MethodName, SelectConfig
from bas_opd.data.records import grades_by_last_word
from bas_opd.errors import BasOpdError, CheckpointError, DataError
from bas_opd.files import hash_of
from bas_opd.run.history import RunHistory, collect_history
from bas_opd.run.ledger import LATER, Ledger
from bas_opd.run.manifest import STATE, published, read_json, verify_checkpoint, verify_files
from bas_opd.run.ordering import order_problems, training_data
from bas_opd.run.record import GenerationRecord, PolicyRecord, QueryRecord, Resumed, StepRecord
from bas_opd.run.regrading import generation_problems, policy_problems
from bas_opd.run.replaying import Replay, selection_problems
from bas_opd.select.rules import PolicyRule, policy_rule
from bas_opd.types import FEATURES
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
) -> Verification:
    """Check a run directory; `unfinished` accepts one that has steps left, `draws` needs torch.

    `data` is where the training data is now, if it has moved.
    Without `files`, checkpoints and model are left alone: hashing them reads every gigabyte.
    """
    history = collect_history(run)
    damage = list(history.problems)
    if history.is_cut and not (unfinished and history.finished is None):
        damage.append(history.cut)
    if history.started is None and not damage:
        damage.append("The started event, which comes first, is missing.")
    config, settings = _settings(history)
    damage += _foreign_steps(history, config)
    select = config.queries if config else None
    rule = policy_rule(select.policy) if select else None
    replay = Replay(select) if draws and select else None
    checks = [
        _check("records", damage, f"{len(history.steps)} steps, chain intact"),
        _check("settings", settings, "hash and run.json agree"),
        _check("order", _order(history.steps), "each step once"),
    ]
    if config is None:
        unknown = ["not checked, since the settings of the run are not known."]
        checks += [_check(name, unknown) for name in ("examples", "budget", "selection")]
    else:
        found = training_data(history.started, data)
        checks.append(
            _check(
                "examples",
                order_problems(history.steps, config, found) if found else (),
                "in the order of the data" if found else "not checked: the data is not there",
            )
        )
    if config and not select:
        checks.append(_learning(history, config))
    elif config and select and rule:
        steps = history.queries
        checks += [
            _check("budget", _budget(steps, config, select), _budget_note(select)),
            _check(
                "selection",
                selection_problems(steps, select, rule, replay),
                _scope(rule, replay),
            ),
        ]
    checks += [
        _check("cost", _cost(history), "calls and tokens"),
        _check("totals", _ledger(history), "sums of the steps"),
        _check("complete", _completeness(history, unfinished=unfinished), _progress(history)),
    ]
    if files:
        checkpoints = published(history.directory.checkpoints)
        checks += [
            _check("checkpoints", _checkpoints(history), f"{len(checkpoints)} intact"),
            _check("model", _model(history), "hashes agree" if history.finished else "none yet"),
        ]
    return Verification(
        run=str(run),
        steps=len(history.steps),
        planned_steps=history.planned,
        is_finished=history.finished is not None,
        recomputed_draws=replay is not None or not (rule and rule.draws_at_random),
        checks=tuple(checks),
        remarks=(
            *_accepted(history),
            *(_remarks(history, select, rule) if select and rule else ()),
        ),
    )


def _foreign_steps(history: RunHistory, config: Config | None) -> list[str]:
    """Return the steps that are not of the run's method."""
    name = config.method.name if config else "bas-opd"
    kind = KINDS[name]
    missing = "candidates is missing."
    return [
        f"step {step.step}: {missing if kind is QueryRecord else f'it is no step of {name}.'}"
        for step in history.steps
        if type(step) is not kind
    ]


def _learning(history: RunHistory, config: Config) -> Check:
    """Check what a method without queries learned from."""
    source = history.started.data.source if history.started else ""
    by_last_word = grades_by_last_word(source)
    if config.method.name == "sft":
        steps = [step for step in history.steps if isinstance(step, GenerationRecord)]
        problems = generation_problems(steps, config, by_last_word=by_last_word)
        return _check("learning", problems, f"{config.sft.keep} responses of the teacher")
    policy = [step for step in history.steps if isinstance(step, PolicyRecord)]
    problems = policy_problems(policy, config, by_last_word=by_last_word)
    return _check("learning", problems, "rewards, advantages, kept prompts, updates")


def _accepted(history: RunHistory) -> Iterator[str]:
    for opening in (history.started, *history.resumed):
        if opening is not None and opening.accepted_changes:
            step = opening.step if isinstance(opening, Resumed) else 0
            names = ", ".join(opening.accepted_changes)
            yield f"From step {step} on, changed files were accepted: {names}."


def _remarks(history: RunHistory, select: SelectConfig, rule: PolicyRule) -> Iterator[str]:
    steps = [step for step in history.queries if step.candidates]
    empty = [step for step in steps if not step.selected]
    if 2 * len(empty) > len(steps):
        ratio, kind = select.query_ratio, select.budget
        yield (
            f"In {len(empty):,} of {len(steps):,} steps the teacher was asked nothing: "
            f"select.query_ratio={ratio} in {kind} paid for no query. Raise select.query_ratio or "
            "rollout.prompts_per_step."
        )
    is_ranked = any(step.score_of for step in steps)
    if rule.learns and history.finished is not None and not is_ranked:
        labels = sum(step.labels for step in steps)
        yield (
            f"The {rule.name} policy ranked no row: it learns from {select.replay_start} "
            f"labels on (select.replay_start), and the run observed {labels:,}. All rows were "
            "drawn at random."
        )


def _check(name: str, problems: Iterable[str], note: str = "") -> Check:
    found = tuple(problems)
    return Check(name=name, problems=found, note="" if found else note)


def _settings(history: RunHistory) -> tuple[Config | None, list[str]]:
    """Every recorded configuration must be valid, match its hash, and be of the same run."""
    started = history.started
    if started is None:
        return None, ["the records hold no settings."]
    problems: list[str] = []
    sources = [("the started event", started.config, started.config_hash)]
    sources += [
        ("the resumed event", resumed.config, resumed.config_hash or "")
        for resumed in history.resumed
        if resumed.config is not None
    ]
    identity = None
    try:
        if not history.directory.identity.exists():
            raise DataError(f"{history.directory.identity} is missing.")
        identity = history.directory.read_identity()
        sources.append((history.directory.identity.name, identity.config, identity.config_hash))
    except BasOpdError as error:
        problems.append(str(error))
    first: Config | None = None
    for place, settings, claimed in sources:
        try:
            config = Config.model_validate(settings)
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
            "steps": (identity.steps, history.planned),
        }
        problems += [
            f"{name} of run.json is {theirs}, but the records say {ours}."
            for name, (theirs, ours) in facts.items()
            if theirs != ours
        ]
    return first, problems


def _order(steps: Sequence[StepRecord]) -> Iterator[str]:
    expected = 0
    for step in steps:
        if step.step > expected:
            yield f"step {expected}: missing; the next on record is step {step.step}."
        elif step.step < expected:
            yield f"step {step.step}: on record again, where step {expected} should stand."
        expected = step.step + 1


def _budget(steps: Sequence[QueryRecord], config: Config, select: SelectConfig) -> Iterator[str]:
    """K is the exact floor, and S is within it and within C (Eq. 4), which is within the batch."""
    rollout = config.rollout
    batch = (rollout.prompts_per_step, rollout.per_prompt)
    opening_of: dict[str, int] = {}
    for step in steps:
        if (len(step.examples), step.per_prompt) != batch:
            yield (
                f"step {step.step}: {len(step.examples)} examples by {step.per_prompt} rollouts, "
                f"where the settings say {batch[0]} by {batch[1]}."
            )
        where = f"step {step.step}"
        if step.query_ratio != str(select.query_ratio):
            yield f"{where}: query_ratio is {step.query_ratio}, not {select.query_ratio}."
        if step.budget_kind != select.budget:
            yield f"{where}: budget_kind is {step.budget_kind}, not {select.budget}."
        opened = _openings(step, config.data.max_prompt_tokens, opening_of)
        for problem in (*_lengths(step), *_prices(step), *opened, *_spending(step, select)):
            yield f"{where}: {problem}"
        if len(set(step.selected)) != len(step.selected):
            yield f"{where}: selected names a row twice."
        if outside := set(step.selected) - set(step.candidates):
            yield f"{where}: selected names row {min(outside)}, which is no candidate."
        if outside := set(step.explored) - set(step.selected):
            yield f"{where}: explored names row {min(outside)}, which was not selected."


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


def _cost(history: RunHistory) -> Iterator[str]:
    """What a step cost is what its rows cost."""
    yield from _query_cost(history.queries)
    for step in history.steps:
        if isinstance(step, QueryRecord):
            continue
        for name, value in step.token_costs.items():
            if getattr(step, name) != value:
                yield (
                    f"step {step.step}: {name} is {getattr(step, name)}, but its rows make {value}."
                )
        if len(step.prompt_tokens) != len(step.examples):
            yield f"step {step.step}: prompt_tokens and examples differ in length."


def _query_cost(steps: Sequence[QueryRecord]) -> Iterator[str]:
    """The teacher scored S and nothing else, and what it cost is what those rows cost."""
    for step in steps:
        where = f"step {step.step}"
        if sorted(step.scored) != sorted(step.selected):
            yield f"{where}: scored and selected name different rows."
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
                yield f"{where}: {name} is {getattr(step, name)}, but its rows make {value}."
        for problem in _passes(step):
            yield f"{where}: {problem}"
        if step.overrun:
            yield f"{where}: overrun is {step.overrun}: the teacher was asked too much."


def _passes(step: QueryRecord) -> Iterator[str]:
    """Teacher and student compute a prompt at least once, and at most once for each of its rows."""
    if not set(step.selected) <= set(step.candidates):
        return  # the budget check names the row
    places = [step.prompt_of[row] for row in step.selected]
    prompts = set(places)
    fed = step.tokens_of(step.selected) - len(step.selected)  # the last token is never fed
    once = step.budget_kind == "processed_tokens"
    bounds = {
        "prefilled_prompts": (len(prompts), len(prompts if once else places)),
        "student_tokens": (
            fed + sum(step.prompt_tokens[p] for p in prompts),
            fed + sum(step.prompt_tokens[p] for p in places),
        ),
    }
    for name, (least, most) in bounds.items():
        if not least <= getattr(step, name) <= most:
            yield f"{name} is {getattr(step, name)}, but its rows make {least} to {most}."


def _ledger(history: RunHistory) -> Iterator[str]:
    if history.finished is not None:
        summed = Ledger.of(history.steps).totals()
        yield from _difference("totals", history.finished.totals, summed)


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


def _completeness(history: RunHistory, *, unfinished: bool) -> Iterator[str]:
    if history.finished is None:
        if not unfinished:
            yield (
                f"step {len(history.steps)} of {history.planned} and later ones are missing: the "
                "run has not finished. Run its command again, or check it with --unfinished."
            )
        return
    for name, steps in (("finished event", history.finished.steps), ("plan", history.planned)):
        if steps != len(history.steps):
            yield f"the {name} has {steps} steps, but {len(history.steps)} are on record."


def _progress(history: RunHistory) -> str:
    return (
        "" if history.finished else f"{len(history.steps)} of {history.planned} steps, unfinished"
    )


def _checkpoints(history: RunHistory) -> Iterator[str]:
    for path in published(history.directory.checkpoints):
        try:
            verify_checkpoint(path)
            state = read_json(path / STATE)
        except (BasOpdError, OSError) as error:
            yield str(error)
            continue
        step = state.get("step")
        if not isinstance(step, int) or path.name != f"step-{step:08d}":
            yield f"{path} holds the state of step {step}."
        elif step > len(history.steps):
            yield f"{path} is of step {step}, but {len(history.steps)} steps are on record."
        else:
            summed = Ledger.of(history.steps[:step]).totals()
            ledger = state.get("ledger")
            ledger = ledger if isinstance(ledger, dict) else {}
            yield from _difference(f"checkpoint {path.name}", ledger, summed)
            # Checkpoints of version 0.1 have no cursor: every step took one batch.
            taken = sum(each.batches for each in history.steps[:step])
            if state.get("cursor", taken) != taken:
                yield (
                    f"cursor of {path.name} is {state['cursor']}, but its steps took {taken} "
                    "batches of prompts."
                )


def _model(history: RunHistory) -> Iterator[str]:
    if history.finished is not None:
        try:
            verify_files(history.directory.model, history.finished.model)
        except (CheckpointError, OSError) as error:
            yield str(error)
