"""One process of a reproduction: trains run after run, and judges each on the same questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bas_opd.data.records import PreparedSet
from bas_opd.evaluate.runner import Graded, Posed, answer, pose
from bas_opd.evaluate.score import Share, accuracy
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.reproduce.results import Cost, Count, RunResult, Steps, write_result
from bas_opd.reproduce.runner import PROMPTS_PER_BATCH, Run
from bas_opd.run import loop
from bas_opd.run.record import read_records
from bas_opd.run.state import load_policy
from bas_opd.text import printable


def start() -> Worker:
    """Prepare a process of its own for its first run."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(1)
    return Worker()


class Worker:
    """Keeps the questions as the model reads them, so that they are decoded once for all runs."""

    def __init__(self) -> None:
        self._posed: dict[Path, tuple[Posed, ...]] = {}

    def __call__(self, run: Run, steps: Callable[[int], None], poll: Callable[[], None]) -> str:
        """Take the steps that are left of a run, judge it, and leave its result."""
        cost = columns = None
        model = run.config.model
        if run.seed is not None:
            summary = loop.train(run.config, _Progress(steps))
            columns = Steps.of(read_records(summary.directory / "records.jsonl"))
            cost = _cost(summary.totals)
            model = model.model_copy(update={"path": str(summary.model)})
        policy = load_policy(run.config.model_copy(update={"model": model}))
        graded = answer(
            policy,
            self._questions(run, policy, poll),
            prompts_per_batch=PROMPTS_PER_BATCH,
            max_response_tokens=run.config.rollout.max_response_tokens,
            on_done=lambda _: poll(),
        )
        result = _result(run, graded, policy, cost=cost, steps=columns)
        write_result(run.result, result)
        return f"{result.mean:.1%} right, mean over {len(result.kinds)} kinds"

    def _questions(
        self, run: Run, policy: VisionLanguageModel, poll: Callable[[], None]
    ) -> tuple[Posed, ...]:
        if run.questions.folder not in self._posed:
            posed = []
            for example in PreparedSet.load(run.questions.folder).examples:
                poll()
                posed += pose(policy.processor, [example], view="full")
            # The first layer rounds pixels to this precision anyway, and thousands of pictures
            # take half the memory.
            self._posed[run.questions.folder] = tuple(
                replace(each, prompt=replace(each.prompt, pixel_values=pixels))
                for each in posed
                for pixels in [each.prompt.pixel_values.to(policy.precision)]
            )
        return self._posed[run.questions.folder]


@dataclass(frozen=True, slots=True)
class _Progress:
    """Shows a run to the parent as steps, and to the process's log in words."""

    steps: Callable[[int], None]

    def start(self, total_steps: int, *, done: int = 0) -> None:
        self.steps(done)

    def step(self, event: Mapping[str, Any]) -> None:
        self.steps(1)

    def message(self, text: str) -> None:
        print(printable(text), flush=True)

    def finish(self, totals: Mapping[str, Any]) -> None: ...


def _cost(totals: Mapping[str, Any]) -> Cost:
    counts = {name: totals[name] for name in Cost.model_fields if name != "seconds"}
    seconds = {phase: round(value, 3) for phase, value in totals["seconds"].items()}
    return Cost(**counts, seconds=seconds)


def _result(
    run: Run,
    graded: tuple[Graded, ...],
    policy: VisionLanguageModel,
    *,
    cost: Cost | None,
    steps: Steps | None,
) -> RunResult:
    scores = accuracy(graded)
    gpu = torch.cuda.get_device_name(policy.device) if policy.device.type == "cuda" else None
    return RunResult(
        arm=run.arm,
        seed=run.seed,
        identity=run.identity,
        overrides=list(run.overrides),
        learning_rate=run.config.optim.learning_rate,
        train=run.train,
        train_n=run.train_n,
        task=run.questions.task,
        split=run.questions.split,
        questions=run.questions.fingerprint,
        base=run.base,
        device=gpu or "CPU",
        jobs=run.jobs,
        n=len(graded),
        kinds={kind: _count(share) for kind, share in scores.kinds.items()},
        pairs=None if scores.pairs is None else _count(scores.pairs),
        outcomes="".join("1" if each.is_correct else "0" for each in graded),
        cost=cost,
        steps=steps,
    )


def _count(share: Share) -> Count:
    return Count(n=share.n, correct=share.correct)
