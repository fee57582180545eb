"""The memory that a run takes on the device and on the host, computed before it starts."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from bas_opd.compute.memory import free_host_memory
from bas_opd.config.schema import Config
from bas_opd.errors import OutOfMemory
from bas_opd.learn.eight_bit import PIECE, UNPACKED
from bas_opd.model.loading import LoraSettings
from bas_opd.model.size import ModelSize, model_size

FP32 = 4
SWITCHES = ("model.gradient_checkpointing", "optim.offload")
"""Settings that save memory and change no result."""
OTHER_TEACHER = "choose a smaller teacher.path or a teacher.server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory(ModelSize):
    """Bytes that one process holds on the device throughout, and what a checkpoint holds of them.

    Activations, caches and logits come on top; they depend on the batch sizes.
    """

    gradients: int
    adamw: int
    teacher: int
    host_copy: int
    """Bytes of a checkpoint."""
    is_offloaded: bool
    """Whether AdamW and teacher are in host memory."""
    is_packed: bool = False
    """Whether AdamW's moments are kept in 8 bits; these stay on the device."""
    unpacked: int = 0
    """Bytes that a step with such moments takes for those that it unpacks at a time."""
    own_teacher: int = 0
    """Bytes of a teacher that is another model, and is in no checkpoint, where it is on the device.
    """
    gathered_teacher: int = 0
    """Of several processes: its whole network, while it scores."""
    host_teacher: int = 0
    """Bytes of such a teacher where it is in host memory."""
    loading_teacher: int = 0
    """Bytes of host memory while it is loaded, at most."""
    streamed_teacher: int = 0
    """What of it is on the device then, at most, while it scores: a layer and the next."""
    teacher_head: int = 0
    """Its head, which is on the device then from its scoring to the student's update."""
    sampler: int = 0
    """Bytes of a second network that samples while the student is trained."""

    @property
    def device(self) -> int:
        return self.on_device(offload=self.is_offloaded)

    @property
    def locked(self) -> int:
        """Bytes of page-locked host memory."""
        return self.on_host(offload=self.is_offloaded)

    @property
    def host(self) -> int:
        """Bytes of host memory at most: while a model is loaded, or a checkpoint is written."""
        return self.host_of(1)

    @property
    def read(self) -> int:
        """Bytes of host memory while the models are loaded, one after the other."""
        return self.read_by(1)

    def host_of(self, processes: int) -> int:
        """Return the least that a machine needs for so many processes."""
        return max(self.read_by(processes), processes * (self.locked + self.copied))

    def read_by(self, processes: int) -> int:
        """Return the least that so many processes need to load their models: they take turns."""
        loaded = (processes - 1) * self.host_teacher if self.is_offloaded else 0
        return max(self.loading, self.loading_teacher + loaded)

    @property
    def copied(self) -> int:
        """Bytes that are copied to host memory for a checkpoint: what is not there already."""
        return self.host_copy - self._state_on_host(offload=self.is_offloaded)

    def on_device(self, *, offload: bool, micro_batch: int = 0) -> int:
        """Return the bytes on the device in either form, with those of a micro-batch.

        The teacher's weights come to the device before there are gradients, and moments after what
        a pass needs has gone.
        """
        weights = self.weights + self.sampler + (0 if offload else self.own_teacher)
        head, another = 0, self.gathered_teacher
        if offload:
            head, another = self.teacher_head, self.streamed_teacher
        learning = self.pass_weights + self.pass_gradients + self.exchanged + micro_batch + head
        scoring = self.gathered + (self.teacher if offload else 0)
        passes = self.casts + max(self.gradients + learning, scoring, another)
        if self.is_packed:
            kept = self.adamw + (0 if offload else self.teacher)
            return weights + kept + max(passes, self.gradients + head + self.unpacked)
        if offload:
            return weights + max(passes, self.gradients + head + 2 * FP32 * self.in_flight)
        return weights + self.adamw + self.teacher + passes

    def while_sampling(self, *, offload: bool) -> int:
        """Return the bytes on the device while the student samples, without its caches."""
        state = self.weights + self.sampler + self.gathered + self.casts
        state += 0 if offload else self.own_teacher
        if self.is_packed:
            return state + self.adamw + (0 if offload else self.teacher)
        return state + (0 if offload else self.adamw + self.teacher)

    def on_host(self, *, offload: bool) -> int:
        """Return the bytes of page-locked host memory in either form."""
        return self._state_on_host(offload=offload) + (self.host_teacher if offload else 0)

    def _state_on_host(self, *, offload: bool) -> int:
        """Return those of them that a checkpoint holds too."""
        if not offload:
            return 0
        return self.teacher if self.is_packed else self.adamw + self.teacher


