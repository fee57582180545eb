"""What `bas-opd eval` does: the request of a user, and the steps it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bas_opd import disk
from bas_opd.errors import BasOpdError, ConfigError, PreemptionError, explain_failure
from bas_opd.evaluate.answering import LocalAnswerer, ServedAnswerer
from bas_opd.evaluate.benchmarks import benchmark
from bas_opd.evaluate.evaluation import Evaluation
from bas_opd.evaluate.judge import Judge, VerdictCache
from bas_opd.evaluate.questions import View
from bas_opd.evaluate.results import report_entry, write_report
from bas_opd.evaluate.weights import find_checkpoint
from bas_opd.files import hash_of
from bas_opd.model.folder import local_folder
from bas_opd.run.history import read_outline
from bas_opd.run.lock import locked
from bas_opd.run.progress import Progress
from bas_opd.run.stopping import StopFlag
from bas_opd.serving.client import ChatClient, Spending
from bas_opd.serving.endpoint import Endpoint
from bas_opd.types import Hooks, Prompt

Step = Literal["generate", "score", "report"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One evaluation, as the user asked for it."""

    model: str
    """A run, the folder of a model, or the name of a model behind `server`."""
    benchmarks: Sequence[str]
    data: Mapping[str, str]
    """Benchmark -> folder or hub id."""
    out: Path
    view: View = "full"
    only: Step | None = None
    partial: bool = False
    device: str = "auto"
    batch: int = 16
    max_response_tokens: int = 1024
    max_pixels: int | None = None
    server: Endpoint | None = None
    server_weights: str = ""
    """A label for the served weights, since new ones may have the same name."""
    judge: Endpoint | None = None
    spending: Spending = field(default_factory=Spending)
    """Spending limit of the judge, for all commands with this `out` together."""

    def __post_init__(self) -> None:
        if self.server is None:
            return
        if not self.server_weights:
            raise ConfigError(
                "A server does not say which weights it has, so new ones under the same name would "
                "get the answers of the old. Name them with --server-weights, as in "
                "--server-weights step-200."
            )
        if self.view != "full":
            raise ConfigError("A server is asked about full pictures only.")
        if self.max_pixels is not None or self.device != "auto":
            raise ConfigError(
                "With --server, --max-pixels and --device have no effect: the server decides both. "
                "Set them where it is started, and leave them out here."
            )


def base_of(run: Path) -> tuple[str, Path]:
    """Return the model that a run started from, and the folder for its evaluation."""
    history = read_outline(run)
    return str(local_folder(history.config().model.path)), history.directory.base_evaluation


def evaluate_model(
    request: Request, progress: Progress, *, prompts: dict[str, Prompt] | None = None
) -> str:
    """Take the requested steps, and return the report if it is one of them.

    `prompts` holds encoded questions for several models with the same processor; see
    `answering.ModelAnswers`.
    """
    with _disk_failures_explained(request.out), ExitStack() as held:
        chosen = [benchmark(name) for name in dict.fromkeys(request.benchmarks)]
        sets = [
            each.load(request.data[each.name], partial=request.partial, view=request.view)
            for each in chosen
        ]
        stop = StopFlag()
        hooks = Hooks(poll=stop.poll, notice=progress.message)
        answerer = _answerer(request, hooks, prompts)  # it may not be there
        _lock(request.out, held)
        held.enter_context(stop.listening())
        settings = answerer.settings
        evaluations = [
            Evaluation(
                benchmark=each,
                loaded=loaded,
                model=hash_of(settings),
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
                scores = [each.scores(judge) for each in evaluations]
            else:
                scores = [each.score(judge, progress, poll=stop.poll) for each in evaluations]
        except PreemptionError as error:
            answers = sum(evaluation.answered() for evaluation in evaluations)
            raise PreemptionError(
                f"Stopped by {error}; {answers:,} answers are saved. Rerun the same command to "
                "resume."
            ) from error
        if request.only == "score":
            return ""
        return write_report(
            request.out,
            model=request.model,
            settings=settings,
            weights=answerer.hashes if isinstance(answerer, LocalAnswerer) else None,
            step=answerer.checkpoint.step if isinstance(answerer, LocalAnswerer) else None,
            entries=[
                report_entry(each, judge, those)
                for each, those in zip(evaluations, scores, strict=True)
            ],
        )


def _lock(out: Path, held: ExitStack) -> None:
    """Make and lock the folder; raise errors that fit this command."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file. Name a folder with --out.")
    disk.make_folder(out, parents=True, exist_ok=True)
    held.enter_context(locked(out, otherwise="name another folder with --out"))


@contextmanager
def _disk_failures_explained(out: Path) -> Iterator[None]:
    """Turn a failure of the disk into an error that says what is saved and what to do."""
    try:
        yield
    except BasOpdError:  # Some of them are OSErrors as well.
        raise
    except OSError as error:
        left = "Every answer and verdict so far is saved; then rerun the same command to resume. "
        raise BasOpdError(
            f"The evaluation in {out} cannot continue: {explain_failure(error)} "
            f"{left if out.is_dir() else ''}--out names another folder."
        ) from error


def _judge(request: Request, held: ExitStack) -> Judge | None:
    if request.judge is None:
        return None
    cache = held.enter_context(VerdictCache(request.out / "verdicts.jsonl"))
    requests, tokens = cache.spent()
    request.spending.add(requests=requests, tokens=tokens)
    return Judge(ChatClient(request.judge, spending=request.spending), cache)


def _answerer(
    request: Request, hooks: Hooks, prompts: dict[str, Prompt] | None
) -> LocalAnswerer | ServedAnswerer:
    if request.server is not None:
        return ServedAnswerer(
            client=ChatClient(request.server),
            weights=request.server_weights,
            max_response_tokens=request.max_response_tokens,
            poll=hooks.poll,
        )
    return LocalAnswerer(
        checkpoint=find_checkpoint(request.model),
        view=request.view,
        device=request.device,
        max_response_tokens=request.max_response_tokens,
        max_pixels=request.max_pixels,
        prompts_per_batch=request.batch,
        memory=request.out / "weights.json",
        prompts=prompts,
        hooks=hooks,
    )
