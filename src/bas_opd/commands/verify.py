"""Whether a run did what its settings say: budget, choice, ledger and files, from its records.

Imports no torch, and trusts nothing that can be worked out anew. Only random draws need torch, and
are recomputed when asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bas_opd.budget import exploration_quota, query_budget
from bas_opd.config.identity import differences
from bas_opd.config.loading import config_hash, dump
from bas_opd.config.schema import Config, SelectConfig
from bas_opd.errors import BasOpdError, CheckpointError, DataError
from bas_opd.run.manifest import STATE, published, read_json, verify_checkpoint, verify_files
from bas_opd.run.record import read_records
from bas_opd.run.step_record import StepRecord, parse_step, totals

LEARNING = ("learned", "regressed")
"""Policies that rank by what they predict, once they hold enough labels."""
Draw = Callable[[str, int, Sequence[int], int], set[int]]
"""(stage, step, rows, count) -> the rows that the run must have drawn."""


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
    checks: tuple[Check, ...]

    @property
    def is_sound(self) -> bool:
        return all(check.is_sound for check in self.checks)


class _Opening(BaseModel):
    """A start or a resumption; the latter says its settings only where they may have changed."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    event: str
    step: int | None = None
    steps: int | None = None
    config: dict[str, Any] | None = None
    config_hash: str | None = None
    data: dict[str, Any] = Field(default_factory=dict)


