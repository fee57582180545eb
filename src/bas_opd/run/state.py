"""Everything that must survive a kill: built from a configuration, captured, restored."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bas_opd.algorithm import Stages
from bas_opd.answers import grade
from bas_opd.compute.clock import Clock
from bas_opd.config.schema import Config
from bas_opd.data.order import PromptStream
from bas_opd.data.records import PreparedSet
from bas_opd.data.views import crop_size, crop_view, full_view
from bas_opd.distill.loss import DistillSettings
from bas_opd.errors import CheckpointError, DataError
from bas_opd.learn import Distillation, Learner, OptimizerSettings
from bas_opd.methods import BasOpd, Method
from bas_opd.model.loading import LoraSettings, open_model
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.rollout import Sampler, SamplingSettings
from bas_opd.run.checkpoint import Snapshot
from bas_opd.run.ledger import Ledger
from bas_opd.run.record import EvaluationRecord
from bas_opd.select import build_selector
from bas_opd.teacher import SelfTeacher
from bas_opd.types import Grade, Hooks, Rollouts

PACKAGES = ("bas-opd", "torch", "transformers", "safetensors", "pillow", "numpy", "peft")


def check_data(config: Config, data: PreparedSet) -> None:
    """Refuse data that the method cannot learn from."""
    if not any(example.has_crop for example in data.examples):
        raise DataError(
            f"None of the {len(data.examples):,} examples in {data.folder} has a crop, so the "
            "teacher could never be asked. Prepare the data with crop boxes or crop images."
        )
    if config.select.correctness and not any(
        example.answer for example in data.examples if example.has_crop
    ):
        raise DataError(
            f"select.correctness is true, but no example with a crop in {data.folder} has an "
            "answer to compare responses with. Prepare the data with answers, or set "
            "select.correctness=false."
        )


def build_method(config: Config, hooks: Hooks | None = None) -> BasOpd:
    """Load the model and set every stage to its start (Alg. 1, line 1)."""
    model = load_policy(config)
    sampling = SamplingSettings(
        seed=config.run.seed,
        max_prompt_tokens=config.data.max_prompt_tokens,
        **config.rollout.model_dump(exclude={"prompts_per_step"}),
    )
    return BasOpd(
        model=model,
        query_ratio=config.select.query_ratio,
        budget=config.select.budget,
        stages=Stages(
            policy=Sampler(model, full_view, sampling, hooks),
            selector=build_selector(**config.select.model_dump(exclude={"query_ratio", "budget"})),
            teacher=SelfTeacher(
                model, crop_view, **config.teacher.model_dump(), hooks=hooks, size=crop_size
            ),
            learner=Learner(model, OptimizerSettings(**config.optim.model_dump()), hooks),
            objective=partial(
                Distillation,
                head=model.logits,
                settings=DistillSettings(**config.distill.model_dump()),
            ),
            clock=Clock(model.device),
            grade=partial(_graded, model) if config.select.correctness else None,
        ),
    )


def _graded(
    model: VisionLanguageModel, rollouts: Rollouts, rows: Sequence[int]
) -> tuple[Grade, ...]:
    """Compare the responses of rows with the answers of their examples."""
    return tuple(
        grade(
            model.processor.decode(rollouts.tokens[row, : int(rollouts.lengths[row])]),
            rollouts.example_of(row).answer,
        )
        for row in rows
    )


@dataclass(slots=True, kw_only=True)
class TrainState:
    """A method with all that it remembers, its prompts, the ledger, and the step to come."""

    method: Method
    prompts: PromptStream
    ledger: Ledger = field(default_factory=Ledger)
    step: int = 0
    bad_steps: int = 0
    """Steps in a row, up to now, that were not finite."""
    evaluation: EvaluationRecord | None = None
    """The last evaluation during training."""
    best: EvaluationRecord | None = None
    """The best of them."""

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of a checkpoint: what each part holds, and two moments of every trained weight."""
        trained = sum(parameter.numel() for parameter in self.method.model.trainable().values())
        return 2 * 4 * trained + sum(
            tensor.nbytes
            for part in self.method.parts().values()
            for tensor in part.state_dict().values()
        )

    def capture(self) -> Snapshot:
        """Copy the whole state to host memory; the copy no longer changes."""
        return Snapshot(
            step=self.step,
            tensors={name: _on_host(p.state_dict()) for name, p in self.method.parts().items()},
            data={
                "ledger": self.ledger.totals(),
                "bad_steps": self.bad_steps,
                "cursor": self.prompts.cursor,
                **{
                    name: each.model_dump()
                    for name, each in (("evaluation", self.evaluation), ("best", self.best))
                    if each is not None
                },
            },
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Become what `capture` saw."""
        restore_parts(self.method, snapshot.tensors)
        self.ledger = Ledger(**snapshot.data["ledger"])
        self.bad_steps = snapshot.data["bad_steps"]
        self.evaluation, self.best = (
            EvaluationRecord.model_validate(snapshot.data[name]) if name in snapshot.data else None
            for name in ("evaluation", "best")
        )
        self.step = snapshot.step
        # Checkpoints of version 0.1 have no cursor: every step took one batch.
        self.prompts.cursor = snapshot.data.get("cursor", snapshot.step)


def restore_parts(method: Method, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Restore every part of a method; a checkpoint that lacks one is refused."""
    parts = method.parts()
    if missing := sorted(parts.keys() - tensors.keys()):
        raise CheckpointError(
            f"The checkpoint does not hold the {' and the '.join(missing)} of this run. The run "
            "cannot resume from it; start over with --overwrite or another run.output."
        )
    for name, part in parts.items():
        part.load_state_dict(tensors[name])


def _on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def model_identity(model: VisionLanguageModel) -> dict[str, str]:
    """Return what the numbers of a run depend on besides its settings and its data.

    The base model is known by a sample of every weight, which distinguishes two models without
    reading gigabytes. Call it before anything is restored.
    """
    digest = hashlib.sha256()
    for name, parameter in model.network.named_parameters():
        flat = parameter.detach().flatten()
        sample = flat[:: max(1, flat.numel() // 64)].float().cpu()
        digest.update(f"{name} {tuple(parameter.shape)}".encode() + sample.numpy().tobytes())
    return {
        "device": model.device.type,
        "precision": str(model.precision).removeprefix("torch."),
        "base": digest.hexdigest(),
    }


def environment() -> dict[str, Any]:
    """Return the versions and the hardware that the numbers of a run may depend on."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": versions,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
    }


def load_policy(config: Config) -> VisionLanguageModel:
    """Load the model of a configuration on its device, in its precision."""
    lora = None
    if config.lora.rank:
        lora = LoraSettings(**config.lora.model_dump(), seed=config.run.seed)
    return open_model(**config.model.model_dump(), lora=lora)
