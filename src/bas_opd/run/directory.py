"""The run directory: where its parts are, who holds it, and which run it is. Needs no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bas_opd import disk
from bas_opd.config.loading import differences, dump, recorded_config
from bas_opd.data.records import MANIFEST, PreparedSet
from bas_opd.errors import (
    BasOpdError,
    ConfigError,
    DataError,
    ModelError,
    RunDirectoryError,
    explain_failure,
)
from bas_opd.files import hash_of, staging_path, write_json
from bas_opd.run.lock import NAME as OWNER
from bas_opd.run.lock import Hold, locked, owner_of
from bas_opd.run.record import DataSource
from bas_opd.text import counted
from bas_opd.validation import first_problem

SCHEMA_VERSION = 1
VERDICTS = "verdicts.jsonl"
"""Replies of a judge to what no rule could read; a resumed run asks for none of them again."""
FROM_OTHER_COMMANDS = (
    *("audit", "eval", "eval-base", "tensorboard", "report.html", "card.md"),
    VERDICTS,
)
"""What others leave in a run directory; it is deleted with the run."""
MODEL_KEYS = ("device", "precision", "base")
"""What is known of a run once its model is loaded, and must not change."""


class Identity(BaseModel):
    """Which run a directory holds, as `run.json` says."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    schema_version: int
    config: dict[str, Any]
    config_hash: str
    dataset: DataSource
    steps: int
    device: str = ""
    precision: str = ""
    base: str = ""
    """Fingerprint of the weights that the run started from."""
    environment: dict[str, Any] = Field(default_factory=dict)
    run_id: str = ""
    """Drawn when the run was started; its checkpoints have it too. Runs of version 0.1 lack it."""
    base_files: dict[str, str] = Field(default_factory=dict)
    """File -> SHA-256 of the model that the run started from; runs of version 0.1 lack it."""
    teacher_files: dict[str, str] = Field(default_factory=dict)
    """File -> SHA-256 of the teacher, where it is another model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDirectory:
    """The directory of a run and the places of its parts."""

    path: Path
    hold: Hold | None = None
    """The lock on it, while it is held."""

    def check_held(self) -> None:
        """Raise if another directory has taken the place of the one that was locked."""
        if self.hold is not None:
            self.hold.check()

    @property
    def records(self) -> Path:
        return self.path / "records.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def identity(self) -> Path:
        return self.path / "run.json"

    @property
    def hashes(self) -> Path:
        """Where hashes of the files that the run depends on are kept, see `file_hashes`."""
        return self.path / "hashes.json"

    def hashes_on(self, machine: str) -> Path:
        """Return where another machine than the leader's keeps those of its own files."""
        name = re.sub(r"[^\w.-]", "_", machine)
        return self.path / f"hashes-{name}.json"

    @property
    def _all_hashes(self) -> tuple[Path, ...]:
        return (self.hashes, *self.path.glob("hashes-*.json"))

    @property
    def calls(self) -> Path:
        """The journal of teacher calls, see `run/journal.py`."""
        return self.path / "calls.jsonl"

    @property
    def teacher(self) -> Path:
        """Requests to a served teacher, and its answers, see `teacher/server_teacher.py`."""
        return self.path / "teacher"

    @property
    def requests(self) -> Path:
        """The journal of requests to a served teacher, see `serving/request_journal.py`."""
        return self.teacher / "requests.jsonl"

    @property
    def evaluation(self) -> Path:
        return self.path / "eval"

    @property
    def base_evaluation(self) -> Path:
        """Where the evaluation of the model that the run started from is."""
        return self.path / "eval-base"

    def existing_records(self) -> Path:
        """Return the records; raise if there is no run here."""
        self.refuse_other()
        if not self.records.is_file():
            why = "it is a file" if self.path.exists() else "it does not exist"
            if self.path.is_dir():
                why = f"it has no {self.records.name}"
            raise DataError(
                f"There is no run in {self.path}: {why}. Give a run directory, as `bas-opd train` "
                "writes it."
            )
        return self.records

    def refuse_other(self) -> None:
        """Raise if this is a folder of runs, or a prepared set: its records have the same name."""
        if not self.records.exists() and (inside := sorted(self.path.glob("*/run.json"))):
            raise DataError(
                f"{self.path} is not a run, but holds {counted(len(inside), 'run')}. Name one, "
                f"such as {inside[0].parent}."
            )
        if (self.path / MANIFEST).is_file() and not self.identity.exists():
            raise DataError(
                f"{self.path} is a prepared set, not a run. Give a run directory, as `bas-opd "
                "train` writes it; `bas-opd data check` checks a set."
            )

    @classmethod
    @contextmanager
    def held(cls, path: Path) -> Iterator[RunDirectory]:
        """Lock a directory for a run: a new one, or one that holds a run already.

        A run that fails before it has begun leaves nothing behind.
        """
        cls(path=path).check_place()
        new = [each for each in (path, *path.parents) if not each.exists()]
        disk.make_folder(path, parents=True, exist_ok=True)
        with locked(path) as hold:
            run = cls(path=path, hold=hold)
            try:
                run.check_place()  # once more: nobody else can start a run here now
                yield run
            finally:
                if not run.identity.exists():
                    run._remove_traces(new)

    def check_place(self) -> None:
        """Raise unless a run can be here: nothing else may be in its directory."""
        path = self.path
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise RunDirectoryError(
                f"{path} is not a directory of its own. Choose another with run.output=DIRECTORY."
            )
        if self.identity.exists() or not path.exists():
            return
        if not {each.name for each in path.iterdir()} <= {each.name for each in self._traces}:
            raise RunDirectoryError(
                f"{path} holds something that is not a run, and nothing in it will be overwritten. "
                "Choose another directory with run.output=DIRECTORY, or remove this one yourself."
            )

    @property
    def _traces(self) -> tuple[Path, ...]:
        """What there is of a run that has not written its identity."""
        staged = map(staging_path, (self.identity, self.hashes))
        others = self.path.glob(".hashes-*.json.partial")
        return (self.path / OWNER, *self._all_hashes, *staged, *others)

    def _remove_traces(self, new: Sequence[Path]) -> None:
        """Remove what a run leaves that has not begun, and the directories made for it."""
        with suppress(RunDirectoryError, OSError):
            self.check_held()
            for path in self._traces:
                disk.unlink(path)
            for path in new:
                disk.remove_folder(path)

    def read_identity(self) -> Identity:
        """Return which run is here."""
        try:
            content = json.loads(disk.read_file(self.identity).decode())
            version = int(content["schema_version"])
        except FileNotFoundError:
            raise DataError(
                f"There is no run in {self.path}: it has no {self.identity.name}. Give a run "
                "directory, as `bas-opd train` writes it."
            ) from None
        except OSError as error:
            raise RunDirectoryError(explain_failure(error)) from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise RunDirectoryError(
                f"{self.identity} cannot be read ({error}), so it is not certain which run this "
                "is. Restore the file."
            ) from error
        if version > SCHEMA_VERSION:
            raise RunDirectoryError(
                f"{self.identity} was written by a newer bas-opd (schema {version}, known here: "
                f"{SCHEMA_VERSION}). Install that version to resume."
            )
        try:
            return Identity.model_validate(content)
        except ValidationError as error:
            raise self._not_understood(error) from error

    def is_another(self, mine: Mapping[str, Any]) -> bool:
        """Return whether the run here has other settings or data; only such a one is replaced."""
        try:
            self.compare(mine)
        except (ConfigError, DataError):
            return True
        return False

    def compare(self, mine: Mapping[str, Any]) -> None:
        """Refuse to resume a run that was started here as another one."""
        if not self.identity.exists():
            return
        before = self.read_identity()
        try:
            # Read through the schema, so that a setting it did not have yet has its default.
            old = dump(recorded_config(before.config))
        except ValidationError as error:
            raise self._not_understood(error) from error
        if changes := differences(old, mine["config"]):
            listed = "\n  ".join(changes)
            raise ConfigError(
                f"The run in {self.path} was started with other settings:\n  {listed}\nResume with "
                "the old ones, choose another run.output, or start over with --overwrite."
            )
        was, now = before.dataset, mine["dataset"]
        if (was.fingerprint, was.examples) != (now["fingerprint"], now["examples"]):
            raise DataError(
                f"The run in {self.path} was started on other data: {was.examples} examples with "
                f"fingerprint {was.fingerprint[:12]}, where there are now {now['examples']} with "
                f"{now['fingerprint'][:12]}. Restore the data, choose another run.output, or start "
                "over with --overwrite."
            )
        for key in MODEL_KEYS:
            # Where the model's files are known, they were compared.
            known = "" if key == "base" and before.base_files else getattr(before, key)
            if known and mine.get(key, known) != known:
                raise ConfigError(
                    f"The run in {self.path} was started with another {key}: {known}, where there "
                    f"is now {mine[key]}. Resume where that is the same, or choose another "
                    "run.output."
                )

    def check_files(
        self,
        base: Mapping[str, str],
        data: PreparedSet,
        pictures: Mapping[str, str],
        *,
        accept: bool,
        is_new: bool,
        teacher: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return what the identity says of the files that a run depends on; refuse changed ones.

        Model and teacher must be as they were when the run was started. Pictures must be as they
        were prepared, or as they were when the run was started. `accept` puts changes on record. A
        new run replaces the one that is here.
        """
        before = None if is_new or not self.identity.exists() else self.read_identity()
        model = {} if before is None or not before.base_files else changes(before.base_files, base)
        if before is not None:
            other = changes(before.teacher_files, teacher or {})
            model |= {f"teacher/{name}": change for name, change in other.items()}
        fingerprint, images = hash_of(pictures), {}
        if before is None or before.dataset.pictures != fingerprint:
            images = changes(data.prepared_hashes, pictures)
            if before is not None and before.dataset.pictures and not images:
                images = {MANIFEST: "lists other pictures"}
        if (model or images) and not accept:
            raise self._changed(model, images, data.folder)
        identity: dict[str, Any] = {"base_files": dict(base), "pictures": fingerprint}
        if teacher:
            identity["teacher_files"] = dict(teacher)
        identity["run_id"] = uuid4().hex if before is None else before.run_id
        if model or images:
            identity["accepted_changes"] = model | images
        return identity

    def claim(self, identity: Mapping[str, Any]) -> None:
        """Write down which run this is, once everything that it needs has been found."""
        self.check_held()
        write_json(self.identity, identity)

    def clear(self, *, inputs: Sequence[Path]) -> None:
        """Delete the run that is here, once a new one is sure to start; its inputs are not."""
        for path in inputs:
            if path.resolve().is_relative_to(self.path.resolve()):
                raise RunDirectoryError(
                    f"{path} is inside {self.path}, which would be deleted. Choose another "
                    "directory with run.output=DIRECTORY."
                )
        for name in FROM_OTHER_COMMANDS:
            # What it writes next would be taken for that of the new run.
            if (self.path / name).is_dir() and (owner := owner_of(self.path / name)):
                raise RunDirectoryError(
                    f"{self.path / name} is in use by {owner}, which reads the run that would be "
                    "deleted. Wait for it to end, or stop it."
                )
        own = (self.checkpoints, self.model, self.teacher)
        others = ("model.partial", "model.old", *FROM_OTHER_COMMANDS)
        for path in (*own, *(self.path / name for name in others)):
            if path.is_dir():
                disk.remove_tree(path)
            else:
                disk.unlink(path)
        for path in (self.records, self.calls, *self._all_hashes, self.identity):
            disk.unlink(path)

    def _changed(
        self, model: Mapping[str, str], pictures: Mapping[str, str], data: Path
    ) -> BasOpdError:
        name, others = next(iter(model or pictures)), len(model) + len(pictures) - 1
        also = f", and {counted(others, 'other file')}" if others else ""
        what = f"the set in {data} was prepared" if not model else "it was started"
        return (ModelError if model else DataError)(
            f"The run in {self.path} cannot go on: {name} has changed since {what}{also}. Restore "
            "what has changed, choose another run.output, or go on with --accept-changes, which "
            "puts the change on record."
        )

    def _not_understood(self, error: ValidationError) -> RunDirectoryError:
        return RunDirectoryError(
            f"{self.identity} does not describe a run that this version can resume "
            f"({first_problem(error)}). Use the version that started it, or choose another "
            "run.output."
        )


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Return name -> what has changed, for files by their hashes."""
    return {
        name: f"was {before.get(name, 'absent')[:12]}, is now {now.get(name, 'absent')[:12]}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    }
