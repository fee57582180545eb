"""Training sets by name: `data.path=finesearch` is drawn when a run needs it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from bas_opd.config.schema import Config
from bas_opd.data.finesearch import make_finesearch
from bas_opd.data.records import PreparedSet
from bas_opd.errors import DataError
from bas_opd.model.base import LEARNT_KINDS
from bas_opd.model.folder import local_folder
from bas_opd.run.forecast import check_run, undrawn_set
from bas_opd.run.progress import Progress

KINDS = {
    "finesearch": tuple(kind for kind in LEARNT_KINDS if kind != "existence"),
    "finesearch2": LEARNT_KINDS,
}
"""In the first version only the answer "yes" to `existence` has a crop: "no" would be unlearnt."""
MOST = 3120
"""The pairs of the paper's epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSet:
    """A set that `bas-opd train` draws."""

    name: str
    folder: Path
    n: int

    @property
    def is_drawn(self) -> bool:
        return self.folder.exists()

    def load(self) -> PreparedSet:
        """Return the set; before it is drawn, its examples have no pictures."""
        if not self.is_drawn:
            return undrawn_set(self.folder, self.n)
        try:
            return PreparedSet.load(self.folder)
        except DataError as error:
            raise DataError(
                f"The set that was drawn for data.path={self.name} is damaged. Remove "
                f"{self.folder}, and it is drawn again. {error}"
            ) from error


def named_set(config: Config) -> NamedSet | None:
    """Return the set that the settings name; None if they give a folder."""
    name = config.data.path
    if name not in KINDS or Path(name).exists():
        return None
    n = min(MOST, config.rollout.prompts_per_step * (config.run.steps or MOST))
    return NamedSet(name=name, folder=Path("data") / f"{name}-{n}", n=n)


def load_data(config: Config) -> PreparedSet:
    """Return the data of a run: a folder, or a set by its name, drawn or not."""
    named = named_set(config)
    return PreparedSet.load(Path(config.data.path)) if named is None else named.load()


def with_named_set(config: Config, progress: Progress) -> Config:
    """Return the settings with the folder of a named set, which is drawn unless it is there."""
    named = named_set(config)
    if named is None:
        return config
    data = named.load()
    if not named.is_drawn:
        # Drawing may take minutes: first what would be refused after it.
        check_run(config, data)
        local_folder(config.model.path, has_tensors=False)
        progress.message(f"Drawing {named.n:,} pictures of {named.name}, to {named.folder}.")
        make_finesearch(
            named.folder,
            split="train",
            size="small",
            n=named.n,
            kinds=KINDS[named.name],
            version=named.name,
            workers=os.cpu_count() or 1,
        )
    place = config.data.model_copy(update={"path": str(named.folder)})
    return config.model_copy(update={"data": place})
