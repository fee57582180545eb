"""The settings of the presets, in the layout of the paper's Tables 5 and 6."""

from __future__ import annotations

from collections.abc import Sequence

from bas_opd.config import load_config, preset
from bas_opd.config.loading import dump, flat
from bas_opd.config.schema import SelectConfig
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


def overrides_of(policy: str, base: str = "qwen3.5-4b") -> list[str]:
    """Return the command-line overrides that turn the paper's main run into that of a preset."""
    plain, wanted = _settings(None, base), _settings(policy, base)
    return [f"{key}={_written(wanted[key])}" for key in wanted if wanted[key] != plain[key]]


def _settings(policy: str | None, base: str = "qwen3.5-4b") -> dict[str, object]:
    """The settings of a policy on top of those of the paper's main run."""
    config = (
        load_config(preset(base), ["data.path=DATA"])
        if policy is None
        else load_config(preset(policy), ["data.path=DATA"], over=preset(base))
    )
    return {k: v for k, v in flat(dump(config)).items() if k != "run.output"}


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
