"""Training sets by name: `data.path=finesearch` is drawn when a run needs it."""

from __future__ import annotations

import os
from pathlib import Path

from bas_opd.config.schema import Config
from bas_opd.data.finesearch import make_finesearch
from bas_opd.errors import DataError
from bas_opd.model.base import LEARNT_KINDS
from bas_opd.run.progress import Progress

KINDS = {
    "finesearch": tuple(kind for kind in LEARNT_KINDS if kind != "existence"),
    "finesearch2": LEARNT_KINDS,
}
"""In the first version only the answer "yes" to `existence` has a crop: "no" would be unlearnt."""
MOST = 3120
"""The pairs of the paper's epoch."""


def with_named_set(config: Config, progress: Progress | None = None) -> Config:
    """Return the settings with the folder of a named set, which is drawn unless it is there.

    Without `progress` nothing is drawn, and a set that is not there is an error.
    """
    name = config.data.path
    if name not in KINDS or Path(name).exists():
        return config
    n = min(MOST, config.rollout.prompts_per_step * (config.run.steps or MOST))
    folder = Path("data") / f"{name}-{n}"
    if not folder.exists():
        if progress is None:
            raise DataError(
                f"The set {name} has not been drawn yet: `bas-opd train` draws it, to {folder}. "
                f"Draw it first with `bas-opd data make finesearch {folder} --split train --n {n} "
                f"--version {1 + list(KINDS).index(name)} --kinds {','.join(KINDS[name])}`, and "
                f"give data.path={folder}."
            )
        progress.message(f"Drawing {n:,} pictures of {name}, to {folder}.")
        make_finesearch(
            folder,
            split="train",
            size="small",
            n=n,
            kinds=KINDS[name],
            version=name,
            workers=os.cpu_count() or 1,
        )
    return config.model_copy(update={"data": config.data.model_copy(update={"path": str(folder)})})
