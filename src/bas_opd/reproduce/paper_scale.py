"""The commands that make a table or figure at the scale of the paper."""

from __future__ import annotations

from bas_opd.evaluate.benchmarks.summary import SEVEN
from bas_opd.reproduce.arms import BASE
from bas_opd.reproduce.catalogue import Item
from bas_opd.reproduce.settings import overrides_of

MODELS = {"configs/qwen3.5-4b.toml": 91, "configs/qwen3.5-9b.toml": 188}
"""GB of weights, gradients, AdamW and teacher, as `bas-opd plan` counts them."""
PAPER_SECONDS = (50_028, 55_487)
"""Seconds of the paper's runs, learned-25 and full querying (quoted from its Table 8)."""
AUDITS = {"figure3": "utility", "figure4": "geometry"}
COSTS = ("table7", "table8")


def instructions(item: Item) -> str:
    """Return the commands that make an item with a real model, and their memory and time."""
    policies = [arm for arm in item.arms if arm != BASE]
    keep = " run.checkpoint_every=18 run.keep_every=18" if item.name == "figure4" else ""
    sizes = ", ".join(f"{gigabytes} GB for {config}" for config, gigabytes in MODELS.items())
    config = next(iter(MODELS))
    lines = [
        f"# Runs of 111 steps: {len(policies)}. State on the GPU in float32: {sizes}; adapters "
        "take less (lora.rank=64).",
        f"# The paper's runs took {PAPER_SECONDS[0]:,} to {PAPER_SECONDS[1]:,} s each on its "
        "machines; `bas-opd plan CONFIG --probe` measures yours.",
        "# DATA is what `bas-opd data prepare SRC DATA` made of the 3,120 pairs.",
    ]
    lines += [
        " ".join(
            (
                f"bas-opd train {config} data.path=DATA run.output=runs/{policy}{keep}",
                *overrides_of(policy),
            )
        )
        for policy in policies
    ]
    if item.name in AUDITS:
        lines += [f"bas-opd audit runs/{each} --only {AUDITS[item.name]}" for each in policies]
    elif item.name not in COSTS:
        lines += [
            f"bas-opd eval runs/{policy} --bench {','.join(SEVEN)} --data SNAPSHOTS --judge URL "
            "--judge-model NAME"
            for policy in policies
        ]
    runs = " ".join(f"--run runs/{policy}" for policy in policies)
    lines.append(f"bas-opd reproduce {item.name} --out figures {runs}")
    return "\n".join(lines)
