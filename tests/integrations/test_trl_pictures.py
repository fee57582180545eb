"""TRL's trainer with a budget, and a model that reads pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from small_models import Family, build_small_model
from torchvision_here import needs_torchvision

pytest.importorskip("trl", reason="TRL is not installed; `make trainers` installs it")

from datasets import Dataset
from transformers import AutoModelForImageTextToText, AutoProcessor
from trl.trainer.distillation_config import DistillationConfig
from trl.trainer.distillation_trainer import DistillationTrainer
from trl.trainer.utils import split_pixel_values_by_grid, unsplit_pixel_values_by_grid
from trl_fixtures import MICRO, ROWS, Watched, settings

from bas_opd.integrations.trl import BudgetedDistillationTrainer, rows_of
from bas_opd.select import LearnedSelector

pytestmark = needs_torchvision
LIMIT = 3


@pytest.fixture(scope="module", params=["qwen3_vl", "qwen3_5"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    family: Family = request.param
    return build_small_model(tmp_path_factory.mktemp("model"), family=family, hidden=32)


def student(folder: Path) -> Any:
    return AutoModelForImageTextToText.from_pretrained(folder)


def teacher(folder: Path) -> Any:
    """The same model with other weights, so that there is something to learn."""
    model, generator = student(folder), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * weight.std() * torch.randn(weight.shape, generator=generator)
    return model


def pictures() -> Dataset:
    """Questions about pictures of different sizes."""
    draw = np.random.default_rng(0)
    shape = [(64 + 32 * (i % 3), 64 + 32 * (i % 2)) for i in range(36)]
    return Dataset.from_list([
        {
            "prompt": [{"role": "user", "content": f"What is {'the ' * (i % 5)}{i}?"}],
            "image": Image.fromarray(draw.integers(0, 256, (*size, 3), dtype=np.uint8)),
        }
        for i, size in enumerate(shape)
    ])  # fmt: skip


def common(folder: Path, output: Path, **changes: Any) -> dict[str, Any]:
    return {
        "model": student(folder),
        "teacher_model": teacher(folder),
        "args": DistillationConfig(**settings(output, **changes)),
        "train_dataset": pictures(),
        "processing_class": AutoProcessor.from_pretrained(folder),
    }


def budgeted(folder: Path, output: Path, **changes: Any) -> Any:
    selector = LearnedSelector(replay_start=4)
    return BudgetedDistillationTrainer(
        **common(folder, output, **changes), query_ratio="0.25", selector=selector
    )


def shown_to(model: Any) -> list[dict[str, torch.Tensor]]:
    """What the model is given in each pass, from now on."""
    seen: list[dict[str, torch.Tensor]] = []
    model.base_model.register_forward_pre_hook(
        lambda _, __, given: seen.append(given), with_kwargs=True
    )
    return seen


def test_the_teacher_is_shown_the_pictures_of_the_selected_rows_alone(
    folder: Path, tmp_path: Path
) -> None:
    trainer = budgeted(folder, tmp_path)
    through, seen = Watched(trainer), shown_to(trainer.teacher_model)
    batches: list[Any] = []
    sample = trainer._generate_and_score_completions
    trainer._generate_and_score_completions = lambda given: (
        batches.append(sample(given)) or batches[-1]
    )
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.train()
    assert (trainer.ledger.calls, trainer.ledger.overrun) == (3 * LIMIT, 0)
    assert [len(rows) for rows in through.selected] == [LIMIT] * 3 == [len(seen)] * 3
    for batch, rows, given in zip(batches, through.selected, seen, strict=True):
        parts = split_pixel_values_by_grid(batch)["pixel_values"]
        assert len({len(part) for part in parts}) > 1  # Their sizes differ.
        torch.testing.assert_close(given["pixel_values"], torch.cat([parts[row] for row in rows]))
        torch.testing.assert_close(given["image_grid_thw"], batch["image_grid_thw"][list(rows)])
    assert trainer.gate.record.learned
    assert any(
        not torch.equal(value, before[name])
        for name, value in trainer.model.state_dict().items()
        if "visual" in name
    )


def gradients(trainer: Any, batch: dict[str, Any], steps: int) -> tuple[float, dict[str, Any]]:
    """Loss and gradients of one step on a given batch."""
    trainer._generate_and_score_completions = lambda _: dict(batch)
    trainer.current_gradient_accumulation_steps = steps
    trainer.model.zero_grad()
    loss = sum(float(trainer.training_step(trainer.model, None, None)) for _ in range(steps))
    named = trainer.model.named_parameters()
    return loss, {name: each.grad.clone() for name, each in named if each.grad is not None}


def test_loss_and_gradient_are_those_of_trl_on_the_selected_rows(
    folder: Path, tmp_path: Path
) -> None:
    trainer = budgeted(folder, tmp_path)
    trainer.model.train()
    data = pictures()
    batch = trainer._generate_and_score_completions([data[row] for row in range(ROWS)])
    loss, gradient = gradients(trainer, batch, ROWS // MICRO)
    chosen = rows_of(split_pixel_values_by_grid(batch), trainer.gate.record.selected)
    selected = unsplit_pixel_values_by_grid(chosen)
    selected["num_items_in_batch"] = selected["completion_mask"].sum()
    sizes = {"per_device_train_batch_size": LIMIT, "gradient_accumulation_steps": 1}
    plain: Any = DistillationTrainer(**common(folder, tmp_path, **sizes))
    plain.model.train()
    expected, reference = gradients(plain, selected, 1)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert gradient.keys() == reference.keys()
    for name, each in gradient.items():
        torch.testing.assert_close(each, reference[name], rtol=1e-3, atol=1e-6)
