"""What `bas-opd eval` left in the folder of a run: its numbers, and each question's verdict."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
    scored: tuple[Scored, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvaluation:
    """Every benchmark that a run was put to."""

    judge: str | None
    results: tuple[BenchmarkResult, ...]

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

    id: str
    outcome: Outcome
    source: Source
    value: str


class _Entry(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    fingerprint: str
    is_partial: bool


class _Report(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    judge: str | None
    benchmarks: list[dict[str, Any]]


_SUMMARY = TypeAdapter(Summary)


def read_evaluation(folder: Path) -> RunEvaluation | None:
    """Read an evaluation, or none if it never came to a report."""
    path = folder / REPORT
    try:
        report = _Report.model_validate_json(path.read_bytes())
        results = tuple(_result(folder, each) for each in report.benchmarks)
    except FileNotFoundError:
        return None
    except (OSError, ValidationError, ConfigError) as error:
        raise DataError(
            f"{path} cannot be read as an evaluation ({_reason(error)}). Run `bas-opd eval` on the "
            "run again; no question is asked twice."
        ) from error
    return RunEvaluation(judge=report.judge, results=results) if results else None


def _result(folder: Path, content: dict[str, Any]) -> BenchmarkResult:
    entry = _Entry.model_validate(content)
    fields = Summary.__dataclass_fields__
    summary = _SUMMARY.validate_python({name: content[name] for name in fields if name in content})
    return BenchmarkResult(
        summary=summary,
        title=benchmark(summary.benchmark).title,
        fingerprint=entry.fingerprint,
        is_partial=entry.is_partial,
        scored=tuple(_scored(folder / summary.benchmark / SCORES, summary)),
    )


def _scored(path: Path, summary: Summary) -> Iterator[Scored]:
    """Yield the verdicts behind a summary; none if there are not as many as it counts."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return
    if len(lines) != summary.n:
        return
    for number, line in enumerate(lines, start=1):
        try:
            each = _Line.model_validate(json.loads(line))
        except ValueError as error:
            raise DataError(
                f"{path}:{number} is damaged. Score the answers again with `bas-opd eval`."
            ) from error
        yield Scored(id=each.id, outcome=each.outcome, source=each.source, value=each.value)


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        detail = error.errors()[0]
        return f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}"
    return str(error)
