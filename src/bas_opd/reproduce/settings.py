"""The settings of the paper's runs (Tables 5 and 6), and the commands that make such runs."""

from __future__ import annotations

from collections.abc import Sequence

from bas_opd.config import load_config, preset
from bas_opd.config.loading import dump, flat
from bas_opd.config.schema import SelectConfig
from bas_opd.evaluate.benchmarks.summary import SEVEN
from bas_opd.reproduce.arms import BASE
from bas_opd.text import markdown_table

SHOWN = (
    "model.path",
    "rollout.prompts_per_step",
    "rollout.per_prompt",
    "rollout.max_response_tokens",
    "data.max_prompt_tokens",
    "select.policy",
    "select.query_ratio",
    "select.seed",
    "distill.alpha",
    "distill.k",
    "teacher.tau",
    "optim.learning_rate",
    "optim.weight_decay",
    "run.seed",
    "run.epochs",
)
MODELS = {"qwen3.5-4b": 91, "qwen3.5-9b": 188}
"""GB of weights, gradients, AdamW and teacher, as `bas-opd plan` counts them."""
PAPER_SECONDS = (50_028, 55_487)
"""Seconds of the paper's runs, learned-25 and full querying (quoted from its Table 8)."""
AUDITS = {"figure3": "utility", "figure4": "geometry"}
COSTS = ("table7", "table8")


def selector_settings() -> str:
    """Return the defaults of the learned selector (Table 5)."""
    fields = SelectConfig.model_fields.items()
    rows = [
        [f"select.{name}", str(field.default), field.description or ""]
        for name, field in fields
        if name not in ("policy", "query_ratio")
    ]
    return markdown_table(["setting", "value", "meaning"], rows)


def run_settings(policies: Sequence[str]) -> str:
    """Return the settings of the paper's runs, as the presets have them (Table 6)."""
    settings = {policy: _settings(policy) for policy in policies}
    rows = [[key, *(str(settings[policy][key]) for policy in policies)] for key in SHOWN]
    return markdown_table(["setting", *policies], rows)


def instructions(name: str, arms: Sequence[str]) -> str:
    """Return the commands that make a table or figure with a real model, with memory and time."""
    policies = [arm for arm in arms if arm != BASE]
    keep = " run.checkpoint_every=18 run.keep_every=18" if name == "figure4" else ""
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
    if name in AUDITS:
        lines += [f"bas-opd audit runs/{each} --only {AUDITS[name]}" for each in policies]
    elif name not in COSTS:
        lines += [
            f"bas-opd eval runs/{policy} --bench {','.join(SEVEN)} --data SNAPSHOTS --judge URL "
            "--judge-model NAME"
            for policy in policies
        ]
    runs = " ".join(f"--run runs/{policy}" for policy in policies)
    lines.append(f"bas-opd reproduce {name} --out figures {runs}")
    return "\n".join(lines)


def overrides_of(policy: str) -> list[str]:
    """Return the command-line overrides that turn the paper's main run into that of a preset."""
    plain, wanted = _settings(None), _settings(policy)
    return [f"{key}={_written(wanted[key])}" for key in wanted if wanted[key] != plain[key]]


def _settings(policy: str | None) -> dict[str, object]:
    """The settings of a policy on top of those of the paper's main run."""
    main = preset("qwen3.5-4b")
    config = load_config(preset(policy) if policy else main, ["data.path=DATA"], over=main)
    return {k: v for k, v in flat(dump(config)).items() if k != "run.output"}


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
