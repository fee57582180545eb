"""bf16 computation around fp32 parameters, on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from stage_fixtures import crop_teacher, draw, make_examples, make_model
from torch import Tensor, nn
from transformers.models.qwen3_5 import modeling_qwen3_5

from bas_opd.data.images import open_image
from bas_opd.distill.loss import DistillSettings
from bas_opd.learn import Distillation, Learner, OptimizerSettings
from bas_opd.model.loading import LoraSettings
from bas_opd.model.vlm import VisionLanguageModel

ROWS = (0, 1, 4, 7)


@pytest.fixture(autouse=True)
def plain_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some processors offer bf16 kernels that a virtual machine cannot run."""
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)


def gradient(model: VisionLanguageModel, pictures: Path) -> tuple[float, Tensor]:
    """Return loss and gradient on rollouts that an fp32 model would draw too."""
    teacher = crop_teacher(model)
    generator = torch.Generator().manual_seed(3)
    for weight in teacher.weights.state_dict().values():
        weight += 0.1 * torch.randn(weight.shape, generator=generator)
    precision, model.precision = model.precision, torch.float32
    rollouts = draw(model, make_examples(pictures))
    model.precision = precision
    learner = Learner(model, OptimizerSettings())
    scores = teacher.score(rollouts, ROWS)
    objective = Distillation(scores, model.logits, DistillSettings(k=20))
    found = learner.accumulate(rollouts, ROWS, objective)
    return float(found.loss), torch.cat(
        [p.grad.flatten() for p in learner.parameters if p.grad is not None]
    )


@pytest.mark.parametrize("family", ["small_qwen35", "small_qwen3vl", "small_qwen25vl"])
def test_a_bf16_gradient_points_where_the_fp32_one_does(
    family: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder: Path = request.getfixturevalue(family)
    loss, exact = gradient(make_model(folder), tmp_path)
    half_loss, half = gradient(make_model(folder, precision=torch.bfloat16), tmp_path)
    assert half.dtype is torch.float32
    assert half_loss == pytest.approx(loss, rel=0.02)
    assert float((half - exact).norm() / exact.norm()) < 0.2


def test_logits_are_computed_in_fp32(small_qwen35: Path) -> None:
    model = make_model(small_qwen35, precision=torch.bfloat16)
    hidden = torch.randn(5, 64)
    with model.compute():
        logits = model.logits(hidden)
    assert torch.equal(logits, model.head(hidden))


def test_the_cache_is_kept_in_the_precision_of_attention(
    small_qwen35: Path, tmp_path: Path
) -> None:
    for precision in (torch.float32, torch.bfloat16):
        model = make_model(small_qwen35, precision=precision)
        (example, *_) = make_examples(tmp_path)
        prompt = model.processor.encode(open_image(example.image), example.question)
        with torch.no_grad(), model.compute():
            cache = model.prefill([prompt]).cache
        keys = [getattr(layer, "keys", None) for layer in cache.layers]
        assert {tensor.dtype for tensor in keys if tensor is not None} == {precision}


def test_recurrences_run_outside_autocast(small_qwen35: Path) -> None:
    make_model(small_qwen35, precision=torch.bfloat16)
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 70, 2, 8).bfloat16() for _ in range(3))
    gate, beta = -torch.rand(1, 70, 2), torch.rand(1, 70, 2)
    run = modeling_qwen3_5.torch_chunk_gated_delta_rule
    plain, state = run(query, key, value, gate, beta, output_final_state=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast, cast_state = run(query, key, value, gate, beta, output_final_state=True)
    assert torch.equal(plain, cast)
    assert state is not None
    assert cast_state is not None
    assert torch.equal(state, cast_state)


def test_weights_that_lora_leaves_alone_are_cast_once(small_qwen35: Path) -> None:
    model = make_model(small_qwen35, precision=torch.bfloat16, lora=LoraSettings(rank=4))
    linears = {n: m for n, m in model.network.named_modules() if isinstance(m, nn.Linear)}
    kinds = {name: module.weight.dtype for name, module in linears.items()}
    assert all(kind is torch.float32 for name, kind in kinds.items() if "lora" in name)
    assert model.head.weight.dtype is torch.float32
    base = [kind for name, kind in kinds.items() if name.endswith("base_layer")]
    assert base
    assert set(base) == {torch.bfloat16}
