"""Everything that must survive a kill: built from a configuration, captured, restored."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bas_opd.algorithm import Stages
from bas_opd.compute.clock import Clock
from bas_opd.config.schema import Config
from bas_opd.distill.loss import DistillSettings
from bas_opd.errors import CheckpointError
from bas_opd.learn.learner import Learner, OptimiserSettings
from bas_opd.model.loading import LoraSettings, load_model, resolve_device
from bas_opd.model.processing import Processor
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.rollout import Sampler, SamplingSettings
from bas_opd.run.checkpoint import Snapshot
from bas_opd.run.ledger import Ledger
from bas_opd.select import build_selector
from bas_opd.teacher import CropTeacher
from bas_opd.types import Hooks


@dataclass(slots=True, kw_only=True)
class TrainState:
    """The stages of a step with all that they remember, the ledger, and the step to come."""

    model: VisionLanguageModel
    stages: Stages
    ledger: Ledger = field(default_factory=Ledger)
    step: int = 0
    bad_steps: int = 0
    """Steps in a row, up to now, that were not finite."""

    @classmethod
    def build(cls, config: Config, hooks: Hooks | None = None) -> TrainState:
        """Load the model and set every stage to its beginning (Alg. 1, line 1)."""
        model = load_policy(config)
        return cls(
            model=model,
            stages=Stages(
                policy=Sampler(
                    model,
                    SamplingSettings(
                        seed=config.run.seed,
                        max_prompt_tokens=config.data.max_prompt_tokens,
                        **config.rollout.model_dump(exclude={"prompts_per_step"}),
                    ),
                    hooks,
                ),
                selector=build_selector(**config.select.model_dump(exclude={"query_ratio"})),
                teacher=CropTeacher(model, **config.teacher.model_dump(), hooks=hooks),
                learner=Learner(
                    model,
                    optimiser=OptimiserSettings(**config.optim.model_dump()),
                    distill=DistillSettings(**config.distill.model_dump()),
                    hooks=hooks,
                ),
                clock=Clock(model.device),
            ),
        )

    def identity(self) -> dict[str, str]:
        """Return what the numbers of a run depend on besides its settings and its data.

        The base model is known by a sample of every weight, which tells two models apart without
        reading gigabytes. Asked before anything is restored.
        """
        digest = hashlib.sha256()
        for name, parameter in self.model.network.named_parameters():
            flat = parameter.detach().flatten()
            sample = flat[:: max(1, flat.numel() // 64)].float().cpu()
            digest.update(f"{name} {tuple(parameter.shape)}".encode() + sample.numpy().tobytes())
        return {
            "device": self.model.device.type,
            "precision": str(self.model.precision).removeprefix("torch."),
            "base": digest.hexdigest(),
        }

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of a checkpoint in fp32: the student, its two moments, and the teacher."""
        trained = sum(parameter.numel() for parameter in self.model.trainable().values())
        kept = sum(weight.numel() for weight in self.stages.teacher.weights.values())
        return 4 * (3 * trained + kept)

    def capture(self) -> Snapshot:
        """Copy the whole state to host memory; the copy no longer changes."""
        parts = {
            "student": self.model.trainable(),
            "optimiser": self.stages.learner.state(),
            "teacher": self.stages.teacher.weights,
            "selector": self.stages.selector.state_dict(),
        }
        return Snapshot(
            step=self.step,
            tensors={part: _on_host(tensors) for part, tensors in parts.items()},
            data={"ledger": self.ledger.totals(), "bad_steps": self.bad_steps},
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Become what `capture` saw. A state without its teacher is refused, never made up."""
        tensors = snapshot.tensors
        _require("teacher", self.stages.teacher.weights, tensors.get("teacher", {}))
        _require("student", self.model.trainable(), tensors.get("student", {}))
        with torch.no_grad():
            for name, parameter in self.model.trainable().items():
                parameter.copy_(tensors["student"][name])
            for name, weight in self.stages.teacher.weights.items():
                weight.copy_(tensors["teacher"][name])
        self.stages.learner.restore(tensors["optimiser"])
        self.stages.selector.load_state_dict(tensors["selector"])
        self.ledger = Ledger(**snapshot.data["ledger"])
        self.bad_steps = snapshot.data["bad_steps"]
        self.step = snapshot.step


def _on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def _require(part: str, expected: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    shapes = ({n: t.shape for n, t in tensors.items()} for tensors in (expected, found))
    if operator.ne(*shapes):
        missing = sorted(expected.keys() - found.keys())
        raise CheckpointError(
            f"The checkpoint does not hold the {part} of this run"
            + (f": {missing[0]} and {len(missing) - 1} others are missing. " if missing else ". ")
            + "A run cannot go on from it; start anew with --overwrite or another run.output."
        )


def load_policy(config: Config) -> VisionLanguageModel:
    """Load the model of a configuration on its device, in its precision."""
    device = resolve_device(config.model.device)
    settings = config.lora
    lora = LoraSettings(**settings.model_dump(), seed=config.run.seed) if settings.rank else None
    network = load_model(
        config.model.path,
        device=device,
        gradient_checkpointing=config.model.gradient_checkpointing,
        lora=lora,
    )
    processor = Processor.load(
        config.model.path,
        **config.model.model_dump(include={"thinking", "min_pixels", "max_pixels"}),
    )
    precision = {
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
        "auto": torch.bfloat16 if device.type == "cuda" else torch.float32,
    }[config.model.precision]
    return VisionLanguageModel(network, processor, precision=precision)
