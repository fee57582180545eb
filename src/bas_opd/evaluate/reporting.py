"""The report of an evaluation: its numbers, what they rest on, and the tables made of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

import bas_opd
from bas_opd.answers import PARSER_VERSION
from bas_opd.evaluate.benchmarks import NAMES, Summary
from bas_opd.evaluate.concluded import Concluded
from bas_opd.evaluate.harness import Evaluation
from bas_opd.evaluate.judge import Judge
from bas_opd.evaluate.store import key_of, write_whole
from bas_opd.evaluate.tables import latex, markdown

REPORT = "report.json"

_SUMMARY = TypeAdapter(Summary)


def entry(evaluation: Evaluation, judge: Judge | None, concluded: Concluded) -> dict[str, Any]:
    """Return all that the report holds of one benchmark."""
    judged_by = None
    if judge is not None:
        judged_by = {**judge.settings, "fallbacks": concluded.judge_fallbacks}
    return {
        "fingerprint": evaluation.loaded.fingerprint,
        "fallbacks": concluded.fallbacks,
        "judge": judged_by,
        "scores": list(evaluation.scorings(judge).values()),
        **asdict(evaluation.benchmark.summarise(concluded.scored)),
    }


def write_report(
    out: Path,
    *,
    model: str,
    settings: Mapping[str, Any],
    weights: Mapping[str, str] | None,
    entries: Sequence[Mapping[str, Any]],
) -> str:
    """Write the report in its three forms, and return it as Markdown.

    What an earlier command found out on other benchmarks about the same model, asked and read in
    the same way, stays in it.
    """
    identity = key_of(**settings)
    by_name = {each["benchmark"]: each for each in (*_earlier(out / REPORT, identity), *entries)}
    everything = [by_name[name] for name in NAMES if name in by_name]
    judges = dict.fromkeys(each["judge"]["model"] for each in everything if each["judge"])
    record = {
        "model": model,
        "identity": identity,
        "settings": settings,
        "weights": weights,
        "parser": PARSER_VERSION,
        "version": bas_opd.__version__,
        "judge": ", ".join(judges) or None,
        "benchmarks": everything,
    }
    summaries = [_summary(each) for each in everything]
    text = markdown(model, summaries)
    for name, content in (
        ("report.md", text),
        ("report.tex", latex(model, summaries)),
        (REPORT, json.dumps(record, indent=1) + "\n"),
    ):
        write_whole(out / name, content)
    return text


class _Earlier(BaseModel):
    identity: str
    parser: str
    benchmarks: list[dict[str, Any]]


def _earlier(path: Path, identity: str) -> list[dict[str, Any]]:
    """Return what a report holds already, if it is of this model and read by this parser."""
    try:
        report = _Earlier.model_validate_json(path.read_bytes())
        for each in report.benchmarks:
            _summary(each)
    except (FileNotFoundError, ValidationError):
        return []
    is_alike = (report.identity, report.parser) == (identity, PARSER_VERSION)
    return report.benchmarks if is_alike else []


def _summary(content: Mapping[str, Any]) -> Summary:
    names = [each.name for each in fields(Summary)]
    return _SUMMARY.validate_python({name: content[name] for name in names if name in content})
