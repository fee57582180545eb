"""A run whose moments take 8 bits: it trains, resumes exactly, and is counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from run_fixtures import OFTEN, Silent, stop_at, tiny
from run_states import assert_same_end
from safetensors.torch import load_file
from shapes import make_pictures

from bas_opd.config import Config
from bas_opd.errors import ConfigError, PreemptionError
from bas_opd.run import loop
from bas_opd.run.checkpoint import published
from bas_opd.run.footprint import measure

Make = Callable[..., Config]
FORM = "optim.moments=8bit"


@pytest.fixture
def config(small_qwen35: Path, tmp_path: Path) -> Make:
    data = make_pictures(tmp_path / "data", n=16, seed=1).folder
    return lambda output, *overrides: tiny(
        small_qwen35, data, tmp_path / output, *OFTEN, *overrides
    )


def train(config: Config) -> Path:
    return loop.train(config, Silent()).directory


@pytest.mark.parametrize(
    "settings",
    [(), ("lora.rank=4",), ("optim.offload=true",), ("model.precision=bfloat16",)],
    ids=lambda each: " ".join(each) or "as it is",
)
def test_stopped_and_resumed_it_ends_in_the_same_state(
    settings: tuple[str, ...], config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(config("whole", FORM, *settings))
    with monkeypatch.context() as patch:
        stop_at(patch, 14)
        with pytest.raises(PreemptionError):
            train(config("run", FORM, *settings))
    assert published(whole.parent / "run" / "checkpoints")
    run = train(config("run", FORM, *settings))
    if "lora.rank=4" not in settings:
        assert_same_end(run, whole)
    files = sorted(path.relative_to(whole) for path in whole.glob("checkpoints/*/*.safetensors"))
    for file in files:
        assert (run / file).read_bytes() == (whole / file).read_bytes(), file


def test_a_checkpoint_has_bytes_as_the_plan_counts_them(config: Make) -> None:
    settings = config("run", FORM)
    run = train(settings)
    state = load_file(published(run / "checkpoints")[0] / "optimiser.safetensors")
    assert {tensor.dtype for tensor in state.values()} == {torch.uint8, torch.float32}
    kept = sum(tensor.nbytes for name, tensor in state.items() if not name.startswith("step."))
    memory, full = measure(settings), measure(config("other"))
    assert kept == memory.adamw < 0.5 * full.adamw
    assert memory.host_copy == full.host_copy - full.adamw + memory.adamw
    saved = full.adamw - memory.adamw
    assert full.device - memory.device == saved - memory.unpacked  # Here one piece is everything.
    assert memory.on_host(offload=True) == memory.teacher
    assert memory.on_device(offload=True) == memory.device - memory.teacher


def test_offloading_moves_the_teacher_and_changes_no_byte(config: Make) -> None:
    assert_same_end(
        train(config("offloaded", FORM, "optim.offload=true")), train(config("resident", FORM))
    )


def test_a_run_is_not_resumed_with_other_moments(config: Make) -> None:
    train(config("run"))
    with pytest.raises(ConfigError, match=r"optim\.moments"):
        train(config("run", FORM, "run.steps=5"))
