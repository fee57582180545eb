"""What `bas-opd eval` left in the folder of a run: its numbers, and each question's verdict."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from bas_opd.errors import ConfigError, DataError
from bas_opd.evaluate.benchmarks import Measure, Scored, Summary, benchmark, overall
from bas_opd.evaluate.benchmarks.summary import Outcome, Source, mean

REPORT, SCORES = "report.json", "scores.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkResult:
    """One benchmark as a run answered it."""

    summary: Summary
    title: str
    fingerprint: str
    """Of the questions: only results on the same ones can be paired."""
    is_partial: bool
    judge: str | None
    """The judge's name; none if deferred answers were judged by nobody."""
    judged_by: str
    """What tells this judge from any other: address and settings."""
    scored: tuple[Scored, ...]

    def is_comparable(self, other: BenchmarkResult) -> bool:
        """Whether both are of the same questions, and read alike where no rule could read them."""
        is_by_rule = not self.summary.deferred and not other.summary.deferred
        return self.fingerprint == other.fingerprint and (
            is_by_rule or self.judged_by == other.judged_by
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvaluation:
    """Every benchmark that a run was put to."""

    judge: str | None
    weights: Mapping[str, str] | None
    """File -> hash of the model that answered; none where that is not on record."""
    results: tuple[BenchmarkResult, ...]

    def is_comparable(self, other: RunEvaluation) -> bool:
        """Whether the headline numbers of both are of the same questions, read alike."""
        others = {each.fingerprint: each for each in other.results}
        return len(self.results) == len(others) and all(
            each.fingerprint in others and each.is_comparable(others[each.fingerprint])
            for each in self.results
        )

    def is_of_other_weights(self, model: Mapping[str, str]) -> bool:
        """Whether another model than that of these files answered, as far as that is known.

        Adapters are merged before they are evaluated, so their files are never those that answered.
        """
        trained = _tensors(model)
        return bool(
            self.weights
            and trained
            and "adapter_config.json" not in model
            and _tensors(self.weights) != trained
        )

    @property
    def headline(self) -> Measure:
        """The one number: the paper's average if all seven are there, else the mean of what is."""
        summaries = [each.summary for each in self.results]
        average = overall(summaries)
        if average is not None:
            return average
        if len(summaries) == 1:
            return summaries[0].primary
        return mean("mean", [each.primary for each in summaries])

    @property
    def headline_name(self) -> str:
        """What that number is of."""
        if overall([each.summary for each in self.results]) is not None:
            return "the seven benchmarks"
        return ", ".join(each.title for each in self.results)


class _Line(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    key: str
    id: str
    outcome: Outcome
    source: Source
    value: str


class _Entry(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    fingerprint: str
    is_partial: bool
    judge: dict[str, Any] | None = None
    scores: list[str] | None = None
    """How the keys of its verdicts begin: those of other models and judges lie beside them."""


class _Report(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    judge: str | None
    weights: dict[str, str] | None = None
    benchmarks: list[dict[str, Any]]


_SUMMARY = TypeAdapter(Summary)


def read_evaluation(folder: Path) -> RunEvaluation | None:
    """Read an evaluation, or none if it never came to a report."""
    path = folder / REPORT
    try:
        report = _Report.model_validate_json(path.read_bytes())
        results = tuple(_result(folder, each, report.judge) for each in report.benchmarks)
    except FileNotFoundError:
        return None
    except (OSError, ValidationError, ConfigError) as error:
        raise DataError(
            f"{path} cannot be read as an evaluation ({_reason(error)}). Run `bas-opd eval` on the "
            "run again; no question is asked twice."
        ) from error
    if not results:
        return None
    return RunEvaluation(judge=report.judge, weights=report.weights, results=results)


def _tensors(files: Mapping[str, str]) -> dict[str, str]:
    return {name: each for name, each in files.items() if name.endswith(".safetensors")}


def _result(folder: Path, content: dict[str, Any], judge: str | None) -> BenchmarkResult:
    """Read one benchmark; `judge` is that of the whole, where its own is not on record."""
    entry = _Entry.model_validate(content)
    settings = entry.judge or ({"model": judge} if judge and "judge" not in content else {})
    same = {name: value for name, value in settings.items() if name != "fallbacks"}
    fields = Summary.__dataclass_fields__
    summary = _SUMMARY.validate_python({name: content[name] for name in fields if name in content})
    return BenchmarkResult(
        summary=summary,
        title=benchmark(summary.benchmark).title,
        fingerprint=entry.fingerprint,
        is_partial=entry.is_partial,
        judge=settings.get("model"),
        judged_by=json.dumps(same, sort_keys=True),
        scored=_scored(folder / summary.benchmark / SCORES, summary, entry.scores),
    )


def _scored(path: Path, summary: Summary, keys: Sequence[str] | None) -> tuple[Scored, ...]:
    """Return the verdicts behind a summary; none if there are not as many as it counts."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return ()
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            each = _Line.model_validate(json.loads(line))
        except ValueError as error:
            raise DataError(
                f"{path}:{number} is damaged. Score the answers again with `bas-opd eval`."
            ) from error
        if keys is None or each.key.partition(":")[0] in keys:
            found.append(
                Scored(id=each.id, outcome=each.outcome, source=each.source, value=each.value)
            )
    return tuple(found) if len(found) == summary.n else ()


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        detail = error.errors()[0]
        return f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}"
    return str(error)
