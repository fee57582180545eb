"""The demo: budget-aware distillation on a CPU, from drawing the pictures to a page of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bas_opd.config import Config, load_config, preset
from bas_opd.data.finesearch import make_finesearch
from bas_opd.data.records import PreparedSet
from bas_opd.errors import BasOpdError, PreemptionError
from bas_opd.evaluate.command import Request, evaluate_model
from bas_opd.evaluate.questions import View
from bas_opd.model.base import LEARNT_KINDS, small_base
from bas_opd.report.demo import CROPS, LABELS, TRAINED, evaluation_folder, read_answers
from bas_opd.run import loop
from bas_opd.run.console import Console
from bas_opd.run.record import StepRecord
from bas_opd.text import duration
from bas_opd.types import Prompt

KINDS = tuple(kind for kind in LEARNT_KINDS if kind != "existence")
"""Of `existence`, only questions with the answer "yes" have a crop: training would unlearn "no"."""
QUESTIONS = 280
"""Held-out questions: forty of each of the six kinds, where a pair is two questions."""
PROMPTS_PER_BATCH = 64
"""Questions answered together: enough for speed, few enough for a laptop's memory."""


def run_demo(
    home: Path, *, seed: int, questions: int = QUESTIONS, overrides: Sequence[str] = ()
) -> None:
    """Train learned-25 and full querying from the shipped base, and evaluate all three models.

    Leaves in `home` the pictures, both runs, and the evaluation of each model; `report` reads them.
    """
    configs = {run: _config(home, run, seed, overrides) for run in TRAINED}
    try:
        with Console() as console:
            test = _draw(home / "data", configs["full"], seed=seed, n=questions, console=console)
            models = _Evaluator(home=home, test=test, config=configs["full"], prompts={})
            models.evaluate(CROPS, small_base(), console, view="crop")
            models.evaluate("base", small_base(), console)
        for run, config in configs.items():
            with Console() as console:
                models.evaluate(run, _train(config, run, console), console)
    except PreemptionError as error:
        raise BasOpdError(
            f"The demo was stopped. What it did so far is in {home}; the same command starts a new "
            "one."
        ) from error


def _config(home: Path, run: str, seed: int, overrides: Sequence[str]) -> Config:
    """Return the settings of one run: its policy over those of the demo."""
    return load_config(
        preset(run),
        [
            *overrides,
            f"model.path={small_base()}",
            f"data.path={home / 'data' / 'train'}",
            f"run.output={home / run}",
            f"run.seed={seed}",
            f"select.seed={seed}",
        ],
        over=preset("demo"),
    )


def _draw(folder: Path, config: Config, *, seed: int, n: int, console: Console) -> PreparedSet:
    """Draw the training pictures, each used once, and the held-out ones; return the latter."""
    pictures = config.rollout.prompts_per_step * (config.run.steps or 1)
    console.message(
        f"Drawing {pictures:,} pictures to train on and {n:,} held-out ones, with other objects on "
        "other backgrounds."
    )
    make_finesearch(
        folder / "train", split="train", size="small", n=pictures, seed=seed, kinds=KINDS
    )
    return make_finesearch(folder / "test", split="test", size="small", n=n, seed=seed, kinds=KINDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evaluator:
    """Evaluates models on the held-out questions, as `bas-opd eval` does."""

    home: Path
    test: PreparedSet
    config: Config
    prompts: dict[str, Prompt]
    """The encoded questions: all models have the same processor."""

    def evaluate(self, model: str, path: Path, console: Console, *, view: View = "full") -> None:
        name = LABELS.get(model, LABELS["base"])
        shown = "whole pictures" if view == "full" else "crops"
        n = sum(view == "full" or example.has_crop for example in self.test.examples)
        console.message(f"{name}: answering {n:,} held-out questions from {shown}.")
        request = Request(
            model=str(path),
            benchmarks=["finesearch"],
            data={"finesearch": str(self.test.folder)},
            out=evaluation_folder(self.home, model),
            view=view,
            device=self.config.model.device,
            max_pixels=self.config.model.max_pixels,
            batch=PROMPTS_PER_BATCH,
            max_response_tokens=self.config.rollout.max_response_tokens,
        )
        prompts = self.prompts if view == "full" else None
        evaluate_model(request, _Messages(console), prompts=prompts)
        right = [answer.is_correct for answer in read_answers(self.home, model).values()]
        share = f"{100 * sum(right) / len(right):.1f} %"
        console.message(f"{name}: {sum(right):,} of {len(right):,} right ({share}).")


def _train(config: Config, run: str, console: Console) -> Path:
    """Train one run, and return the folder of its model."""
    console.message(
        f"{LABELS[run]}: training for {config.run.steps} steps; the teacher, which sees the crop, "
        f"is asked about {100 * config.select.query_ratio:.0f} % of the answers."
    )
    return loop.train(config, _Steps(console, LABELS[run])).model


@dataclass(frozen=True, slots=True)
class _Messages:
    """Shows the messages of an evaluation, which takes seconds here, but no bar."""

    console: Console

    def start(self, total: int, what: str = "steps", *, done: int = 0) -> None: ...

    def advance(self, count: int = 1) -> None: ...

    def message(self, text: str) -> None:
        self.console.message(text)


@dataclass(frozen=True, slots=True)
class _Steps(_Messages):
    """Shows the steps of a run, and one line in place of its ledger, which the table shows."""

    name: str

    def start(self, total: int, what: str = "steps", *, done: int = 0) -> None:
        self.console.start(total, done=done)

    def step(self, step: StepRecord) -> None:
        self.console.step(step)

    def finish(self, totals: Mapping[str, Any]) -> None:
        seconds = sum(totals["seconds"].values())
        self.message(
            f"{self.name}: trained in {duration(seconds)}; the teacher was asked "
            f"{totals['calls']:,} times and worked for {duration(totals['seconds']['teacher'])}."
        )
