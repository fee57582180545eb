"""A run whose moments and teacher are in host memory is the run that keeps them on the device."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from baseline_fixtures import PRESETS, reward_even_tokens, short_config
from run_fixtures import OFTEN, Silent, events_of, stop_at, tiny
from run_states import assert_same_end
from safetensors.torch import load_file
from shapes import make_pictures
from small_models import build_small_model

from bas_opd.compute import streaming
from bas_opd.config import Config
from bas_opd.data.order import PromptStream
from bas_opd.errors import OutOfMemory, PreemptionError
from bas_opd.learn import Learner, offloaded
from bas_opd.model.weights import ShadowWeights
from bas_opd.rollout import Sampler
from bas_opd.run import checkpoint, footprint, loop
from bas_opd.run.checkpoint import published
from bas_opd.run.state import TrainState, build_method, load_policy

Make = Callable[..., Config]
FORMS = ("optim.offload=false", "optim.offload=true")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "PIECE", 20_000)  # a dozen pieces


@pytest.fixture
def config(small_qwen35: Path, tmp_path: Path) -> Make:
    data = make_pictures(tmp_path / "data", n=16, seed=1).folder
    return lambda output, *overrides, model=small_qwen35: tiny(
        model, data, tmp_path / output, *OFTEN, *overrides
    )


def train(config: Config) -> Path:
    return loop.train(config, Silent()).directory


def assert_same_files(run: Path, other: Path) -> None:
    """Compare every tensor of every checkpoint, byte for byte."""
    files = sorted(path.relative_to(other) for path in other.glob("checkpoints/*/*.safetensors"))
    assert files == sorted(p.relative_to(run) for p in run.glob("checkpoints/*/*.safetensors"))
    for file in files:
        assert (run / file).read_bytes() == (other / file).read_bytes(), file


@pytest.mark.parametrize(
    "settings",
    [
        ("teacher.mode=ema",),
        ("teacher.mode=frozen",),
        ("teacher.mode=live",),
        ("lora.rank=4",),
        ("model.precision=bfloat16",),
        ("optim.share_prompts=false", "model.gradient_checkpointing=true"),
    ],
    ids=" ".join,
)
def test_both_forms_write_the_same_bytes(settings: tuple[str, ...], config: Make) -> None:
    resident, offload = (train(config(form, form, *settings)) for form in FORMS)
    assert_same_files(offload, resident)
    trained = load_file(published(offload / "checkpoints")[0] / "optimiser.safetensors")
    assert any(value.any() for value in trained.values())


def test_both_forms_write_the_same_bytes_with_a_head_of_its_own(
    config: Make, tmp_path: Path
) -> None:
    untied = build_small_model(tmp_path / "untied", tied=False)
    resident, offload = (train(config(form, form, model=untied)) for form in FORMS)
    assert_same_files(offload, resident)
    assert_same_end(offload, resident)


@pytest.mark.parametrize("name", PRESETS)
def test_both_forms_of_a_baseline_write_the_same_bytes(
    name: str, small_qwen35: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward_even_tokens(monkeypatch)
    resident, offload = (
        train(short_config(name, tmp_path, small_qwen35, form, form)) for form in FORMS
    )
    assert_same_files(offload, resident)
    assert_same_end(offload, resident)


def test_a_skipped_step_changes_nothing_in_either_form(
    config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    accumulate = Learner.accumulate

    def broken(learner: Learner, rollouts: Any, *rest: Any) -> Any:
        found = accumulate(learner, rollouts, *rest)
        if rollouts.step in (0, 2):
            gradient = learner.parameters[0].grad
            assert gradient is not None
            gradient.view(-1)[0] = torch.nan
        return found

    monkeypatch.setattr(Learner, "accumulate", broken)
    resident, offload = (train(config(form, form)) for form in FORMS)
    assert [e["is_valid"] for e in events_of(offload) if e["event"] == "step"] == [
        False, True, False, True
    ]  # fmt: skip
    assert_same_files(offload, resident)


@pytest.mark.parametrize("first", FORMS)
@pytest.mark.parametrize("poll", [12, 19])
def test_a_checkpoint_of_one_form_is_resumed_in_the_other(
    first: str, poll: int, config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    (second,) = set(FORMS) - {first}
    whole = train(config("whole"))
    with monkeypatch.context() as patch:
        stop_at(patch, poll)
        with pytest.raises(PreemptionError):
            train(config("run", first))
    assert published(whole.parent / "run" / "checkpoints")
    run = train(config("run", second))
    assert_same_end(run, whole)
    assert_same_files(run, whole)


FULL = torch.OutOfMemoryError("Tried to allocate 2.00 GiB.")


def fail_on_call(patch: pytest.MonkeyPatch, owner: Any, name: str, number: int) -> None:
    real, calls = getattr(owner, name), 0

    def crowded(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            raise FULL
        return real(*args, **options)

    patch.setattr(owner, name, crowded)


def pieces_of(config: Config) -> int:
    """How many pieces the moments of a run are cut into."""
    return len(streaming.cut({n: p.numel() for n, p in load_policy(config).trainable().items()}))


@pytest.mark.parametrize("where", ["moments", "resident", "teacher"])
def test_an_update_cut_short_is_never_saved(
    where: str, config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(config("whole"))
    settings = ("run.checkpoint_every=2", FORMS[where != "resident"])
    with monkeypatch.context() as patch:  # in the last of four steps
        if where == "moments":
            pieces = pieces_of(config("run"))
            assert pieces > 4
            fail_on_call(patch, offloaded, "move", 3 * pieces + 3)
        elif where == "resident":
            fail_on_call(patch, torch.optim.AdamW, "_init_group", 4)
        else:
            fail_on_call(patch, ShadowWeights, "follow", 4)
        with pytest.raises(OutOfMemory, match=r"Tried to allocate.* checkpoints are as they were"):
            train(config("run", *settings))
    (kept,) = published(whole.parent / "run" / "checkpoints")
    assert kept.name == "step-00000002"
    assert_same_end(train(config("run", *settings)), whole)


@pytest.mark.parametrize("name", ["bas-opd", "dapo"])
def test_a_checkpoint_is_written_from_host_memory_before_that_changes(
    name: str,
    config: Make,
    small_qwen35: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reward_even_tokens(monkeypatch)

    def make(output: str, form: str) -> Config:
        if name == "bas-opd":
            return config(output, form)
        return short_config(name, tmp_path, small_qwen35, output, form)

    resident = train(make("resident", FORMS[0]))
    save, generate, saving = checkpoint.save_file, Sampler.generate, threading.Event()
    began_meanwhile: list[bool] = []

    def slow(tensors: Any, file: Path, *rest: Any) -> None:
        if file.stem == "optimiser":
            saving.set()
            time.sleep(1.0)
            saving.clear()
        save(tensors, file, *rest)

    def watched(sampler: Sampler, batch: Any) -> Any:
        began_meanwhile.append(batch.step > 0 and batch.round == 0 and saving.wait(5))
        return generate(sampler, batch)

    monkeypatch.setattr(checkpoint, "save_file", slow)
    monkeypatch.setattr(Sampler, "generate", watched)
    offload = train(make("offload", FORMS[1]))
    assert any(began_meanwhile)
    assert_same_files(offload, resident)
    assert_same_end(offload, resident)


def test_a_checkpoint_copies_nothing_that_is_in_host_memory(config: Make) -> None:
    for form, is_copied in zip(FORMS, (True, False), strict=True):
        method = build_method(config("run", form))
        shadow = method.parts()["teacher"]
        state = TrainState(method=method, prompts=PromptStream((), per_step=1, seed=0))
        kept = state.capture().tensors["teacher"]
        for key, tensor in shadow.state_dict().items():
            assert (kept[key].data_ptr() != tensor.data_ptr()) == is_copied


def test_a_host_too_small_is_refused_before_the_model_is_loaded(
    config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footprint, "free_host_memory", lambda: 10**6)
    monkeypatch.setattr(loop, "build_method", lambda *_, **__: pytest.fail("It was loaded."))
    with pytest.raises(OutOfMemory, match=r"optim.offload is true.* only 0\.0 GB are free"):
        train(config("run", FORMS[1]))
