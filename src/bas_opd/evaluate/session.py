"""What a user asks for when a model is evaluated, and its steps in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bas_opd.errors import (
    BasOpdError,
    ConfigError,
    ModelError,
    PreemptionError,
    RunDirectoryError,
)
from bas_opd.evaluate.answering import LocalAnswerer
from bas_opd.evaluate.benchmarks import Benchmark, LoadedSet, benchmark
from bas_opd.evaluate.harness import Evaluation, Progress
from bas_opd.evaluate.judge import Judge
from bas_opd.evaluate.reporting import entry, write_report
from bas_opd.evaluate.served import ServedAnswerer
from bas_opd.evaluate.store import key_of
from bas_opd.evaluate.verdicts import VerdictCache
from bas_opd.run.lock import locked, owner_of
from bas_opd.run.stopping import StopFlag
from bas_opd.serving.client import ChatClient, Spending
from bas_opd.serving.endpoint import Endpoint

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
    """What the judge may cost, all commands with this `out` together."""

    def __post_init__(self) -> None:
        if self.server is None:
            return
        if not self.server_weights:
            raise ConfigError(
                "A server does not say which weights it has, so that new ones under the same name "
                "would get the answers of the old. Name them with --server-weights, as in "
                "--server-weights step-200."
            )
        if self.max_pixels is not None or self.device != "auto":
            raise ConfigError(
                "With --server, --max-pixels and --device have no effect: the server decides both. "
                "Set them where it is started, and leave them out here."
            )


def evaluate_model(request: Request, progress: Progress) -> str:
    """Take the steps that were asked for, and return the report if it is one of them."""
    with _disk_failures_explained(request.out), ExitStack() as held:
        chosen = [benchmark(name) for name in dict.fromkeys(request.benchmarks)]
        sets = [_loaded(each, request) for each in chosen]
        _make_folder(request.out)
        stop = StopFlag()
        held.enter_context(_held(request.out))
        held.enter_context(stop.listening())
        answerer = _answerer(request, stop.poll)
        settings = answerer.settings
        evaluations = [
            Evaluation(
                benchmark=each,
                loaded=loaded,
                model=key_of(**settings),
                folder=request.out / each.name,
            )
            for each, loaded in zip(chosen, sets, strict=True)
        ]
        try:
            if request.only in (None, "generate"):
                for evaluation in evaluations:
                    evaluation.generate(answerer, progress)
            if request.only == "generate":
                return ""
            judge = _judge(request, held)
            if request.only == "report":
                concluded = [each.scores(judge) for each in evaluations]
            else:
                concluded = [each.score(judge, progress, poll=stop.poll) for each in evaluations]
        except PreemptionError as error:
            answers = sum(evaluation.answered() for evaluation in evaluations)
            raise PreemptionError(
                f"Stopped by {error}; {answers:,} answers are on record. The same command goes on."
            ) from error
        if request.only == "score":
            return ""
        return write_report(
            request.out,
            model=request.model,
            settings=settings,
            weights=answerer.hashes if isinstance(answerer, LocalAnswerer) else None,
            entries=[
                entry(each, judge, those)
                for each, those in zip(evaluations, concluded, strict=True)
            ],
        )


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


def _make_folder(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file. Name a folder with --out.")
    out.mkdir(parents=True, exist_ok=True)


@contextmanager
def _held(out: Path) -> Iterator[None]:
    """Hold the folder, or say in this command's words who does."""
    with ExitStack() as held:
        try:
            held.enter_context(locked(out))
        except RunDirectoryError as error:
            raise RunDirectoryError(
                f"{out} is in use by {owner_of(out) or 'another process'}. Wait for it to end, "
                "stop it, or name another folder with --out."
            ) from error
        yield


@contextmanager
def _disk_failures_explained(out: Path) -> Iterator[None]:
    """Say of a disk that is full, read-only, gone or broken what it leaves of the evaluation."""
    try:
        yield
    except BasOpdError:  # Some are failures of the system as well.
        raise
    except OSError as error:
        raise BasOpdError(
            f"The evaluation in {out} cannot go on: {error}. Every answer and verdict on record is "
            "kept. Once that is mended, run the same command again, or name another folder with "
            "--out."
        ) from error


def _judge(request: Request, held: ExitStack) -> Judge | None:
    if request.judge is None:
        return None
    cache = held.enter_context(VerdictCache(request.out / "verdicts.jsonl"))
    requests, tokens = cache.spent()
    request.ceiling.resume(requests=requests, tokens=tokens)
    return Judge(ChatClient(request.judge, spending=request.ceiling), cache)


def _answerer(request: Request, poll: Callable[[], None]) -> LocalAnswerer | ServedAnswerer:
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
        memory=request.out / "weights.json",
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
