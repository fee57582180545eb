"""Train a student with full querying and log every candidate with its utility.

    python -m recipes.selector_study.log MODEL DATA OUT.npz --steps 111 --seed 42 [key=value ...]

The settings are those of `configs/full.toml` over `configs/finesearch.toml`, as in the runs of the
small model, changed by the options and by `key=value` overrides, as `bas-opd train` takes them.
Only the log is written: no checkpoints.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy

from bas_opd.algorithm import train_step
from bas_opd.config import Config, dump, load_config, preset
from bas_opd.data.order import step_indices
from bas_opd.data.records import PreparedSet
from bas_opd.methods import BasOpd
from bas_opd.reproduce.results import PATHS
from bas_opd.run.state import build_method
from bas_opd.types import PromptBatch, StepReport
from recipes.selector_study.scored import save_log


def main(arguments: Sequence[str] | None = None) -> None:
    """Log one run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="folder of the base model")
    parser.add_argument("data", help="folder of a prepared set")
    parser.add_argument("out", type=Path, help="the .npz file to write")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True, help="training seed")
    parser.add_argument("--policy-lr", help="AdamW rate of the student")
    parser.add_argument("--device", default="auto")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    options = parser.parse_intermixed_args(arguments)
    settings = {
        "model.path": options.model,
        "model.device": options.device,
        "data.path": options.data,
        "optim.learning_rate": options.policy_lr,
        "run.seed": options.seed,
        "run.steps": options.steps,
    }
    chosen = [f"{key}={value}" for key, value in settings.items() if value is not None]
    config = load_config(preset("full"), [*chosen, *options.overrides], over=preset("finesearch"))
    log_run(config, options.out)
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.1f} MB")


def log_run(config: Config, out: Path) -> None:
    """Train with full querying and write the utility of each candidate."""
    data = PreparedSet.load(Path(config.data.path))
    kind_names = sorted({example.kind for example in data.examples})
    method = build_method(config)
    assert isinstance(method, BasOpd)
    tables, losses = [], []
    total = config.run.steps or 0
    for step in range(total):
        indices = step_indices(
            len(data.examples), config.rollout.prompts_per_step, config.run.seed, step
        )
        batch = PromptBatch(step=step, examples=tuple(data.examples[i] for i in indices))
        report = train_step(method.stages, batch, config.select.query_ratio)
        tables.append(_table(report, indices, kind_names))
        losses.append(report.update.loss)
        print(
            f"step {step + 1}/{total}: loss {losses[-1]:.5f}, mean utility "
            f"{numpy.nanmean(tables[-1]['utility']):.2e}, {sum(report.seconds.values()):.1f} s",
            flush=True,
        )
    save_log(
        out,
        tables,
        loss=losses,
        kind_names=kind_names,
        end_ids=method.model.processor.eos_ids,
        settings=_settings(config, data),
    )


def _settings(config: Config, data: PreparedSet) -> str:
    """Return the configuration as JSON: the fingerprint of the data, and no paths."""
    stored = dump(config)
    for key in PATHS:
        part, name = key.split(".")
        del stored[part][name]
    stored["data"]["fingerprint"] = data.fingerprint
    return json.dumps(stored)


def _table(report: StepReport, indices: Sequence[int], kind_names: Sequence[str]) -> dict[str, Any]:
    """Return the candidates of a step, one entry each in every array."""
    assert report.queries is not None
    rollouts, candidates = report.rollouts, report.queries.candidates
    rows = list(candidates.rows)
    assert rollouts.entropies is not None  # the sampler in this process measures them
    mask = rollouts.mask[rows]
    prompts = [rollouts.prompt_of(row) for row in rows]
    return {
        "row": rows,
        "prompt": prompts,
        "example": [indices[prompt] for prompt in prompts],
        "kind": [kind_names.index(rollouts.examples[prompt].kind) for prompt in prompts],
        "length": rollouts.lengths[rows].numpy(),
        "features": candidates.values.numpy(),
        "utility": [report.update.observed.get(row, float("nan")) for row in rows],
        "tokens": rollouts.tokens[rows].where(mask, 0).numpy(),
        "logprobs": rollouts.logprobs[rows].where(mask, 0.0).numpy(),
        "entropies": rollouts.entropies[rows].where(mask, 0.0).numpy(),
    }


if __name__ == "__main__":
    main()
