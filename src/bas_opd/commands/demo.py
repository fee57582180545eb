"""The demo: budget-aware distillation on a CPU, from drawing the pictures to a page to look at."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bas_opd.config import Config, load_config, preset
from bas_opd.data.finesearch import make_finesearch
from bas_opd.data.records import PreparedSet
from bas_opd.errors import BasOpdError, PreemptionError
from bas_opd.evaluate.runner import Posed, answer, pose
from bas_opd.evaluate.score import Share
from bas_opd.model.base import LEARNT_KINDS, small_base
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.report.demo_results import CROPS, LABELS, TRAINED, answers_file
from bas_opd.run import loop
from bas_opd.run.console import Console
from bas_opd.run.state import load_policy
from bas_opd.text import duration

KINDS = tuple(kind for kind in LEARNT_KINDS if kind != "existence")
"""Of `existence` only a "yes" has a crop, so that training on it unteaches "no"."""
QUESTIONS = 280
"""Held-out questions: forty turns of the six kinds, a pair being two."""
PROMPTS_PER_BATCH = 64
"""Questions answered together: enough for speed, few enough for a laptop's memory."""


def run_demo(
    home: Path, *, seed: int, questions: int = QUESTIONS, overrides: Sequence[str] = ()
) -> None:
    """Train learned-25 and full querying from the shipped base, and judge all three.

    Leaves in `home` the pictures, both runs, and the answers of each model; `report` reads them.
    """
    configs = {run: _config(home, run, seed, overrides) for run in TRAINED}
    with Console() as console:
        test = _draw(home / "data", configs["full"], seed=seed, questions=questions, say=console)
        base = load_policy(configs["full"])
        crops = pose(base.processor, test.examples, view="crop")
        whole = pose(base.processor, test.examples, view="full")
        _judge(home, base, crops, model=CROPS, view="crops", say=console)
        _judge(home, base, whole, model="base", view="whole pictures", say=console)
    for run, config in configs.items():
        with Console() as console:
            trained = _train(config, run, console)
            _judge(home, trained, whole, model=run, view="whole pictures", say=console)


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


def _draw(folder: Path, config: Config, *, seed: int, questions: int, say: Console) -> PreparedSet:
    """Draw what is trained on, each picture once, and what is judged on; return the latter."""
    pictures = config.rollout.prompts_per_step * (config.run.steps or 1)
    say.message(
        f"Drawing {pictures:,} pictures to train on and {questions:,} held-out ones, with other "
        "things on other backgrounds."
    )
    make_finesearch(
        folder / "train", split="train", size="small", n=pictures, seed=seed, kinds=KINDS
    )
    return make_finesearch(
        folder / "test", split="test", size="small", n=questions, seed=seed, kinds=KINDS
    )


def _judge(
    home: Path,
    policy: VisionLanguageModel,
    posed: Sequence[Posed],
    *,
    model: str,
    view: str,
    say: Console,
) -> None:
    """Let a model answer the held-out questions, and keep what it said."""
    name = LABELS.get(model, LABELS["base"])
    say.message(f"{name}: answering {len(posed):,} held-out questions from {view}.")
    graded = answer(policy, posed, prompts_per_batch=PROMPTS_PER_BATCH, max_response_tokens=24)
    share = Share.of(each.is_correct for each in graded)
    say.message(f"{name}: {share.correct:,} of {share.n:,} right ({100 * share.accuracy:.1f} %).")
    file = answers_file(home, model)
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps([asdict(each) for each in graded]), encoding="utf-8")


def _train(config: Config, run: str, console: Console) -> VisionLanguageModel:
    """Train one run, and return its model."""
    console.message(
        f"{LABELS[run]}: training for {config.run.steps} steps; the teacher, who sees the crop, is "
        f"asked about {100 * config.select.query_ratio:.0f} % of the answers."
    )
    try:
        summary = loop.train(config, _Steps(console, LABELS[run]))
    except PreemptionError as error:
        raise BasOpdError(
            f"The demo was stopped. What it did so far is in {Path(config.run.output or '').parent}"
            "; the same command starts a new one."
        ) from error
    model = config.model.model_copy(update={"path": str(summary.model)})
    return load_policy(config.model_copy(update={"model": model}))


@dataclass(frozen=True, slots=True)
class _Steps:
    """Shows the steps of a run, and one line in place of its ledger, which the table holds."""

    console: Console
    name: str

    def start(self, total_steps: int, *, done: int = 0) -> None:
        self.console.start(total_steps, done=done)

    def step(self, event: Mapping[str, Any]) -> None:
        self.console.step(event)

    def message(self, text: str) -> None:
        self.console.message(text)

    def finish(self, totals: Mapping[str, Any]) -> None:
        seconds = sum(totals["seconds"].values())
        self.message(
            f"{self.name}: trained in {duration(seconds)}; the teacher was asked "
            f"{totals['calls']:,} times and worked for {duration(totals['seconds']['teacher'])}."
        )
