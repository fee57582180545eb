"""A study: arms, seeds, learning rates and comparisons that are written down before any run.

The file is TOML. Its hash is in every result, so that no result of another study, or of the same
one before a change, is taken for one of this. Needs no torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from bas_opd.config.loading import parse_toml
from bas_opd.errors import ConfigError, explain_failure
from bas_opd.files import sha256
from bas_opd.model.base import small_base
from bas_opd.reproduce.arms import ARMS, BASE, ArmSpec, arm_config
from bas_opd.reproduce.results import Part
from bas_opd.validation import explain_first

STUDY = "study.toml"
"""The copy of the file that stands beside the results."""
SMALL = "small"
"""Names the base that comes with the package for the task."""


def parse_seeds(text: str) -> tuple[int, ...]:
    """Read `0-7` or `0,2,5` as seeds."""
    seeds: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if not found:
            seeds = []
            break
        first, last = int(found[1]), int(found[2] or found[1])
        seeds += range(first, last + 1)
    if not seeds:
        raise ConfigError(f"{text!r} names no seeds. Write them as in 0-7 or 0,2,5.")
    return tuple(sorted(set(seeds)))


def _seeds(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return parse_seeds(value)
        except ConfigError as error:
            raise ValueError(str(error)) from None
    return tuple(sorted(set(value))) if isinstance(value, list) else value


class StudyArm(Part):
    """One arm: by the name of a known one, or as a preset with settings."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    preset: str | None = None
    """None: the known arm of that name."""
    settings: list[str] = Field(default_factory=list)
    learning_rate: float = Field(gt=0, le=1)
    seeds: Annotated[tuple[int, ...], BeforeValidator(_seeds)] = Field(min_length=1)

    @model_validator(mode="after")
    def _is_defined(self) -> StudyArm:
        if self.name == BASE:
            raise ValueError("the base is in every study and is not declared")
        if self.preset is None and self.name not in ARMS:
            nearest = get_close_matches(self.name, ARMS, n=1)
            meant = f" (did you mean {nearest[0]}?)" if nearest else ""
            raise ValueError(f"{self.name} is no known arm{meant}, so it needs a preset")
        return self

    @property
    def spec(self) -> ArmSpec:
        """The arm with its learning rate."""
        known = ArmSpec(self.name, self.preset) if self.preset else ARMS[self.name]
        rate = f"optim.learning_rate={self.learning_rate!r}"
        return ArmSpec(self.name, known.preset, (*known.settings, *self.settings, rate))


class Comparison(Part):
    """A primary comparison: what is claimed of one arm against another."""

    arm: str
    against: str
    claim: Literal["non-inferiority", "superiority"]
    margin: float | None = Field(default=None, gt=0, lt=1)
    """For non-inferiority: the share of the gain of `against` over the base that may be lost."""

    @model_validator(mode="after")
    def _has_its_margin(self) -> Comparison:
        if (self.claim == "non-inferiority") != (self.margin is not None):
            raise ValueError("non-inferiority needs a margin, superiority has none")
        return self


class StudyFile(Part):
    """The content of a study's file."""

    title: str
    draft: bool = False
    """Whether learning rates are still to be chosen: only a sweep may run."""
    task: Literal["finesearch", "finesearch2"] = "finesearch"
    base: str = SMALL
    """`small`, or the folder of a model relative to the file."""
    steps: int = Field(gt=0)
    train: int = Field(gt=0)
    """Training examples."""
    test: int = Field(gt=0)
    """Test questions."""
    val: int = Field(default=1000, gt=0)
    """Questions that learning rates are compared on."""
    settings: list[str] = Field(default_factory=list)
    """Settings of every run."""
    evaluate_every: int | None = Field(default=None, gt=0)
    """Steps between evaluations during training, for a table at equal cost; None: no such table."""
    evaluate_on: int | None = Field(default=None, gt=0)
    """Most test questions of such an evaluation, as many of each kind as possible; None: all."""
    arms: list[StudyArm] = Field(alias="arm", min_length=1)
    comparisons: list[Comparison] = Field(default_factory=list, alias="comparison")

    @model_validator(mode="after")
    def _is_consistent(self) -> StudyFile:
        if self.evaluate_on is not None and self.evaluate_every is None:
            raise ValueError("evaluate_on needs evaluate_every")
        names = [arm.name for arm in self.arms]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two arms are named {twice}")
        seeds = {arm.name: set(arm.seeds) for arm in self.arms}
        for each in self.comparisons:
            if unknown := {each.arm, each.against} - set(names):
                raise ValueError(f"a comparison names {min(unknown)}, which is no arm here")
            if each.arm == each.against or len(seeds[each.arm] & seeds[each.against]) < 2:
                raise ValueError(
                    f"{each.arm} and {each.against} need two seeds in common to be compared"
                )
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A study as its file declares it."""

    path: Path
    hash: str
    """SHA-256 of the file."""
    declared: StudyFile

    @property
    def arms(self) -> dict[ArmSpec, tuple[int, ...]]:
        """Every arm with its seeds, in the order of the file; the base comes first and has none."""
        declared = {arm.spec: arm.seeds for arm in self.declared.arms}
        return {ARMS[BASE]: (), **declared}

    @property
    def base(self) -> Path:
        """The folder of the base model."""
        name = self.declared.base
        if name == SMALL:
            return small_base(self.declared.task)
        return (self.path.parent / name).resolve()

    @property
    def overrides(self) -> tuple[str, ...]:
        """Settings of every run."""
        return (f"run.steps={self.declared.steps}", *self.declared.settings)

    def chosen(
        self, names: tuple[str, ...] | None, seeds: tuple[int, ...] | None
    ) -> dict[ArmSpec, tuple[int, ...]]:
        """Return a part of the study: the named arms and, of their seeds, the given ones."""
        known = [arm.name for arm in self.arms]
        if unknown := sorted(set(names or ()) - set(known)):
            raise ConfigError(
                f"The study has no arm named {', '.join(unknown)}. Its arms are {', '.join(known)}."
            )
        return {
            arm: tuple(seed for seed in own if seeds is None or seed in seeds)
            for arm, own in self.arms.items()
            if names is None or arm.name in names
        }


def read_study(path: Path) -> Study:
    """Read a study's file and check that each of its arms can be run."""
    try:
        content = parse_toml(path.read_text(encoding="utf-8"))
        declared = StudyFile.model_validate(content)
    except OSError as error:
        raise ConfigError(f"The study cannot be read. {explain_failure(error)}") from None
    except ValidationError as error:
        raise ConfigError(f"{path} is no study: {explain_first(error, StudyFile)}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from None
    study = Study(path=path, hash=sha256(path), declared=declared)
    for arm in study.arms:
        try:
            settings = ["model.path=x", "data.path=x", *study.overrides]
            arm_config(arm, 0, settings, task=declared.task, origin=f"In {path}")
        except ConfigError as error:
            raise ConfigError(f"The arm {arm.name} cannot be run. {error}") from None
    return study
