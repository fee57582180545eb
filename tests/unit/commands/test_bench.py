"""Timings of the phases: what is compared, what is left out, what is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from bas_opd.bench import command
from bas_opd.bench.losses import losses
from bas_opd.bench.shapes import random_model
from bas_opd.bench.sides import Comparison, Side, Timed, compare
from bas_opd.cli.main import app
from bas_opd.errors import OutOfMemory

CPU = torch.device("cpu")


def timed(name: str, seconds: float, tokens: int, **more: object) -> Timed:
    side = Side(name=name, run=lambda: tokens, **more)  # type: ignore[arg-type]
    return Timed(side=side, seconds=(seconds,), tokens=tokens, peak_gib=None)


def test_a_side_is_set_beside_ours_in_time_and_tokens() -> None:
    comparison = Comparison(
        name="student",
        shape="8 rows",
        sides=(
            timed("ours", 1.0, 100),
            timed("all rows", 4.0, 200, required_share=0.3),
            timed("fast", 2.0, 100, required_share=0.3),
            timed("products", 0.25, 100, is_floor=True),
        ),
    )
    _, _, _, slow, fast, floor = comparison.lines(judged=True)
    assert slow.endswith("0.25 (0.50): 4.0 times as fast; at most 0.30 required: met")
    assert fast.endswith("0.50 (1.00): 2.0 times as fast; at most 0.30 required: NOT MET")
    assert floor.endswith("ours takes 4.0 times the floor")
    assert not any("required" in line for line in comparison.lines())
    shares = [side["share_of_its_time"] for side in comparison.content()["sides"]]
    assert shares == [1.0, 0.25, 0.5, 4.0]


def test_a_library_that_fails_is_left_out_with_its_reason() -> None:
    def fails() -> int:
        raise IndexError("no such thing")

    def grows() -> int:
        raise MemoryError

    sides = [
        Side(name=name, run=run) for name, run in (("a", lambda: 1), ("b", fails), ("c", grows))
    ]
    found = compare("loss", sides, shape="", device=CPU, repeats=2)
    assert [each.side.name for each in found.sides] == ["a"]
    assert len(found.sides[0].seconds) == 2
    reasons = "\n".join(found.skipped)
    assert "b, which failed (IndexError('no such thing'))." in reasons
    assert "c, which failed (memory ran out)." in reasons


def test_memory_that_runs_out_in_ours_is_a_sentence() -> None:
    def grows() -> int:
        raise MemoryError

    with pytest.raises(OutOfMemory, match="smaller --prompts"):
        compare("loss", [Side(name="ours", run=grows)], shape="", device=CPU, repeats=1)


def test_every_part_is_timed_and_written(tmp_path: Path) -> None:
    small = ("--prompts", "2", "--rollouts", "2", "--side", "64", "--tokens", "3")
    words = (*small, "--ratio", "0.5", "--repeats", "1")
    said = CliRunner().invoke(app, ["bench", *words, "--json", str(tmp_path / "bench.json")])
    assert said.exit_code == 0, said.output
    assert "the three phases together" in said.output
    numbers = json.loads((tmp_path / "bench.json").read_text())
    assert [each["name"] for each in numbers["comparisons"]] == [*command.PARTS, "loss"]
    for comparison in numbers["comparisons"]:
        assert all(side["median_seconds"] > 0 for side in comparison["sides"])
    student = numbers["comparisons"][2]["sides"]
    assert student[0]["processed_tokens"] < student[2]["processed_tokens"]
    assert student[2]["processed_tokens"] < student[1]["processed_tokens"]


def test_an_unknown_part_is_named() -> None:
    said = CliRunner().invoke(app, ["bench", "--parts", "sampling,los"])
    assert said.exit_code == 2
    assert "no part 'los'" in said.stderr


def test_a_loss_has_its_floor_and_the_losses_of_others() -> None:
    both = losses(CPU, tokens=8, width=4, vocabulary=150, chunks=[8], repeats=1)
    assert ["tail" in each.shape for each in both] == [True, False]
    for each in both:
        names = [side.side.name for side in each.sides]
        assert names[:3] == [
            "autograd, fp32 head (ours)",
            "matrix products alone",
            "plain PyTorch, whole vocabulary",
        ]
        assert "TRL, whole vocabulary" in names


def test_a_random_model_has_the_shape_that_is_asked_for() -> None:
    text = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "vocab_size": 900}
    heads = {
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 1,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.5,
            "mrope_section": [6, 5, 5],
            "mrope_interleaved": True,
        },
    }
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2}
    model = random_model(CPU, text={**text, **heads}, vision={**vision, "out_hidden_size": 32})
    assert tuple(model.head.weight.shape) == (900, 32)  # type: ignore[union-attr]
    assert model.processor.image_id == model.network.config.image_token_id  # type: ignore[union-attr]
