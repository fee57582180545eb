"""One worker process of a reproduction: trains runs, and evaluates each on the same questions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bas_opd.evaluate.answering import ModelAnswers
from bas_opd.evaluate.benchmarks import LoadedSet, Measure, Scored, benchmark
from bas_opd.evaluate.benchmarks.finesearch import PAIR
from bas_opd.evaluate.benchmarks.summary import accuracy_by, all_right
from bas_opd.evaluate.during_training import evaluator
from bas_opd.evaluate.questions import Output
from bas_opd.evaluate.scoring import score_in_memory
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.report.selection import reach
from bas_opd.reproduce.results import Cost, Count, Point, Run, RunResult, Steps, write_result
from bas_opd.run import loop
from bas_opd.run.history import read_history
from bas_opd.run.progress import StepsAsBar
from bas_opd.run.state import load_policy
from bas_opd.text import printable
from bas_opd.types import Hooks, Prompt

PROMPTS_PER_BATCH = 256
"""Questions answered together."""


def start() -> Worker:
    """Prepare this process for its first run."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(1)
    return Worker()


class Worker:
    """Keeps the encoded questions, so that pictures are decoded once for all runs."""

    def __init__(self) -> None:
        self._sets: dict[Path, LoadedSet] = {}
        self._prompts: dict[Path, dict[str, Prompt]] = {}

    def __call__(self, run: Run, steps: Callable[[int], None], poll: Callable[[], None]) -> str:
        """Finish the training of a run, evaluate it, and write its result."""
        cost = columns = None
        curve: list[Point] = []
        model = run.config.model
        if run.planned.seed is not None:
            evaluate = evaluator(
                run.config,
                prompts=self._prompts.setdefault(run.questions, {}),
                prompts_per_batch=PROMPTS_PER_BATCH,
            )
            summary = loop.train(run.config, StepsAsBar(_Progress(steps)), evaluate=evaluate)
            history = read_history(summary.directory)
            columns = Steps.of(history.steps)
            curve = [
                Point(step=each.step, n=each.n, accuracy=each.accuracy)
                for each in history.evaluations
            ]
            asked = reach(history.queries).per_step if history.queries else None
            cost = _cost(summary.totals, asked)
            model = model.model_copy(update={"path": str(summary.model)})
        policy = load_policy(run.config.model_copy(update={"model": model}))
        scored = self._evaluated(run, policy, poll)
        pairs = all_right(scored, PAIR, size=2, name="pairs")
        gpu = torch.cuda.get_device_name(policy.device) if policy.device.type == "cuda" else None
        result = RunResult(
            **run.planned.model_dump(),
            device=gpu or "CPU",
            jobs=run.jobs,
            n=len(scored),
            kinds={each.part: _count(each) for each in accuracy_by(scored, "kind")},
            pairs=_count(pairs) if pairs.n else None,
            outcomes="".join("1" if each.is_correct else "0" for each in scored),
            cost=cost,
            steps=columns,
            curve=curve,
        )
        write_result(run.result, result)
        return f"{result.accuracy:.1%} ({result.metric.name})"

    def _evaluated(
        self, run: Run, policy: VisionLanguageModel, poll: Callable[[], None]
    ) -> tuple[Scored, ...]:
        folder, finesearch = run.questions, benchmark("finesearch")
        if folder not in self._sets:
            self._sets[folder] = finesearch.load(folder)
        questions = self._sets[folder].questions
        answering = ModelAnswers(
            model=policy,
            max_response_tokens=run.config.rollout.max_response_tokens,
            prompts_per_batch=PROMPTS_PER_BATCH,
            prompts=self._prompts.setdefault(folder, {}),
            hooks=Hooks(poll=poll, notice=_say),
        )

        def outputs() -> Iterator[tuple[int, Output]]:
            for answer in answering.answers(questions):
                yield answer
                poll()

        return score_in_memory(finesearch, questions, outputs())


@dataclass(frozen=True, slots=True)
class _Progress:
    """Reports steps to the parent process, and messages to the log of this one."""

    steps: Callable[[int], None]

    def start(self, total: int, what: str = "steps", *, done: int = 0) -> None:
        self.steps(done)

    def advance(self, count: int = 1) -> None:
        self.steps(count)

    def message(self, text: str) -> None:
        _say(text)


def _say(text: str) -> None:
    print(printable(text), flush=True)


def _cost(totals: Mapping[str, Any], prompts_asked: float | None) -> Cost:
    counts = {
        name: totals[name] for name in Cost.model_fields if name not in ("seconds", "prompts_asked")
    }
    seconds = {phase: round(value, 3) for phase, value in totals["seconds"].items()}
    asked = None if prompts_asked is None else round(prompts_asked, 4)
    return Cost(**counts, prompts_asked=asked, seconds=seconds)


def _count(measure: Measure) -> Count:
    return Count(n=measure.n, correct=measure.correct or 0)
