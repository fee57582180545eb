"""Check whether this machine can train, and say how to fix what prevents it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bas_opd.errors import BasOpdError

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from bas_opd.config.schema import Config

Level = Literal["ok", "warning", "problem"]
EXTRAS = {
    "peft": "adapters (lora.rank)",
    "pyarrow": "parquet files",
    "datasets": "datasets by their hub id",
    "svglib": "the figures of reproduce",
    "tensorboard": "train --track tensorboard",
    "trackio": "train --track trackio",
    "wandb": "train --track wandb",
}
"""Optional packages and what each is for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check, and how to fix it if there is a problem."""

    what: str
    level: Level
    text: str
    mend: str = ""


def _finding(what: str, text: str, mend: str = "", *, level: Level = "problem") -> Finding:
    return Finding(what=what, level=level, text=text, mend=mend)


def _ok(what: str, text: str) -> Finding:
    return _finding(what, text, level="ok")


def examine(config: Config | None = None) -> list[Finding]:
    """Check the machine and, with a configuration, the files it names."""
    findings = [_python(), *_packages(config), _gpu(config), *_runs_folder(config)]
    if config is not None:
        findings += [_model(config), _data(config)]
    return findings


def _python() -> Finding:
    version = platform.python_version()
    is_old = sys.version_info < (3, 11)
    return (
        _finding("Python", version, "Install Python 3.11 or newer.")
        if is_old
        else _ok("Python", version)
    )


def _packages(config: Config | None) -> Iterator[Finding]:
    try:
        from packaging.requirements import Requirement

        lines = importlib.metadata.requires("bas-opd") or []
    except (ImportError, importlib.metadata.PackageNotFoundError):
        yield _finding(
            "bas-opd",
            "not installed as a package, so its requirements are unknown",
            "Run `make setup`, or `pip install -e .` in the source folder.",
        )
        return
    for requirement in map(Requirement, lines):
        extra = _extra_of(requirement)
        is_needed = extra is None or (
            requirement.name == "peft" and config is not None and config.lora.rank > 0
        )
        yield _package(requirement, extra, is_needed=is_needed)


def _extra_of(requirement: Requirement) -> str | None:
    """Return the extra that installs a package, or None if it is always installed."""
    extras = importlib.metadata.metadata("bas-opd").get_all("Provides-Extra") or []
    marker = requirement.marker
    if marker is None:
        return None
    return next((extra for extra in extras if marker.evaluate({"extra": extra})), None)


def _package(requirement: Requirement, extra: str | None, *, is_needed: bool) -> Finding:
    name, allowed = requirement.name, str(requirement.specifier)
    source = f"'bas-opd[{extra}]'" if extra else f"'{name}{allowed}'"
    try:
        version = importlib.metadata.version(name)
        if requirement.specifier.contains(version, prereleases=True):
            return _ok(name, version)
        text = f"{version}, but {allowed} is supported"
    except importlib.metadata.PackageNotFoundError:
        text = "not installed" + ("" if extra is None else f", needed for {EXTRAS[name]}")
    level = "problem" if is_needed else "warning"
    return _finding(name, text, f"Run `pip install {source}`.", level=level)


def _gpu(config: Config | None) -> Finding:
    wanted = "auto" if config is None else config.model.device
    try:
        import torch
    except (ImportError, OSError) as error:
        mend = "Reinstall torch in a build for this machine."
        return _finding("GPU", f"torch cannot be loaded: {error}", mend)
    if wanted == "cpu":
        return _ok("GPU", "not used (model.device is cpu)")
    if not torch.cuda.is_available():
        return _finding(
            "GPU",
            f"torch {torch.__version__} sees none; a CPU can train only small models",
            "Install a CUDA build of torch and a matching driver, or use a GPU machine.",
            level="warning" if wanted == "auto" else "problem",
        )
    about = torch.cuda.get_device_properties(0 if wanted == "auto" else torch.device(wanted))
    has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    text = f"{about.name}, {about.total_memory / 1e9:.0f} GB"
    if has_bf16 or (config is not None and config.model.precision == "float32"):
        return _ok("GPU", f"{text}, bfloat16 {'yes' if has_bf16 else 'no'}")
    mend = "Set model.precision=float32, or use an Ampere GPU or newer."
    return _finding("GPU", f"{text}, no bfloat16", mend, level="warning")


def _runs_folder(config: Config | None) -> Iterator[Finding]:
    folder = Path((config and config.run.output) or "runs")
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    mend = "Choose another folder with run.output=DIRECTORY, or change its permissions."
    try:
        # os.access does not notice a read-only or full disk.
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        yield _finding("runs folder", f"{folder} cannot be written: {error.strerror}", mend)
        return
    yield _ok("runs folder", f"{folder} can be written")
    free = shutil.disk_usage(place).free
    need = None if config is None else _disk_needed(config)
    text = f"{free / 1e9:.1f} GB free" + ("" if need is None else f", {need / 1e9:.1f} GB needed")
    if need is None or free >= need:
        yield _ok("disk", text)
    else:
        yield _finding("disk", text, "Free some space, or set run.keep_checkpoints=1.")


def _disk_needed(config: Config) -> int | None:
    """Return the most disk space the run will take, if model and data can be measured."""
    from bas_opd.commands.plan import disk, measure
    from bas_opd.data.records import PreparedSet
    from bas_opd.run.loop import planned_steps

    try:
        steps = planned_steps(config, PreparedSet.load(Path(config.data.path)))
        return disk(config, measure(config), steps).most
    except BasOpdError:
        return None  # The cause has its own finding.


def _model(config: Config) -> Finding:
    from bas_opd.model.base import model_folder
    from bas_opd.model.processing import Processor

    path = config.model.path
    try:
        Processor.load(path)
    except BasOpdError as error:
        return _finding("model", str(error))
    folder = Path(model_folder(path))
    if folder.is_dir():
        weights = sorted(folder.glob("*.safetensors"))
        unreadable = [file for file in weights if not os.access(file, os.R_OK)]
        if not weights or unreadable:
            what = f"{unreadable[0]} cannot be read" if unreadable else "no *.safetensors"
            mend = "Download the checkpoint again, or set model.path to another one."
            return _finding("model", f"{path}: {what}", mend)
    return _ok("model", path)


def _data(config: Config) -> Finding:
    from bas_opd.data.records import PreparedSet

    try:
        data = PreparedSet.load(Path(config.data.path))
    except BasOpdError as error:
        return _finding("data", str(error))
    crops = sum(example.has_crop for example in data.examples)
    text = f"{config.data.path}: {len(data):,} examples, {crops:,} with a crop"
    if crops:
        return _ok("data", text)
    return _finding("data", text, "Prepare the data with crop boxes or crop images.")
