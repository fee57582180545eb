"""The run under audit: its model and stages, restored to one checkpoint after another."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError
from torch import Tensor

from bas_opd.audit.records import Source, Teacher
from bas_opd.config.schema import Config
from bas_opd.data.order import PromptStream, steps_per_epoch
from bas_opd.data.records import PreparedSet
from bas_opd.errors import CheckpointError, DataError
from bas_opd.methods import BasOpd
from bas_opd.run.checkpoint import Snapshot, newest_intact
from bas_opd.run.directory import RunDirectory
from bas_opd.run.state import build_method, check_base, check_teacher, restore_parts
from bas_opd.types import Hooks, PromptBatch

STAND_IN = {"mode": "live", "path": None, "server": None}
"""The student's own network in place of any teacher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The audit that the user asked for."""

    run: Path
    only: Literal["utility", "geometry"] | None = None
    batches: int = 10
    held_out: Path | None = None
    """A prepared set to audit besides the training batches."""
    checkpoints: int = 6
    pairs: int = 20
    teacher: Teacher = "own"
    device: str = "auto"
    data: Path | None = None
    """Where the training data is now, if it has moved."""
    base: str | None = None
    """Where the base model is now, if it has moved."""


class Subject:
    """A run with its model in memory. Nothing here learns, and nothing is written."""

    def __init__(self, request: Request, hooks: Hooks | None = None) -> None:
        self.request, self.run = request, request.run
        self.teacher: Teacher = request.teacher
        self.directory = RunDirectory(path=self.run)
        self.hooks = hooks or Hooks()
        self.identity = self.directory.read_identity()
        self.config = _config(self.directory, self.identity.config)
        if self.teacher == "student" and self.config.teacher.view == "full":
            raise DataError(
                f"The teacher of the run in {self.run} saw the full image (teacher.view=full), as "
                "the student does. With the student in its place every utility would be 0. Leave "
                "out --teacher student; a run with a served teacher cannot be audited."
            )
        self._data = request.data or Path(self.config.data.path)
        self._device, self._base = request.device, request.base or self.config.model.path
        self._method: BasOpd | None = None

    @property
    def method(self) -> BasOpd:
        """The stages at the last checkpoint that was restored."""
        if self._method is None:
            self._method = self._build(self._base)
            check_base(self.identity, self._base, self._method.model)
            if self.teacher == "own" and self.config.teacher.path is not None:
                check_teacher(self.identity, self.config.teacher.path)
        return self._method

    def close(self) -> None:
        """Free the stages, if there are any."""
        if self._method is not None:
            self._method.close()
            self._method = None

    def dataset(self, held_out: Path | None = None) -> PreparedSet:
        """Return the set of the run and no other, or a set that it was not trained on."""
        data = PreparedSet.load(held_out or self._data)
        own = self.identity.dataset.fingerprint
        if held_out is None and data.fingerprint != own:
            raise DataError(
                f"{self._data} is not the set that the run in {self.run} was trained on: its "
                f"fingerprint is {data.fingerprint[:12]}, not {own[:12]}. "
                "Give the path of that set with --data."
            )
        if held_out is not None and data.fingerprint == own:
            raise DataError(
                f"{held_out} holds the set that the run in {self.run} was trained on, so nothing "
                "in it is held out. Give another set with --held-out, or omit the option."
            )
        return data

    def restore_newest(self) -> int:
        """Restore the newest intact checkpoint, or the saved student, and return its step."""
        snapshot = next(newest_intact(self.directory.checkpoints, self.hooks.notice), None)
        if snapshot is not None:
            return self.restore(snapshot)
        if not self.directory.model.is_dir():
            raise CheckpointError(
                f"The run in {self.run} has neither an intact checkpoint nor a final model, so "
                "there is nothing to audit. Run its command again."
            )
        if self.teacher == "own" and not self.config.teacher.is_another_model:
            raise self._teacher_is_missing(f"The run in {self.run} has no intact checkpoint and")
        self._restore_saved_student()
        return self.identity.steps

    def restore(self, snapshot: Snapshot) -> int:
        """Restore a snapshot without its optimizer state, and return its step."""
        teacher: Mapping[str, Tensor] = snapshot.tensors.get("teacher", {})
        if self.teacher == "student":
            teacher = {}
        elif not teacher and self.config.keeps_second_weights:
            raise self._teacher_is_missing(f"The checkpoint of step {snapshot.step} in {self.run}")
        tensors = {**snapshot.tensors, "teacher": teacher, "optimiser": {}}
        restore_parts(self.method, tensors)
        return snapshot.step

    def batches(
        self, data: PreparedSet, source: Source, *, step: int, n: int
    ) -> Iterator[PromptBatch]:
        """Yield the batches that would follow a step, or the first of a held-out set.

        They have the numbers of the steps that would follow, which their draws depend on.
        """
        per_step = self.config.rollout.prompts_per_step
        if source == "held-out" and (enough := steps_per_epoch(len(data), per_step)) < n:
            raise DataError(
                f"{data.folder} has {len(data):,} examples, enough for {enough} batches of "
                f"{per_step}, not for {n}. Give a larger set or ask for fewer with --batches."
            )
        prompts = PromptStream(data.examples, per_step=per_step, seed=self.config.run.seed)
        prompts.cursor = step if source == "training" else 0
        for i in range(n):
            prompts.begin(step + i)
            yield prompts.take()

    def provenance(self, data: PreparedSet, source: Source) -> dict[str, Any]:
        """Return what every audit says of itself."""
        return {
            "config_hash": self.identity.config_hash,
            "policy": self.config.select.policy,
            "query_ratio": str(self.config.select.query_ratio),
            "coverage": self.config.select.coverage,
            "teacher": self.teacher,
            "teacher_mode": self.config.teacher.mode,
            "source": source,
            "dataset": data.fingerprint,
            "seed": self.config.run.seed,
            "device": str(self.method.model.device),
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }

    def _build(self, model: str) -> BasOpd:
        # In the precision of the run: on another device `auto` could mean another one.
        settings = {
            "model": {
                "path": model,
                "device": self._device,
                "precision": self.identity.precision,
            },
            # A live teacher is the student's own weights on the crop: the paper's stand-in.
            "teacher": STAND_IN if self.teacher == "student" else {},
        }
        config = self.config.model_copy(
            update={
                section: getattr(self.config, section).model_copy(update=update)
                for section, update in settings.items()
            }
        )
        method = build_method(config, self.hooks)
        assert isinstance(method, BasOpd)  # `_config` refuses other methods
        return method

    def _restore_saved_student(self) -> None:
        """Load the student that the run saved at its end; the state of its selector is lost."""
        saved = self.directory.model
        if self.config.lora.rank:
            from peft import set_peft_model_state_dict
            from safetensors.torch import load_file

            network: Any = self.method.model.network
            set_peft_model_state_dict(network, load_file(saved / "adapter_model.safetensors"))
        else:
            self.close()
            self._method = self._build(str(saved))
        self.hooks.notice(
            f"The run in {self.run} has no intact checkpoint: the state of its selector "
            "is lost, and its predictions are not known."
        )

    def _teacher_is_missing(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{what} does not hold the run's own teacher. With --teacher student the student "
            "itself stands in for it, as in the paper, and every result says so."
        )


def _config(directory: RunDirectory, settings: dict[str, Any]) -> Config:
    try:
        config = Config.model_validate(settings)
    except ValidationError as error:
        raise DataError(
            f"{directory.identity} does not describe a run that this version can audit ({error}). "
            "Use the version that started it."
        ) from error
    if config.method.name != "bas-opd":
        raise DataError(
            f"The run in {directory.path} was trained by {config.method.name}, which selects no "
            "teacher queries, so there is nothing to audit. Audits are for runs of bas-opd."
        )
    return config
