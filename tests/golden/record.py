"""The first step of every policy on every family, as numbers: `python tests/golden/record.py`.

Run it when a change is meant to change them, and say why in the commit.
"""

from __future__ import annotations

import json
import sys
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from small_models import build_small_model
from stage_fixtures import make_examples, make_model, make_stages

from bas_opd.algorithm import train_step
from bas_opd.rollout import SamplingSettings
from bas_opd.select import build_selector
from bas_opd.types import PromptBatch

FILE = Path(__file__).with_name("first_steps.json")
POLICIES = {"full": "1", "random": "0.25", "entropy": "0.25", "learned": "0.25"}


def first_steps(folder: Path) -> dict[str, Any]:
    """Return what the first step of each policy does, given the folder of a small model."""
    with tempfile.TemporaryDirectory() as pictures:
        examples = make_examples(Path(pictures), 6)
        return {
            policy: _first_step(folder, examples, policy, ratio)
            for policy, ratio in POLICIES.items()
        }


def _first_step(folder: Path, examples: Any, policy: str, ratio: str) -> dict[str, Any]:
    model = make_model(folder)
    sampling = SamplingSettings(per_prompt=4, max_response_tokens=8)
    stages = make_stages(model, build_selector(policy), sampling)
    report = train_step(stages, PromptBatch(step=0, examples=examples), Decimal(ratio))
    assert report.queries is not None
    return {
        "tokens": report.rollouts.tokens.tolist(),
        "lengths": report.rollouts.lengths.tolist(),
        "features": report.queries.candidates.values[0].tolist(),
        "selected": list(report.rows),
        "loss": report.update.loss,
        "gradient_norm": report.update.gradient_norm,
        "utility": [report.update.observed[row] for row in report.rows],
        "processed_tokens": report.queries.teacher.processed_tokens,
    }


def main() -> None:
    torch.set_num_threads(1)
    recorded = {}
    for family in ("qwen3_5", "qwen3_vl", "qwen2_5_vl"):
        with tempfile.TemporaryDirectory() as folder:
            build_small_model(Path(folder), family=family)
            recorded[family] = first_steps(Path(folder))
    FILE.write_text(json.dumps(recorded) + "\n")


if __name__ == "__main__":
    main()
