"""Results of evaluations: report.json with its writer and reader, and their comparison."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

import bas_opd
from bas_opd.answers import PARSER_VERSION
from bas_opd.errors import ConfigError, DataError
from bas_opd.evaluate.benchmarks import NAMES, Measure, Scored, Summary, benchmark, overall
from bas_opd.evaluate.benchmarks.metric import ALL_QUESTIONS, Metric
from bas_opd.evaluate.benchmarks.summary import mean
from bas_opd.evaluate.samples import (
    OUTPUTS,
    SCORES,
    Line,
    damaged,
    digest,
    output_of,
    read_samples,
    scored_of,
    scoring_of,
)
from bas_opd.evaluate.tables import latex, markdown
from bas_opd.files import hash_of, write_text
from bas_opd.model.folder import ADAPTER
from bas_opd.stats.intervals import Interval
from bas_opd.validation import first_problem

if TYPE_CHECKING:  # The reader needs no HTTP client.
    from bas_opd.evaluate.evaluation import Evaluation
    from bas_opd.evaluate.judge import Judge

REPORT = "report.json"

_SUMMARY = TypeAdapter(Summary)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkResult:
    """The result of a run on one benchmark."""

    summary: Summary
    fingerprint: str
    """Of the questions: only results on the same ones can be paired."""
    judge: str | None
    """The judge's name; None if deferred answers had no judge."""
    judged_by: str
    """Address and settings of the judge, which identify it."""
    scored: tuple[Scored, ...]
    """The verdicts; none if they do not make the number of the summary, as in an old report."""
    outputs: Path
    digests: Mapping[str, str]
    """Question id -> hash of the output that was scored."""

    @property
    def title(self) -> str:
        return benchmark(self.summary.benchmark).title

    @property
    def is_partial(self) -> bool:
        return self.summary.is_partial

    @property
    def metric(self) -> Metric:
        """The metric of its primary number."""
        return benchmark(self.summary.benchmark).metric(self.scored)

    def answers(self) -> dict[str, str]:
        """Return question id -> text of the answer that was scored."""
        outputs = map(output_of, read_samples(self.outputs).values())
        texts = {digest(output): output.text for output in outputs}
        return {name: texts[each] for name, each in self.digests.items() if each in texts}

    def is_comparable(self, other: BenchmarkResult) -> bool:
        """Return whether both are on the same questions, and deferred answers had one judge."""
        is_by_rule = not self.summary.deferred and not other.summary.deferred
        return self.fingerprint == other.fingerprint and (
            is_by_rule or self.judged_by == other.judged_by
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvaluation:
    """The results of a run on every benchmark in its report."""

    judge: str | None
    weights: Mapping[str, str] | None
    """File -> hash of the model that answered; None if that is not recorded."""
    results: tuple[BenchmarkResult, ...]

    def is_comparable(self, other: RunEvaluation) -> bool:
        """Return whether the headline numbers are on the same questions, scored alike."""
        others = {each.fingerprint: each for each in other.results}
        return len(self.results) == len(others) and all(
            each.fingerprint in others and each.is_comparable(others[each.fingerprint])
            for each in self.results
        )

    def is_of_other_weights(self, model: Mapping[str, str]) -> bool:
        """Return whether another model than that of these files answered, as far as is known.

        Merged adapters, as an export writes them, cannot be compared with the adapters of a run.
        """
        trained = _tensors(model)
        return bool(
            self.weights
            and trained
            and (ADAPTER in self.weights or ADAPTER not in model)
            and _tensors(self.weights) != trained
        )

    @property
    def headline(self) -> Measure:
        """The one number: the paper's average if all seven are there, else the mean of all."""
        summaries = [each.summary for each in self.results]
        average = overall(summaries)
        if average is not None:
            return average
        if len(summaries) == 1:
            return summaries[0].primary
        return mean("mean of benchmarks", [each.primary for each in summaries])

    @property
    def beside(self) -> Measure | None:
        """The accuracy over all questions, where the headline is another number of one set."""
        return self.results[0].summary.beside if len(self.results) == 1 else None

    @property
    def headline_name(self) -> str:
        """The benchmarks behind that number."""
        if overall([each.summary for each in self.results]) is not None:
            return "the seven benchmarks"
        return ", ".join(each.title for each in self.results)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How the answers of run a differ from those of run b."""

    n: int
    only_a: int
    """Questions that run a alone has right; an unscored answer is not right."""
    only_b: int
    metric: str
    """Name of the primary metric, which difference and p are of."""
    difference: Interval
    """Accuracy of a minus that of b."""
    p_value: float
    """Probability that equally good runs differ at least this much, two-sided."""
    beside: Interval | None
    """The difference over all questions, where the primary metric is another one."""


def report_entry(
    evaluation: Evaluation, judge: Judge | None, scores: Sequence[Line]
) -> dict[str, Any]:
    """Return everything that the report holds about one benchmark."""
    judged_by = None
    if judge is not None:
        judged_by = {**judge.settings, "fallbacks": _distinct(scores, "judge_fallback")}
    scored = [scored_of(line) for line in scores]
    return {
        "fingerprint": evaluation.loaded.fingerprint,
        "fallbacks": _distinct(scores, "fallback"),
        "judge": judged_by,
        "scores": list(evaluation.scorings(judge).values()),
        **asdict(evaluation.benchmark.summarise(scored)),
    }


def write_report(
    out: Path,
    *,
    model: str,
    settings: Mapping[str, Any],
    weights: Mapping[str, str] | None,
    step: int | None = None,
    entries: Sequence[Mapping[str, Any]],
) -> str:
    """Write the report as JSON, Markdown and LaTeX, and return the Markdown.

    `weights` and `step` name what was scored.

    Results of earlier commands on other benchmarks stay in it, if they are of the same model with
    the same settings, read by the same parser.
    """
    identity = hash_of(settings)
    by_name = {each["benchmark"]: each for each in (*_earlier(out / REPORT, identity), *entries)}
    everything = [by_name[name] for name in NAMES if name in by_name]
    judges = dict.fromkeys(each["judge"]["model"] for each in everything if each["judge"])
    record = {
        "model": model,
        "identity": identity,
        "settings": settings,
        "weights": weights,
        "step": step,
        "parser": PARSER_VERSION,
        "version": bas_opd.__version__,
        "judge": ", ".join(judges) or None,
        "benchmarks": everything,
    }
    summaries = [_SUMMARY.validate_python(each) for each in everything]
    text = markdown(model, summaries)
    if weights is not None:
        of = "" if step is None else f"the model of step {step:,}, "
        text += f"\nScored: {of}weights {settings['weights'][:12]} (SHA-256).\n"
    for name, content in (
        ("report.md", text),
        ("report.tex", latex(model, summaries)),
        (REPORT, json.dumps(record, indent=1) + "\n"),
    ):
        write_text(out / name, content)
    return text


def read_evaluation(folder: Path) -> RunEvaluation | None:
    """Read an evaluation; None if there is no report yet."""
    path = folder / REPORT
    try:
        report = _Report.model_validate_json(path.read_bytes())
        results = tuple(_result(folder, each, report.judge) for each in report.benchmarks)
    except FileNotFoundError:
        return None
    except (OSError, ValidationError, ConfigError) as error:
        reason = first_problem(error) if isinstance(error, ValidationError) else error
        raise DataError(
            f"{path} cannot be read as an evaluation ({reason}). Run `bas-opd eval` on the "
            "run again; finished questions are not asked again."
        ) from error
    if not results:
        return None
    return RunEvaluation(judge=report.judge, weights=report.weights, results=results)


def compare(a: Sequence[Scored], b: Sequence[Scored], metric: Metric) -> Comparison:
    """Pair two runs by question; both must have answered the same questions."""
    first, second = _by_id(a), _by_id(b)
    if first.keys() != second.keys() or not first:
        raise DataError(
            f"The runs cannot be paired: {len(first.keys() - second.keys()):,} questions are in "
            f"the first alone, {len(second.keys() - first.keys()):,} in the second alone, and "
            f"{len(first.keys() & second.keys()):,} in both. Compare runs on one set of questions."
        )
    right = [(first[name].is_correct, second[name].is_correct) for name in first]
    is_other = metric != ALL_QUESTIONS
    return Comparison(
        n=len(right),
        only_a=right.count((True, False)),
        only_b=right.count((False, True)),
        metric=metric.name,
        difference=metric.difference(first, second),
        p_value=metric.p_value(first, second),
        beside=ALL_QUESTIONS.difference(first, second) if is_other else None,
    )


class _Report(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    identity: str = ""
    parser: str = ""
    judge: str | None
    weights: dict[str, str] | None = None
    benchmarks: list[dict[str, Any]]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    fingerprint: str
    judge: dict[str, Any] | None = None
    scores: list[str] | None = None
    """Prefixes of the keys of its verdicts: the file also holds other models and judges."""


def _earlier(path: Path, identity: str) -> list[dict[str, Any]]:
    """Return the entries of a report, if it is of this model and read by this parser."""
    try:
        report = _Report.model_validate_json(path.read_bytes())
        for each in report.benchmarks:
            _SUMMARY.validate_python(each)
    except (FileNotFoundError, ValidationError):
        return []
    is_alike = (report.identity, report.parser) == (identity, PARSER_VERSION)
    return report.benchmarks if is_alike else []


def _result(folder: Path, content: dict[str, Any], judge: str | None) -> BenchmarkResult:
    """Read one benchmark; `judge` is that of the whole report, if the entry records none."""
    entry = _Entry.model_validate(content)
    settings = entry.judge or ({"model": judge} if judge and "judge" not in content else {})
    same = {name: value for name, value in settings.items() if name != "fallbacks"}
    summary = _SUMMARY.validate_python(content)
    verdicts = _verdicts(folder / summary.benchmark / SCORES, entry.scores)
    scored = [each for each, _ in verdicts]
    again = benchmark(summary.benchmark).metric(scored).measure(scored)
    stored = summary.primary
    if (again.name, again.value, again.n) != (stored.name, stored.value, stored.n):
        verdicts = []
    return BenchmarkResult(
        summary=summary,
        fingerprint=entry.fingerprint,
        judge=settings.get("model"),
        judged_by=json.dumps(same, sort_keys=True),
        scored=tuple(scored for scored, _ in verdicts),
        outputs=folder / summary.benchmark / OUTPUTS,
        digests={scored.id: output for scored, output in verdicts},
    )


def _verdicts(path: Path, prefixes: Sequence[str] | None) -> list[tuple[Scored, str]]:
    """Return each verdict and the hash of the output that it is on."""
    verdicts = []
    for number, (key, line) in enumerate(read_samples(path).items(), start=1):
        if prefixes is not None and scoring_of(key) not in prefixes:
            continue
        try:
            verdicts.append((scored_of(line), str(line.get("output", ""))))
        except ValidationError as error:
            raise damaged(path, number) from error
    return verdicts


def _by_id(scored: Sequence[Scored]) -> dict[str, Scored]:
    by_id = {each.id: each for each in scored}
    if len(by_id) < len(scored):
        raise DataError(
            f"A run answers {len(scored) - len(by_id):,} questions twice. Compare the whole of one "
            "run with the whole of another."
        )
    return by_id


def _distinct(lines: Sequence[Line], name: str) -> list[str]:
    return sorted({line[name] for line in lines if line[name]})


def _tensors(files: Mapping[str, str]) -> dict[str, str]:
    """Return the trained tensors: not those of a base below adapters."""
    return {
        name: each
        for name, each in files.items()
        if name.endswith(".safetensors") and not name.startswith("base/")
    }
