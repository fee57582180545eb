"""The demo: budget-aware distillation on a CPU, from drawing the pictures to a page of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bas_opd import disk
from bas_opd.commands.named_set import KINDS
from bas_opd.config import Config, load_config, preset
from bas_opd.data.finesearch import make_finesearch
from bas_opd.data.records import PreparedSet
from bas_opd.errors import BasOpdError, PreemptionError
from bas_opd.evaluate.command import Request, evaluate_model
from bas_opd.evaluate.questions import View
from bas_opd.model.base import small_base
from bas_opd.report.demo import (
    CROPS,
    LABELS,
    TRAINED,
    accuracies,
    evaluation_folder,
    read_result,
)
from bas_opd.report.findings import named_text
from bas_opd.run import loop
from bas_opd.run.console import Console
from bas_opd.run.directory import RunDirectory
from bas_opd.text import duration
from bas_opd.types import Prompt

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
        with _Messages() as console:
            test = _draw(home / "data", configs["full"], seed=seed, n=questions, console=console)
            # All models have the same processor, so the questions are encoded once.
            evaluate = partial(_evaluate, home, configs["full"], test, console, prompts={})
            evaluate(CROPS, small_base(), view="crop", prompts=None)
            evaluate("base", small_base())
            for run, config in configs.items():
                evaluate(run, _train(config, LABELS[run]))
                # Each run keeps the evaluation of its base, as `bas-opd eval RUN --base` writes it.
                disk.copy_tree(
                    evaluation_folder(home, "base"), RunDirectory(path=home / run).base_evaluation
                )
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
            "model.path=small",
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
        folder / "train",
        split="train",
        size="small",
        n=pictures,
        seed=seed,
        kinds=KINDS["finesearch"],
    )
    return make_finesearch(
        folder / "test", split="test", size="small", n=n, seed=seed, kinds=KINDS["finesearch"]
    )


def _evaluate(
    home: Path,
    config: Config,
    test: PreparedSet,
    console: Console,
    model: str,
    path: Path,
    *,
    view: View = "full",
    prompts: dict[str, Prompt] | None,
) -> None:
    """Evaluate a model on the held-out questions, as `bas-opd eval` does."""
    name = LABELS.get(model, LABELS["base"])
    shown = "whole pictures" if view == "full" else "crops"
    n = sum(view == "full" or example.has_crop for example in test.examples)
    console.message(f"{name}: answering {n:,} held-out questions from {shown}.")
    request = Request(
        model=str(path),
        benchmarks=["finesearch"],
        data={"finesearch": str(test.folder)},
        out=evaluation_folder(home, model),
        view=view,
        device=config.model.device,
        max_pixels=config.model.max_pixels,
        batch=PROMPTS_PER_BATCH,
        max_response_tokens=config.rollout.max_response_tokens,
    )
    evaluate_model(request, console, prompts=prompts)
    reached = map(named_text, accuracies(read_result(home, model).summary))
    console.message(f"{name}: accuracy {', '.join(reached)}.")


def _train(config: Config, name: str) -> Path:
    """Train one run, and return the folder of its model."""
    with _Training(name) as console:
        console.message(
            f"{name}: training for {config.run.steps} steps; the teacher, which sees the crop, "
            f"is asked about {100 * config.select.query_ratio:.0f} % of the answers."
        )
        return loop.train(config, console).model


class _Messages(Console):
    """Shows the messages of an evaluation, which takes seconds here, but no bar."""

    def start(self, total: int, what: str = "steps", *, done: int = 0) -> None: ...


class _Training(Console):
    """Shows the steps of a run, and one line in place of its ledger, which the table shows."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def finish(self, totals: Mapping[str, Any]) -> None:
        seconds = sum(totals["seconds"].values())
        self.message(
            f"{self._name}: trained in {duration(seconds)}; the teacher was asked "
            f"{totals['calls']:,} times and worked for {duration(totals['seconds']['teacher'])}."
        )