def measure(config: Config, *, ranks: int | None = None, is_gpu: bool | None = None) -> Memory:
    """Return what training keeps in memory: theta in fp32, its gradient, two moments, theta-bar.

    With `ranks`, what the first of so many processes keeps. Without `is_gpu` the device is the one
    that the run would use here.
    """
    precision = precision_of(config, is_gpu=wants_gpu(config) if is_gpu is None else is_gpu)
    size = model_size(
        config.model.path,
        lora=adapters(config),
        precision=precision,
        ranks=ranks,
        by_layer=config.shard.reshard,
    )
    another: dict[str, Any] = {}
    if config.teacher.path is not None:
        resident, streamed = (
            model_size(
                config.teacher.path, precision=precision, frozen=True, ranks=ranks, on_host=on_host
            )
            for on_host in (False, True)
        )
        another = {
            "own_teacher": resident.weights + resident.casts,
            "gathered_teacher": resident.gathered,
            "host_teacher": streamed.weights,
            "loading_teacher": streamed.loading,
            "streamed_teacher": streamed.pass_weights + streamed.exchanged,
            "teacher_head": streamed.casts,
        }
    sampler = 0
    if config.rollout.overlap:
        copy = model_size(
            config.model.path, lora=adapters(config), precision=precision, frozen=True
        )
        sampler = copy.weights + copy.casts
    trained = FP32 * size.own_trained
    teacher = trained if config.keeps_second_weights else 0
    is_packed = config.optim.moments == "8bit"
    adamw = 2 * (size.packed_moment if is_packed else trained)
    return Memory(
        **asdict(size),
        gradients=trained,
        adamw=adamw,
        teacher=teacher,
        host_copy=trained + adamw + teacher,
        is_offloaded=config.optim.offload,
        is_packed=is_packed,
        unpacked=UNPACKED * min(PIECE, size.own_trained) if is_packed else 0,
        sampler=sampler,
        **another,
    )


def precision_of(config: Config, *, is_gpu: bool) -> torch.dtype:
    """Return the precision of a run's passes."""
    name = config.model.precision
    return torch.bfloat16 if name == "bfloat16" or (name == "auto" and is_gpu) else torch.float32


def adapters(config: Config) -> LoraSettings | None:
    """Return the adapters of a run, if it trains any."""
    return LoraSettings(**config.lora.model_dump()) if config.lora.rank else None


def wants_gpu(config: Config) -> bool:
    """Return whether a run would compute on a GPU."""
    name = config.model.device
    return torch.cuda.is_available() if name == "auto" else name.startswith("cuda")


def more_room(config: Config, switches: Sequence[str] = SWITCHES) -> str:
    """Say what would make room on the device: of these switches, those that are not on yet."""
    is_on = (config.model.gradient_checkpointing, config.optim.offload)
    off = [name for name, on in zip(SWITCHES, is_on, strict=True) if not on]
    ways = [f"set {name}=true" for name in off if name in switches]
    if not config.lora.rank:
        ways.append("train adapters with lora.rank")
    if config.teacher.path is not None:
        ways.append(OTHER_TEACHER)
    return ", or ".join([*ways, "use a device with more memory"])


def check_host(memory: Memory, processes: int = 1) -> None:
    """Refuse a host that is too small for so many processes of a run whose state it keeps."""
    free = free_host_memory()
    if not memory.is_offloaded or free is None or free >= memory.host_of(processes):
        return
    locked, copied, read = (
        f"{size / 1e9:,.1f} GB"
        for size in (
            processes * memory.locked,
            processes * memory.copied,
            memory.read_by(processes),
        )
    )
    of = f" for {processes} processes" if processes > 1 else ""
    raise OutOfMemory(
        f"optim.offload is true, which takes {locked} of host memory{of}, and {copied} more while "
        f"a checkpoint is written; to load the weights takes {read}, but only {free / 1e9:,.1f} GB "
        f"are free on {socket.gethostname()}. Use a machine with more memory"
        f"{_more_host(memory, has_room=memory.read_by(processes) <= free)}."
    )


def _more_host(memory: Memory, *, has_room: bool) -> str:
    """Say what else would help on a host that is too small, which may have room to load."""
    ways = []
    if has_room:
        ways.append("set optim.offload=false")
        if memory.trained == memory.parameters:
            ways.append("train adapters with lora.rank")
    if memory.host_teacher:
        ways.append(OTHER_TEACHER)
    return "".join(f", or {way}" for way in ways)
