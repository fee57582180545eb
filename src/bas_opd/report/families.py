"""Which runs are the same experiment with other seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bas_opd.config.identity import FREE, flat
from bas_opd.config.loading import dump
from bas_opd.config.schema import Config
from bas_opd.report.run import Run

SEEDS = ("run.seed", "select.seed")
PLACES = ("model.path", "data.path", "run.output")
"""Where things lie; what they are, their fingerprints say."""


def family_of(run: Run) -> tuple[tuple[str, str], ...]:
    """Return what runs have in common that differ in seeds and places alone."""
    facts = {
        **_settings(run),
        "data": run.started.data.fingerprint,
        "base": run.started.base,
        "steps": len(run.steps),
    }
    return tuple(sorted((name, str(value)) for name, value in facts.items()))


def seeds_of(run: Run) -> tuple[int, int]:
    """Return the seeds of training and of selection."""
    return run.config.run.seed, run.config.select.seed


def family_names(runs: Sequence[Run]) -> dict[tuple[tuple[str, str], ...], str]:
    """Name each family by its policy, and by its own settings where others share that policy."""
    families = {family_of(run): run for run in runs}
    names: dict[tuple[tuple[str, str], ...], str] = {}
    for family, run in families.items():
        others = [_settings(each) for each in families.values() if each.policy == run.policy]
        own = _own_settings(_settings(run), others)
        names[family] = ", ".join((run.policy, *own))
    if len(set(names.values())) < len(names):
        return {family: f"{names[family]} ({run.name})" for family, run in families.items()}
    return names


def _own_settings(mine: dict[str, Any], others: Sequence[dict[str, Any]]) -> list[str]:
    """Return the settings that are not the default's, and not those of every other."""
    plain = flat(dump(Config.model_validate({"model": {"path": "x"}, "data": {"path": "x"}})))
    return [
        f"{key}={str(value).lower() if isinstance(value, bool) else value}"
        for key, value in mine.items()
        if value != plain[key] and any(each[key] != value for each in others)
    ]


def _settings(run: Run) -> dict[str, Any]:
    left_out = {*SEEDS, *PLACES, *FREE}
    return {key: value for key, value in flat(dump(run.config)).items() if key not in left_out}
