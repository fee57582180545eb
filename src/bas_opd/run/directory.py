"""The run directory: whose it is, which run it holds, and where its parts lie."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from bas_opd.config.identity import differences
from bas_opd.config.loading import config_hash, dump
from bas_opd.config.schema import Config
from bas_opd.data.records import PreparedSet
from bas_opd.errors import ConfigError, DataError, RunDirectoryError
from bas_opd.run.checkpoint import sync
from bas_opd.run.lock import NAME as OWNER
from bas_opd.run.lock import locked

SCHEMA_VERSION = 1
IDENTITY = "run.json"
UNFINISHED = f".{IDENTITY}.partial"
"""What a run leaves that is killed while it is first written down."""
ABOUT_IT = ("audit", "eval", "tensorboard", "report.html", "card.md")
"""What other commands leave in the directory of a run; it goes when the run goes."""
MODEL_KEYS = ("device", "precision", "base")
"""What is known of a run once its model is loaded, and must stay."""
PACKAGES = ("bas-opd", "torch", "transformers", "safetensors", "pillow", "numpy", "peft")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDirectory:
    """A directory that this process holds."""

    path: Path

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
        return self.path / IDENTITY

    @classmethod
    @contextmanager
    def held(cls, path: Path) -> Iterator[RunDirectory]:
        """Hold a directory for a run: a new one, or one that a run of ours was in before."""
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise RunDirectoryError(
                f"{path} is not a directory of its own. Choose another with run.output=DIRECTORY."
            )
        path.mkdir(parents=True, exist_ok=True)
        if link := next((p for p in path.rglob("*") if p.is_symlink()), None):
            raise RunDirectoryError(
                f"{link} is a link, and a run writes to no place outside its directory. Remove the "
                "link, or choose another directory with run.output=DIRECTORY."
            )
        with locked(path):
            run = cls(path=path)
            if not run.identity.exists() and not _names(path) <= {OWNER, UNFINISHED}:
                raise RunDirectoryError(
                    f"{path} holds something that is not a run, and nothing in it will be "
                    "overwritten. Choose another directory with run.output=DIRECTORY, or remove "
                    "this one yourself."
                )
            yield run

    def identify(self, config: Config, data: PreparedSet, steps: int) -> dict[str, Any]:
        """Return which run this is, as far as it is known before its model is loaded."""
        return {
            "schema_version": SCHEMA_VERSION,
            "config": dump(config),
            "config_hash": config_hash(config),
            "dataset": {"fingerprint": data.fingerprint, "examples": len(data.examples)},
            "environment": environment(),
            "steps": steps,
        }

    def compare(self, mine: Mapping[str, Any]) -> None:
        """Refuse to go on with a run that was begun here as another one."""
        if not self.identity.exists():
            return
        try:
            self._compare(self._read_identity(), mine)
        except (KeyError, TypeError, ValidationError) as error:
            raise RunDirectoryError(
                f"{self.identity} does not describe a run that this version can go on with "
                f"({error}). Use the version that began it, or start anew with --overwrite."
            ) from error

    def claim(self, identity: Mapping[str, Any]) -> None:
        """Write down which run this is, once all that it needs has been found."""
        write_json(self.identity, identity)

    def _read_identity(self) -> dict[str, Any]:
        try:
            identity = json.loads(self.identity.read_text(encoding="utf-8"))
            version = identity["schema_version"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunDirectoryError(
                f"{self.identity} cannot be read ({error}), so it is not certain which run this "
                "is. Restore the file, or start anew with --overwrite."
            ) from error
        if version > SCHEMA_VERSION:
            raise RunDirectoryError(
                f"{self.identity} was written by a newer bas-opd (schema {version}, known here: "
                f"{SCHEMA_VERSION}). Install that version to go on."
            )
        return identity

    def _compare(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        # Read through the schema, so that a setting it did not have yet stands at its default.
        old = dump(Config.model_validate(before["config"]))
        if changes := differences(old, now["config"]):
            listed = "\n  ".join(changes)
            raise ConfigError(
                f"The run in {self.path} was begun with other settings:\n  {listed}\nGo on with "
                "the old ones, choose another run.output, or start anew with --overwrite."
            )
        if before["dataset"] != now["dataset"]:
            raise DataError(
                f"The run in {self.path} was begun on other data: {before['dataset']['examples']} "
                f"examples with fingerprint {before['dataset']['fingerprint'][:12]}, where there "
                f"are now {now['dataset']['examples']} with {now['dataset']['fingerprint'][:12]}. "
                "Restore the data, choose another run.output, or start anew with --overwrite."
            )
        for key in MODEL_KEYS:
            if key in now and now[key] != before.get(key, now[key]):
                raise ConfigError(
                    f"The run in {self.path} was begun with another {key}: {before[key]}, where "
                    f"there is now {now[key]}. Go on where that is the same, choose another "
                    "run.output, or start anew with --overwrite."
                )

    def clear(self, *, inputs: Sequence[Path]) -> None:
        """Delete the run that is here, once a new one is sure to start; its inputs are not."""
        for path in inputs:
            if path.resolve().is_relative_to(self.path.resolve()):
                raise RunDirectoryError(
                    f"{path} lies in {self.path}, which would be deleted. Choose another directory "
                    "with run.output=DIRECTORY."
                )
        for name in ("checkpoints", "model", "model.partial", *ABOUT_IT):
            path = self.path / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for path in (self.records, self.identity):
            path.unlink(missing_ok=True)


def environment() -> dict[str, Any]:
    """Return what the numbers of a run may depend on besides its settings."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": versions,
        "gpu": gpu,
        "threads": torch.get_num_threads(),
    }


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a small file, whole or not at all."""
    staging = path.with_name(f".{path.name}.partial")
    staging.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    sync(staging)
    os.replace(staging, path)
    sync(path.parent)