class _Finish(BaseModel):
    """The end of a run."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    steps: int
    totals: dict[str, Any]
    model: dict[str, str]


@dataclass(slots=True, kw_only=True)
class _History:
    """The events of a run, by kind."""

    run: Path
    damage: list[str] = field(default_factory=list)
    openings: list[_Opening] = field(default_factory=list)
    """The start, and each resumption."""
    steps: list[StepRecord] = field(default_factory=list)
    finish: _Finish | None = None
    config: Config | None = None

    @property
    def planned(self) -> int | None:
        plans = [o.steps for o in self.openings if o.steps is not None]
        return plans[-1] if plans else None


def verify(
    run: Path, *, unfinished: bool = False, draws: bool = False, files: bool = True
) -> Verification:
    """Check a run directory; `unfinished` accepts one that has steps left, `draws` needs torch.

    Without `files`, checkpoints and model are left alone: hashing them reads every gigabyte.
    """
    history = _read(run, unfinished=unfinished)
    settings = _settings(history)
    config = history.config
    select = config.select if config else None
    draw = _draws(select.seed) if draws and select else None
    checks = [
        _check("records", history.damage, f"{len(history.steps)} steps, chain whole"),
        _check("settings", settings, "hash and run.json agree"),
        _check("order", _order(history.steps), "each step once"),
    ]
    if config is None or select is None:
        unknown = ["not checked, since the settings of the run are not known."]
        checks += [_check(name, unknown) for name in ("budget", "selection")]
    else:
        checks += [
            _check("budget", _budget(history.steps, config), f"K of {select.query_ratio}"),
            _check("selection", _selection(history.steps, select, draw), _scope(select, draw)),
        ]
    checks += [
        _check("cost", _cost(history.steps), "calls and tokens"),
        _check("totals", _ledger(history), "sums of the steps"),
        _check("complete", _completeness(history, unfinished=unfinished), _progress(history)),
    ]
    if files:
        checks += [
            _check("checkpoints", _checkpoints(history), f"{len(_published(history))} whole"),
            _check("model", _model(history), "hashes agree" if history.finish else "none yet"),
        ]
    return Verification(
        run=str(run),
        steps=len(history.steps),
        planned_steps=history.planned,
        is_finished=history.finish is not None,
        checks=tuple(checks),
    )


def _check(name: str, problems: Iterable[str], note: str = "") -> Check:
    found = tuple(problems)
    return Check(name=name, problems=found, note="" if found else note)


def _read(run: Path, *, unfinished: bool) -> _History:
    path = run / "records.jsonl"
    if not path.is_file():
        raise DataError(f"There is no run in {run}: it has no records.jsonl. Give a run directory.")
    history = _History(run=run)
    try:
        for event in read_records(path):
            _sort_in(history, event)
    except DataError as error:
        # A line that is being written, or was cut by a kill, is dropped when the run goes on.
        was_cut = not path.read_bytes().endswith(b"\n")
        if not (unfinished and was_cut and history.finish is None):
            last = history.steps[-1].step if history.steps else None
            before = "before the first step" if last is None else f"after that of step {last}"
            history.damage.append(f"{error} No record {before} was read.")
    if not history.openings or history.openings[0].event != "started":
        history.damage.append("The started event, which comes first, is missing.")
    return history


def _sort_in(history: _History, event: dict[str, Any]) -> None:
    kind = event.get("event")
    if kind == "started" and (history.openings or history.steps):
        history.damage.append("A started event stands behind others: two runs were put together.")
    if history.finish is not None:
        history.damage.append(f"A {kind} event follows the finished one.")
    try:
        if kind in ("started", "resumed"):
            history.openings.append(_Opening.model_validate(event))
        elif kind == "step":
            history.steps.append(parse_step(event))
        elif kind == "finished":
            history.finish = _Finish.model_validate(event)
    except DataError as error:
        history.damage.append(str(error))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        history.damage.append(f"the {kind} event: {place}: {first['msg']}.")
    if kind == "resumed" and event.get("step") != len(history.steps):
        history.damage.append(
            f"step {event.get('step')}: the run was resumed there, but the records hold "
            f"{len(history.steps)} steps before that."
        )


def _settings(history: _History) -> list[str]:
    """Every recorded configuration must be valid, have its hash, and be of one and the same run."""
    problems: list[str] = []
    sources = [(f"the {o.event} event", o) for o in history.openings if o.config is not None]
    if not sources:
        return ["the records hold no settings."]
    identity = None
    try:
        identity = read_json(history.run / "run.json")
        sources.append(("run.json", _Opening.model_validate({**identity, "event": "run.json"})))
    except CheckpointError as error:
        problems.append(str(error))
    except ValidationError as error:
        problems.append(f"run.json is not valid: {error.errors()[0]['msg']}.")
    for place, source in sources:
        try:
            config = Config.model_validate(source.config)
        except ValidationError as error:
            problems.append(f"config of {place} is not valid: {error.errors()[0]['msg']}.")
            continue
        history.config = history.config or config
        if source.config_hash != config_hash(config):
            problems.append(f"config_hash of {place} is not the hash of its config.")
        changes = differences(dump(history.config), dump(config))
        problems += [f"config of {place} is of another run: {change}." for change in changes]
    if identity is not None:
        recorded = (history.openings[0].data.get("fingerprint"), history.planned)
        claimed = (_fingerprint(identity.get("dataset")), identity.get("steps"))
        problems += [
            f"{name} of run.json is {theirs}, but the records say {ours}."
            for name, theirs, ours in zip(("fingerprint", "steps"), claimed, recorded, strict=True)
            if theirs != ours
        ]
    return problems


def _fingerprint(dataset: Any) -> Any:
    return dataset.get("fingerprint") if isinstance(dataset, dict) else None


def _order(steps: Sequence[StepRecord]) -> Iterator[str]:
    expected = 0
    for step in steps:
        if step.step > expected:
            yield f"step {expected}: missing; the next on record is step {step.step}."
        elif step.step < expected:
            yield f"step {step.step}: on record again, where step {expected} should stand."
        expected = step.step + 1


def _budget(steps: Sequence[StepRecord], config: Config) -> Iterator[str]:
    """K is the exact floor, and S is within it and within C (Eq. 4), which is within the batch."""
    select, rollout = config.select, config.rollout
    batch = (rollout.prompts_per_step, rollout.per_prompt)
    for step in steps:
        if (len(step.examples), step.per_prompt) != batch:
            yield (
                f"step {step.step}: {len(step.examples)} examples by {step.per_prompt} rollouts, "
                f"where the settings say {batch[0]} by {batch[1]}."
            )
        if len(step.response_tokens) != len(step.examples) * step.per_prompt:
            yield (
                f"step {step.step}: response_tokens has {len(step.response_tokens)} rows, not "
                f"{len(step.examples)} x {step.per_prompt}."
            )
        where, allowed = f"step {step.step}", query_budget(select.query_ratio, len(step.candidates))
        if step.query_ratio != str(select.query_ratio):
            yield f"{where}: query_ratio is {step.query_ratio}, not {select.query_ratio}."
        if step.budget != allowed:
            yield (
                f"{where}: budget is {step.budget}, but floor({select.query_ratio} x "
                f"{len(step.candidates)}) is {allowed}."
            )
        if len(step.selected) > allowed:
            yield f"{where}: selected holds {len(step.selected)} rows, more than K = {allowed}."
        if len(set(step.selected)) != len(step.selected):
            yield f"{where}: selected names a row twice."
        if outside := set(step.selected) - set(step.candidates):
            yield f"{where}: selected names row {min(outside)}, which is no candidate."
        if outside := set(step.explored) - set(step.selected):
            yield f"{where}: explored names row {min(outside)}, which was not selected."


def _selection(
    steps: Sequence[StepRecord], select: SelectConfig, draw: Draw | None
) -> Iterator[str]:
    """S is what the policy chooses, and the policy learns when its replay says so (Alg. 1)."""
    held, is_trained = 0, False
    for step in steps:
        for problem in _choice(step, select, draw, is_trained=is_trained):
            yield f"step {step.step}: {problem}"
        held = min(select.replay_capacity, held + step.labels)
        must_learn = select.policy in LEARNING and step.labels > 0 and held >= select.replay_start
        if step.learned != must_learn:
            yield f"step {step.step}: learned is {step.learned}, with {held} labels in the replay."
        is_trained |= must_learn


def _choice(
    step: StepRecord, select: SelectConfig, draw: Draw | None, *, is_trained: bool
) -> Iterator[str]:
    chosen, explored = set(step.selected), set(step.explored)
    count = query_budget(select.query_ratio, len(step.candidates))
    quota = 0
    if select.policy == "entropy":
        scores = step.feature_of("mean_entropy" if step.has_entropy else "mean_nll")
        if step.score_of != scores:
            yield "scores are not the feature that the entropy policy ranks by."
    elif select.policy in LEARNING and is_trained:
        scores = step.score_of
        quota = exploration_quota(select.exploration, count)
    else:
        if step.score_of:
            yield "scores were recorded, but nothing was ranked yet."
        if explored:
            yield "explored names rows, but nothing was ranked yet."
        if len(chosen) != count:
            yield f"selected holds {len(chosen)} rows, but {count} were to be drawn."
        elif draw and chosen != draw("uniform", step.step, step.candidates, count):
            yield "selected is not what the seed draws."
        return
    order = sorted(step.candidates, key=lambda row: (-scores.get(row, -math.inf), row))
    best, rest = set(order[: count - quota]), order[count - quota :]
    if chosen - explored != best:
        yield f"selected holds other rows than the {len(best)} of the highest scores."
    if len(explored) != quota:
        yield f"explored holds {len(explored)} rows, but {quota} are to be drawn."
    elif draw and explored != draw("explore", step.step, rest, quota):
        yield "explored is not what the seed draws."


def _draws(seed: int) -> Draw:
    from bas_opd.select.draws import addressed_generator, draw_rows

    return lambda stage, step, rows, count: set(
        draw_rows(rows, count, addressed_generator(stage, seed, step))
    )


def _scope(select: SelectConfig, draw: Draw | None) -> str:
    is_drawn = select.policy in ("random", *LEARNING)
    return select.policy + ("; random draws not repeated" if is_drawn and draw is None else "")


def _cost(steps: Sequence[StepRecord]) -> Iterator[str]:
    """The teacher scored S and nothing else, and what it cost is what those rows cost."""
    for step in steps:
        where = f"step {step.step}"
        if sorted(step.scored) != sorted(step.selected):
            yield f"{where}: scored and selected name different rows."
        expected = {
            "calls": len(step.scored),
            "overrun": max(0, step.calls - step.budget),
            "candidate_tokens": step.tokens_of(step.candidates),
        }
        if set(step.scored) <= set(step.candidates):
            expected["scored_tokens"] = step.tokens_of(step.scored)
        for name, value in expected.items():
            if getattr(step, name) != value:
                yield f"{where}: {name} is {getattr(step, name)}, but its rows make {value}."
        if step.overrun:
            yield f"{where}: overrun is {step.overrun}: the teacher was asked too much."


def _ledger(history: _History) -> Iterator[str]:
    if history.finish is not None:
        yield from _difference("totals", history.finish.totals, totals(history.steps))


def _difference(
    place: str, recorded: Mapping[str, Any], summed: Mapping[str, Any]
) -> Iterator[str]:
    for name in sorted({*recorded, *summed} - {"seconds"}):
        if recorded.get(name) != summed.get(name):
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


def _completeness(history: _History, *, unfinished: bool) -> Iterator[str]:
    if history.finish is None:
        if not unfinished:
            yield (
                f"step {len(history.steps)} of {history.planned} and later ones are missing: the "
                "run has not finished. Run its command again, or check it with --unfinished."
            )
        return
    for name, steps in (("finished event", history.finish.steps), ("plan", history.planned)):
        if steps != len(history.steps):
            yield f"the {name} has {steps} steps, but {len(history.steps)} are on record."


def _progress(history: _History) -> str:
    return "" if history.finish else f"{len(history.steps)} of {history.planned} steps, unfinished"


def _checkpoints(history: _History) -> Iterator[str]:
    for path in _published(history):
        try:
            verify_checkpoint(path)
            state = read_json(path / STATE)
        except BasOpdError as error:
            yield str(error)
            continue
        step = state.get("step")
        if not isinstance(step, int) or path.name != f"step-{step:08d}":
            yield f"{path} holds the state of step {step}."
        elif step > len(history.steps):
            yield f"{path} is of step {step}, but {len(history.steps)} steps are on record."
        else:
            summed = totals(history.steps[:step])
            ledger = state.get("ledger")
            ledger = ledger if isinstance(ledger, dict) else {}
            yield from _difference(f"checkpoint {path.name}", ledger, summed)


def _published(history: _History) -> list[Path]:
    return published(history.run / "checkpoints")


def _model(history: _History) -> Iterator[str]:
    if history.finish is not None:
        try:
            verify_files(history.run / "model", history.finish.model)
        except CheckpointError as error:
            yield str(error)
