"""What a user asks for when a model is evaluated, and its steps in order."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from bas_opd.errors import ConfigError, ModelError
from bas_opd.evaluate.answering import Answerer, LocalAnswerer
from bas_opd.evaluate.benchmarks import Benchmark, LoadedSet, Summary, benchmark
from bas_opd.evaluate.endpoint import Endpoint
from bas_opd.evaluate.harness import Evaluation, Progress
from bas_opd.evaluate.judge import Judge
from bas_opd.evaluate.served import ServedAnswerer
from bas_opd.evaluate.serving import ChatClient, Spending
from bas_opd.evaluate.tables import latex, markdown
from bas_opd.evaluate.verdicts import VerdictCache
from bas_opd.runtime.lock import locked
from bas_opd.runtime.stopping import StopFlag

Step = Literal["generate", "score", "report"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One evaluation, as the user put it."""

    model: str
    """A run, the folder of a model, or the name of a model behind `server`."""
    benchmarks: Sequence[str]
    data: Mapping[str, str]
    """Benchmark -> folder or hub id."""
    out: Path
    only: Step | None = None
    partial: bool = False
    device: str = "auto"
    batch: int = 16
    max_response_tokens: int = 1024
    max_pixels: int | None = None
    server: Endpoint | None = None
    server_weights: str = ""
    """What tells the served weights from others under the same name."""
    judge: Endpoint | None = None
    ceiling: Spending = field(default_factory=Spending)
    """What the judge may cost in this evaluation."""


def evaluate_model(request: Request, progress: Progress) -> str:
    """Take the steps that were asked for, and return the report if it is one of them."""
    chosen = [benchmark(name) for name in dict.fromkeys(request.benchmarks)]
    sets = [_loaded(each, request) for each in chosen]
    stop = StopFlag()
    request.out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        held.enter_context(locked(request.out))
        held.enter_context(stop.listening())
        answerer = _answerer(request, stop.poll)
        identity = answerer.identity
        evaluations = [
            Evaluation(
                benchmark=each,
                loaded=loaded,
                model=identity,
                folder=request.out / each.name,
            )
            for each, loaded in zip(chosen, sets, strict=True)
        ]
        if request.only in (None, "generate"):
            for evaluation in evaluations:
                evaluation.generate(answerer, progress)
        if request.only == "generate":
            return ""
        judge = None
        if request.judge is not None:
            cache = held.enter_context(VerdictCache(request.out / "verdicts.jsonl"))
            judge = Judge(ChatClient(request.judge, spending=request.ceiling), cache)
        if request.only in (None, "score"):
            for evaluation in evaluations:
                evaluation.score(judge, progress, poll=stop.poll)
        if request.only == "score":
            return ""
        summaries = [each.benchmark.summarise(each.scores(judge)) for each in evaluations]
        return _report(request, sets, summaries, identity)


def model_folder(model: str) -> Path:
    """Return where the weights of a run or of a model folder lie."""
    given = Path(model).expanduser()
    folder = given / "model" if (given / "model").is_dir() else given
    if (folder / "adapter_config.json").is_file():
        raise ModelError(
            f"{folder} holds adapters, which are no model by themselves. Merge them first with "
            f"`bas-opd export {given} OUT`, and evaluate OUT."
        )
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"{given} is neither a finished run nor the folder of a model. For a run that has not "
            f"finished, `bas-opd export {given} OUT` writes its newest checkpoint as one."
        )
    return folder


def _answerer(request: Request, poll: Callable[[], None]) -> Answerer:
    if request.server is not None:
        return ServedAnswerer(
            client=ChatClient(request.server),
            weights=request.server_weights,
            max_response_tokens=request.max_response_tokens,
            poll=poll,
        )
    return LocalAnswerer(
        folder=model_folder(request.model),
        device=request.device,
        max_response_tokens=request.max_response_tokens,
        max_pixels=request.max_pixels,
        prompts_per_batch=request.batch,
        poll=poll,
    )


def _loaded(each: Benchmark, request: Request) -> LoadedSet:
    source = request.data.get(each.name)
    if source is None:
        raise ConfigError(
            f"Where {each.title} lies was not said. Add --data {each.name}=FOLDER, or name a "
            f"folder with one folder for each benchmark. {each.obtain}"
        )
    return each.load(source, partial=request.partial)


def _report(
    request: Request, sets: Sequence[LoadedSet], summaries: Sequence[Summary], identity: str
) -> str:
    text = markdown(request.model, summaries)
    record = {
        "model": request.model,
        "identity": identity,
        "judge": None if request.judge is None else request.judge.model,
        "benchmarks": [
            {"fingerprint": loaded.fingerprint, "is_partial": loaded.is_partial, **asdict(summary)}
            for loaded, summary in zip(sets, summaries, strict=True)
        ],
    }
    for name, content in (
        ("report.md", text),
        ("report.tex", latex(request.model, summaries)),
        ("report.json", json.dumps(record, indent=1) + "\n"),
    ):
        (request.out / name).write_text(content, encoding="utf-8")
    return text
