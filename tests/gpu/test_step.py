"""One step of the paper's shape on a GPU, against the same step on the CPU in fp32."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from statistics import fmean

import pytest
import torch
from stage_fixtures import crop_teacher, make_examples, make_model, make_stages
from torch import Tensor

from bas_opd.algorithm import train_step
from bas_opd.compute import compiling
from bas_opd.data.views import full_view
from bas_opd.learn import Learner, OptimizerSettings
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.rollout import Sampler, SamplingSettings
from bas_opd.select import build_selector
from bas_opd.types import Part, PromptBatch, Rollouts, StepReport

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@dataclass
class Replayed:
    """A policy that repeats given rollouts."""

    rollouts: Rollouts

    def generate(self, batch: PromptBatch) -> Rollouts:
        return self.rollouts

    def load_weights(self, named: Mapping[str, Tensor], version: int) -> None: ...
    def parts(self) -> dict[str, Part]:
        return {}

    def close(self) -> None: ...


def on_gpu(model: VisionLanguageModel, precision: torch.dtype) -> VisionLanguageModel:
    return VisionLanguageModel(
        copy.deepcopy(model.network).cuda(), model.processor, precision=precision
    )


def one_step(
    model: VisionLanguageModel, rollouts: Rollouts
) -> tuple[StepReport, Tensor, dict[str, Tensor]]:
    """Take the step on given rollouts; return its report, its gradient and its new weights."""
    settings = OptimizerSettings(learning_rate=1e-4, warmup_steps=0, gradient_clip=1e9)
    learner = Learner(model, settings)
    gradients: list[Tensor] = []
    learner.optimizer.register_step_pre_hook(
        lambda *_: gradients.append(
            torch.cat([p.grad.flatten().cpu() for p in learner.parameters if p.grad is not None])
        )
    )
    teacher = crop_teacher(model)
    generator = torch.Generator().manual_seed(3)
    for weight in teacher.weights.state_dict().values():
        weight += 0.1 * torch.randn(weight.shape, generator=generator).to(weight.device)
    stages = replace(
        make_stages(model, build_selector("random"), SamplingSettings(), k=100),
        policy=Replayed(rollouts),
        teacher=teacher,
        learner=learner,
    )
    batch = PromptBatch(step=rollouts.step, examples=rollouts.examples)
    report = train_step(stages, batch, Decimal("0.25"))
    return report, gradients[0], teacher.weights.state_dict()


@pytest.fixture(params=["small_qwen35", "small_qwen3vl", "small_qwen25vl"])
def cpu(request: pytest.FixtureRequest) -> VisionLanguageModel:
    return make_model(request.getfixturevalue(request.param))


def test_a_step_of_the_papers_shape_agrees_with_the_cpu(
    cpu: VisionLanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In fp32 to rounding; in bf16 the loss to 2 % and the gradient to 0.2 of its length."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    settings = SamplingSettings(max_response_tokens=24)
    batch = PromptBatch(step=0, examples=make_examples(tmp_path, 28))
    rollouts = Sampler(cpu, full_view, settings).generate(batch)
    exact, half = on_gpu(cpu, torch.float32), on_gpu(cpu, torch.bfloat16)

    # The draws have addresses that no device changes; fp32 rounding alone separates the two.
    drawn = Sampler(exact, full_view, settings).generate(batch)
    assert drawn.tokens.shape == rollouts.tokens.shape
    assert (drawn.tokens == rollouts.tokens).all(-1).float().mean() > 0.99

    reference, gradient, _ = one_step(cpu, rollouts)
    assert len(rollouts) == 224
    assert len(reference.rows) == 54  # of 216 candidates: one example has no crop
    for model, gradient_tolerance, loss_tolerance in ((exact, 5e-4, 1e-5), (half, 0.2, 0.02)):
        report, ours, teacher = one_step(model, rollouts)
        error = float((ours - gradient).norm() / gradient.norm())
        loss_error = abs(report.update.loss / reference.update.loss - 1)
        print(f"{model.precision}: gradient {error:.1e}, loss {loss_error:.1e}")
        assert report.update.is_valid
        assert report.rows == reference.rows
        assert error < gradient_tolerance
        assert loss_error < loss_tolerance
        assert report.update.observed == pytest.approx(
            reference.update.observed, rel=25 * loss_tolerance, abs=1e-4
        )
        assert all(weight.dtype is torch.float32 for weight in teacher.values())


def test_fast_paths_in_bf16_are_as_exact_as_plain_operations(
    cpu: VisionLanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the gradient against fp32, the mean over five batches: at most 1.1 times."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    examples = make_examples(tmp_path, 28)
    errors: dict[str, list[float]] = {"auto": [], "reference": []}
    for step in range(5):
        monkeypatch.setattr(compiling, "_chosen", "reference")
        exact = on_gpu(cpu, torch.float32)
        batch = PromptBatch(step=step, examples=examples)
        settings = SamplingSettings(max_response_tokens=24)
        rollouts = Sampler(exact, full_view, settings).generate(batch)
        _, wanted, _ = one_step(exact, rollouts)
        for kernels, found in errors.items():
            monkeypatch.setattr(compiling, "_chosen", kernels)
            _, ours, _ = one_step(on_gpu(cpu, torch.bfloat16), rollouts)
            found.append(float((ours - wanted).norm() / wanted.norm()))
    fast, plain = (fmean(errors[kernels]) for kernels in ("auto", "reference"))
    print(f"bf16 gradient, error: fast paths {fast:.2e}, plain operations {plain:.2e}")
    assert fast <= 1.1 * plain
