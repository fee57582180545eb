"""The stages take their settings from the configuration, default for default."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest
from pydantic import BaseModel

from bas_opd.config.schema import (
    SERVED,
    DistillConfig,
    LoraConfig,
    OptimConfig,
    RolloutConfig,
    SelectConfig,
    TeacherConfig,
)
from bas_opd.distill.loss import DistillSettings
from bas_opd.learn import OptimizerSettings
from bas_opd.model.loading import LoraSettings
from bas_opd.rollout import SamplingSettings
from bas_opd.run.engines import NOT_SAMPLING
from bas_opd.select import LearnedSelector
from bas_opd.teacher import SelfTeacher


def defaults(stage: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(stage):
        return {field.name: field.default for field in dataclasses.fields(stage)}
    parameters = inspect.signature(stage).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


@pytest.mark.parametrize(
    ("section", "stage", "elsewhere"),
    [
        (RolloutConfig, SamplingSettings, NOT_SAMPLING),
        (SelectConfig, LearnedSelector, {"policy", "query_ratio", "budget", "correctness"}),
        (DistillConfig, DistillSettings, set()),
        (TeacherConfig, SelfTeacher, {"path", "server", *SERVED}),
        (OptimConfig, OptimizerSettings, set()),
        (LoraConfig, LoraSettings, {"rank"}),
    ],
)
def test_a_stage_built_by_hand_has_the_defaults_of_the_configuration(
    section: type[BaseModel], stage: Any, elsewhere: set[str]
) -> None:
    ours = defaults(stage)
    for name, field in section.model_fields.items():
        if name not in elsewhere:
            assert float_or_same(ours[name]) == float_or_same(field.default), name


def float_or_same(value: Any) -> Any:
    """A ratio is an exact decimal in the configuration and may be a float by hand."""
    return value if isinstance(value, str | bool | None) else float(value)
