"""The run under audit: its model and stages, restored to one checkpoint after another."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bas_opd.audit.records import Source, Teacher
from bas_opd.config.schema import Config
from bas_opd.data.order import step_indices, steps_per_epoch
from bas_opd.data.records import PreparedSet
from bas_opd.errors import CheckpointError, DataError, ModelError
from bas_opd.run.checkpoint import Snapshot, newest_whole
from bas_opd.run.directory import IDENTITY
from bas_opd.run.manifest import read_json
from bas_opd.run.state import TrainState
from bas_opd.types import Hooks, PromptBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity of a run, from `run.json`."""

    config: Config
    config_hash: str
    fingerprint: str
    steps: int
    precision: str
    base: str

    @classmethod
    def read(cls, run: Path) -> Identity:
        """Read and check it."""
        if not (run / IDENTITY).is_file():
            raise DataError(
                f"There is no run in {run}: it has no {IDENTITY}. Give a run directory."
            )
        claimed = read_json(run / IDENTITY)
        try:
            return cls(
                config=Config.model_validate(claimed["config"]),
                config_hash=claimed["config_hash"],
                fingerprint=claimed["dataset"]["fingerprint"],
                steps=claimed["steps"],
                precision=claimed["precision"],
                base=claimed["base"],
            )
        except (KeyError, TypeError, ValidationError) as error:
            raise DataError(
                f"{run / IDENTITY} does not describe a run that this version can audit ({error}). "
                "Use the version that started it."
            ) from error


class Subject:
    """A run with its model in memory. Nothing here is trained or written."""

    def __init__(
        self,
        run: Path,
        *,
        teacher: Teacher = "own",
        device: str = "auto",
        data: Path | None = None,
        base: str | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        """Load the model of a run; `data` and `base` are their paths if they have moved."""
        self.run, self.teacher = run, teacher
        self.hooks = hooks or Hooks()
        self.identity = Identity.read(run)
        self.config = self.identity.config
        self._data = data or Path(self.config.data.path)
        self._device, self._base = device, base or self.config.model.path
        self._state: TrainState | None = None

    @property
    def state(self) -> TrainState:
        """The stages at the last checkpoint that was restored."""
        if self._state is None:
            self._state = self._build(self._base)
            if self._state.identity()["base"] != self.identity.base:
                raise ModelError(
                    f"The model at {self._base} is not the one that the run in {self.run} started "
                    "from. Give the path of that one with --base."
                )
        return self._state

    def training_set(self) -> PreparedSet:
        """Return the set that the run was trained on."""
        data = PreparedSet.load(self._data)
        if data.fingerprint != self.identity.fingerprint:
            raise DataError(
                f"{self._data} is not the set that the run in {self.run} was trained on: its "
                f"fingerprint is {data.fingerprint[:12]}, not {self.identity.fingerprint[:12]}. "
                "Give the path of that set with --data."
            )
        return data

    def held_out_set(self, folder: Path) -> PreparedSet:
        """Return a set that the run was not trained on."""
        data = PreparedSet.load(folder)
        if data.fingerprint == self.identity.fingerprint:
            raise DataError(
                f"{folder} is the set that the run in {self.run} was trained on: nothing in it is "
                "held out. Give another set with --held-out, or drop that option."
            )
        return data

    def restore_newest(self) -> int:
        """Restore the newest whole checkpoint, else the saved student, and return its step."""
        snapshot = next(newest_whole(self.run / "checkpoints", self.hooks.notice), None)
        if snapshot is not None:
            return self.restore(snapshot)
        if not (self.run / "model").is_dir():
            raise CheckpointError(
                f"The run in {self.run} has neither a whole checkpoint nor a final model, so there "
                "is nothing to audit. Rerun its command."
            )
        if self.teacher == "own":
            raise self._teacher_is_missing(f"The run in {self.run} has no whole checkpoint and")
        self._restore_saved_student()
        return self.identity.steps

    def restore(self, snapshot: Snapshot) -> int:
        """Restore a checkpoint without the optimizer state, and return its step."""
        teacher = snapshot.tensors.get("teacher", {})
        if self.teacher == "student":
            teacher = {}
        elif not teacher and self.config.teacher.mode != "live":
            raise self._teacher_is_missing(f"The checkpoint of step {snapshot.step} in {self.run}")
        tensors = {**snapshot.tensors, "teacher": teacher, "optimiser": {}}
        self.state.restore(replace(snapshot, tensors=tensors))
        return snapshot.step

    def batches(
        self, data: PreparedSet, source: Source, *, step: int, n: int
    ) -> Iterator[PromptBatch]:
        """Yield the batches that would follow a step, or the first of a held-out set.

        They have the numbers of the steps that would follow: their random draws depend on these.
        """
        per_step, seed = self.config.rollout.prompts_per_step, self.config.run.seed
        if source == "held-out" and (enough := steps_per_epoch(len(data), per_step)) < n:
            raise DataError(
                f"{data.folder} has {len(data):,} examples, enough for {enough} batches of "
                f"{per_step}, not for {n}. Give a larger set or ask for fewer with --batches."
            )
        first = step if source == "training" else 0
        for i in range(n):
            rows = step_indices(len(data), per_step, seed, first + i)
            yield PromptBatch(step=step + i, examples=tuple(data.examples[row] for row in rows))

    def provenance(self, data: PreparedSet, source: Source) -> dict[str, Any]:
        """Return the fields that every audit has."""
        return {
            "config_hash": self.identity.config_hash,
            "policy": self.config.select.policy,
            "query_ratio": str(self.config.select.query_ratio),
            "teacher": self.teacher,
            "teacher_mode": self.config.teacher.mode,
            "source": source,
            "dataset": data.fingerprint,
            "seed": self.config.run.seed,
            "device": str(self.state.model.device),
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }

    def _build(self, model: str) -> TrainState:
        # In the precision of the run: `auto` could differ on another device.
        settings = {
            "model": {"path": model, "device": self._device, "precision": self.identity.precision},
            # A live teacher is the student's own weights on the crop: the paper's stand-in.
            "teacher": {"mode": "live"} if self.teacher == "student" else {},
        }
        config = self.config.model_copy(
            update={
                section: getattr(self.config, section).model_copy(update=update)
                for section, update in settings.items()
            }
        )
        return TrainState.build(config, self.hooks)

    def _restore_saved_student(self) -> None:
        """Load the student that the run saved at its end; the state of its selector is lost."""
        saved = self.run / "model"
        if self.config.lora.rank:
            from peft import set_peft_model_state_dict
            from safetensors.torch import load_file

            network: Any = self.state.model.network
            set_peft_model_state_dict(network, load_file(saved / "adapter_model.safetensors"))
        else:
            self._state = self._build(str(saved))
        self.hooks.notice(
            f"The run in {self.run} has no whole checkpoint: the state of its selector is lost, "
            "and its predictions are unknown."
        )

    def _teacher_is_missing(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{what} does not hold the run's own teacher. With --teacher student, the student "
            "stands in for it, as in the paper, and every result says so."
        )
