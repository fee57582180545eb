"""Timings of the phases: what is compared, what is left out, what is written."""

from __future__ import annotations

import importlib
import importlib.util
import json
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_models import build_small_model
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from transformers.models.qwen3_5 import modeling_qwen3_5
from typer.testing import CliRunner

from bas_opd.bench import command
from bas_opd.bench.floor import _recorded, floor
from bas_opd.bench.losses import _Setup, losses
from bas_opd.bench.phases import PlainDistillation, _learner, updating
from bas_opd.bench.sampling import decoding, prefilling, sampling
from bas_opd.bench.shapes import random_model
from bas_opd.bench.sides import Comparison, Side, Timed, compare
from bas_opd.bench.subject import Size, Subject, endless, pictures
from bas_opd.cli.main import app
from bas_opd.data.views import crop_view
from bas_opd.distill.loss import DistillSettings
from bas_opd.errors import OutOfMemory
from bas_opd.learn import Distillation
from bas_opd.model.base import model_folder
from bas_opd.model.family import Family
from bas_opd.model.loading import open_model
from bas_opd.teacher import SelfTeacher

CPU = torch.device("cpu")
SMALL = (
    "--prompts", "2", "--rollouts", "2", "--side", "64", "--tokens", "3", "--ratio", "0.5",
    "--repeats", "1",
)  # fmt: skip


SPEEDS = (("ours", 1.0), ("slow", 3.0), ("fast", 2.0))


@pytest.fixture
def subject(tmp_path: Path) -> Subject:
    size = Size(prompts=2, per_prompt=2, side=64, tokens=3, ratio=0.5, micro_batch=128)
    model = open_model(model_folder("small"), device="cpu")
    return Subject(model=endless(model), examples=pictures(tmp_path, 2, 64), size=size)


def timed(name: str, seconds: float, tokens: int, **more: object) -> Timed:
    return Timed(name=name, seconds=(seconds,), tokens=tokens, peak_gib=None, **more)  # type: ignore[arg-type]


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
    floors = [side["is_floor"] for side in comparison.content()["sides"]]
    assert floors == [False, False, False, True]


def test_a_library_that_fails_is_left_out_with_its_reason() -> None:
    def fails() -> int:
        raise IndexError("no such thing")

    def grows() -> int:
        raise MemoryError

    sides = [
        Side(name=name, run=run) for name, run in (("a", lambda: 1), ("b", fails), ("c", grows))
    ]
    found = compare("loss", sides, shape="", device=CPU, repeats=2)
    assert [each.name for each in found.sides] == ["a"]
    assert len(found.sides[0].seconds) == 2
    reasons = "\n".join(found.skipped)
    assert "b, which failed: IndexError: no such thing." in reasons
    assert "c, which failed: there is not enough memory." in reasons


def test_a_side_that_fails_later_is_left_out_too() -> None:
    runs: list[int] = []

    def fails_at_last() -> int:
        runs.append(1)
        if len(runs) == 3:
            raise IndexError("no such thing")
        return 1

    sides = [Side(name="a", run=lambda: 1), Side(name="b", run=fails_at_last)]
    found = compare("loss", sides, shape="", device=CPU, repeats=4)
    assert [each.name for each in found.sides] == ["a"]
    assert len(found.sides[0].seconds) == 4
    assert found.skipped == ("b, which failed: IndexError: no such thing.",)


@pytest.mark.parametrize("error", [MemoryError(), OutOfMemory("No micro-batch fits.")])
def test_a_part_that_does_not_fit_is_named_and_the_others_are_timed(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def grows(*_: object, **__: object) -> Comparison:
        raise error

    monkeypatch.setitem(command.PHASES, "teacher", grows)
    path = tmp_path / "bench.json"
    words = ("--parts", "sampling,teacher,student", *SMALL, "--json", str(path))
    said = CliRunner().invoke(app, ["bench", *words])
    assert said.exit_code == 0, said.output
    numbers = json.loads(path.read_text())
    assert [each["name"] for each in numbers["comparisons"]] == ["sampling", "student"]
    (reason,) = numbers["failed"]
    assert reason in said.output
    assert reason.startswith("teacher was not timed: there is not enough memory. Choose a smaller")


def test_no_number_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def grows(*_: object, **__: object) -> int:
        raise MemoryError

    monkeypatch.setattr(_Setup, "_run", grows)
    said = CliRunner().invoke(app, ["bench", "--parts", "loss", *SMALL])
    assert said.exit_code == 1
    assert "loss was not timed: there is not enough memory. Name a model" in said.stdout
    assert "Nothing could be timed" in said.stderr


def test_a_model_that_does_not_fit_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def grows(*_: object, **__: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to ...")

    monkeypatch.setattr(command, "open_model", grows)
    said = CliRunner().invoke(app, ["bench"])
    assert said.exit_code == 1
    assert "There is not enough memory for the model small. Name a smaller one" in said.stderr


def test_phases_without_a_way_of_others_have_no_sum() -> None:
    def phases(*of_student: Timed) -> list[Comparison]:
        ours, theirs = timed("ours", 1.0, 1), timed("theirs", 3.0, 1, required_share=0.5)
        sides = dict.fromkeys(command.STEP, (ours, theirs)) | {"student": of_student}
        return [Comparison(name=name, shape="", sides=each) for name, each in sides.items()]

    whole = phases(timed("ours", 1.0, 1), timed("theirs", 3.0, 1, required_share=0.5))
    (step,) = command._whole_step(whole)
    assert step.lines()[-1].endswith("3.0 times as fast")
    assert command._whole_step(phases(timed("ours", 1.0, 1), timed("shared", 3.0, 1))) == []


def test_a_step_is_set_beside_the_fastest_way_of_others() -> None:
    ours, slow, fast = (timed(name, s, 1, required_share=0.5) for name, s in SPEEDS)
    sides = dict.fromkeys(command.STEP, (ours, slow)) | {"sampling": (ours, slow, fast)}
    found = [Comparison(name=name, shape="", sides=each) for name, each in sides.items()]
    (step,) = command._whole_step(found)
    assert [side.median for side in step.sides] == [3.0, 8.0]
    assert step.shape.endswith("Released: fast; slow; slow")


def test_the_released_loss_has_the_same_gradient(subject: Subject) -> None:
    rollouts, model = subject.rollouts(), subject.model
    rows = range(len(rollouts))
    scores = SelfTeacher(model, crop_view, tokens_per_batch=4096).score(rollouts, rows)
    settings = DistillSettings()
    found = []
    for objective, shares in (
        (Distillation(scores, model.logits, settings), True),
        (PlainDistillation(scores, model.logits, settings), False),
    ):
        learner = _learner(subject, share_prompts=shares)
        loss = learner.accumulate(rollouts, rows, objective).loss
        found.append([loss, *(p.grad.clone() for p in learner.parameters if p.grad is not None)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)


def test_the_student_takes_the_optimizer_s_step_and_keeps_its_weights(subject: Subject) -> None:
    before = {name: p.clone() for name, p in subject.model.trainable().items()}
    steps: list[torch.optim.Optimizer] = []
    hook = register_optimizer_step_post_hook(lambda optimizer, *_: steps.append(optimizer))
    try:
        updating(subject, repeats=2)
    finally:
        hook.remove()
    assert len(steps) == 1 + 3 * 3  # to record the products, and three of each side
    assert len(set(map(id, steps))) == 1, "Moments are kept twice."
    for name, p in subject.model.trainable().items():
        assert torch.equal(p, before[name])


def test_a_floor_has_the_products_that_are_computed_and_no_others() -> None:
    frozen, first, second = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(3, 2)
    frozen.requires_grad_(requires_grad=False)
    network = nn.Sequential(frozen, first, nn.Sequential(nn.Tanh(), second))
    model: Any = SimpleNamespace(network=network, fast_head=None)

    def run() -> int:
        with torch.no_grad():
            second(torch.zeros(6, 3))
        return int(network(torch.zeros(2, 5, 4)).sum().item()) * 0 + 7

    found, tokens = _recorded(model, run)
    assert tokens == 7
    seen = [(each.rows, each.has_input_gradient, each.has_weight_gradient) for each in found]
    assert seen == [(6, False, False), (10, False, False), (10, False, True), (10, True, True)]
    assert [each.weight for each in found] == [
        second.weight, frozen.weight, first.weight, second.weight
    ]  # fmt: skip
    network(torch.zeros(2, 4))
    assert len(found) == 4, "Later passes are recorded too."


def test_memory_that_runs_out_for_one_side_changes_no_other(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[int] = []

    def record(*arguments: Any) -> Any:
        found, tokens = _recorded(*arguments)
        recorded.append(len(found))
        return found, tokens

    monkeypatch.setattr("bas_opd.bench.floor._recorded", record)
    whole = updating(subject, repeats=1)
    assert whole.skipped == ()
    (products,) = recorded
    call, is_full = Distillation.__call__, True
    selected = set(subject.selected(subject.rollouts()))

    def crowded(self: Any, hidden: Any, packed: Any) -> Any:
        nonlocal is_full
        if is_full and not selected.issuperset(packed.rows):
            is_full = False
            raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB.")
        return call(self, hidden, packed)

    # Only one side learns by this loss from rows that were not selected.
    monkeypatch.setattr(Distillation, "__call__", crowded)
    recorded.clear()
    found = updating(subject, repeats=1)
    (said,) = found.skipped
    assert said.startswith("batches of 128 tokens for all rows, shared, as memory ran out; it was")
    assert recorded == [products]
    assert [each.tokens for each in found.sides][::3] == [each.tokens for each in whole.sides][::3]


def test_a_floor_has_no_products_of_a_batch_that_did_not_fit() -> None:
    layer = nn.Linear(4, 4)
    model: Any = SimpleNamespace(
        network=nn.Sequential(layer), fast_head=None, precision=torch.float32, device=CPU
    )
    limit, rows = 8, []

    def run() -> int:
        nonlocal limit
        while limit > 2:
            layer(torch.zeros(limit, 4))
            limit //= 2
        layer(torch.zeros(limit, 4))
        return 5

    side = floor(model, run, limit=lambda: limit)
    multiply = torch.mm
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "mm", lambda a, b: rows.append(len(a)) or multiply(a, b))
        assert side.run() == 5
    assert rows[0] == 2
    assert 8 not in rows


def test_one_step_of_several_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 6.0] * 4)
    monkeypatch.setattr("bas_opd.bench.sides.perf_counter", lambda: next(clock))
    sides = [Side(name=str(steps), run=lambda: 1, steps=steps) for steps in (1, 3)]
    found = compare("decoding", sides, shape="", device=CPU, repeats=1)
    assert [side.median for side in found.sides] == [6.0, 2.0]


@pytest.mark.parametrize("family", ["qwen3_5", "qwen2_5_vl"])
def test_every_family_is_prefilled_and_decoded_by_transformers_too(
    family: Family, tmp_path: Path
) -> None:
    build_small_model(tmp_path, family=family)
    size = Size(prompts=2, per_prompt=2, side=64, tokens=3)
    model = endless(open_model(tmp_path, device="cpu"))
    subject = Subject(model=model, examples=pictures(tmp_path, 2, 64), size=size)
    for phase in (prefilling, decoding):
        found = phase(subject, repeats=1)
        assert found.skipped == ()


def test_sides_of_transformers_have_none_of_our_parts(tmp_path: Path) -> None:
    build_small_model(tmp_path, family="qwen3_5")
    size = Size(prompts=2, per_prompt=2, side=64, tokens=3)
    model = endless(open_model(tmp_path, device="cpu"))
    subject = Subject(model=model, examples=pictures(tmp_path, 2, 64), size=size)
    seen: list[tuple[str, bool, bool]] = []

    def look(network: Any, _: Any, given: dict[str, Any]) -> None:
        layers = [] if given.get("past_key_values") is None else given["past_key_values"].layers
        kinds = {type(layer).__module__ for layer in layers}
        is_ours = hasattr(modeling_qwen3_5.causal_conv1d_fn, "reference")  # type: ignore[attr-defined]
        seen.append((network.config._attn_implementation, is_ours, "bas_opd.model.cache" in kinds))

    model.network.register_forward_pre_hook(look, with_kwargs=True)  # Ours calls what is within.
    for phase in (prefilling, decoding, sampling):
        seen.clear()
        phase(subject, repeats=1)
        assert set(seen) == {("sdpa", False, False)}, phase


def test_the_model_is_gone_when_the_loss_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    models: list[weakref.ref[Any]] = []
    gone: list[bool] = []
    load = command._model

    def loading(*words: Any) -> Any:
        model = load(*words)
        models.append(weakref.ref(model.network))
        return model

    def timing(*_: object, **__: object) -> list[Comparison]:
        gone.extend(model() is None for model in models)
        return []

    monkeypatch.setattr(command, "_model", loading)
    monkeypatch.setattr(command, "losses", timing)
    size = Size(prompts=2, per_prompt=2, side=64, tokens=3, ratio=0.5)
    request = command.BenchRequest(
        model="small", device="cpu", size=size, parts=command.PARTS, repeats=1
    )
    command.measure(request, lambda _: None)
    assert gone == [True]


def test_a_bench_that_is_stopped_leaves_the_numbers_of_its_finished_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bench.json"

    def stopped(*_: object, **__: object) -> list[Comparison]:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "losses", stopped)
    words = ["bench", "--json", str(path), *SMALL, "--parts", "prefill,loss"]
    monkeypatch.setattr("sys.argv", ["/bin/bas-opd", *words])
    assert CliRunner().invoke(app, words).exit_code != 0
    found = json.loads(path.read_text())
    assert [each["name"] for each in found["comparisons"]] == ["prefill"]
    assert found["command"].startswith("bas-opd bench")


@pytest.mark.parametrize("place", ["nowhere/bench.json", "."])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_timed(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "measure", lambda *_: pytest.fail("It was timed."))
    said = CliRunner().invoke(app, ["bench", "--json", str(tmp_path / place)])
    assert said.exit_code == 2
    assert "cannot be written" in said.stderr


@pytest.mark.parametrize("ratio", ["nan", "-3", "0", "1.5"])
def test_a_share_of_rows_that_cannot_be_meant_is_refused(ratio: str) -> None:
    said = CliRunner().invoke(app, ["bench", "--ratio", ratio])
    assert said.exit_code == 2
    assert "Correct --ratio" in said.stderr


def test_every_part_is_timed_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["bench", "--json", str(tmp_path / "bench.json"), *SMALL]
    monkeypatch.setattr("sys.argv", ["/bin/bas-opd", *words])
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 0, said.output
    assert "all phases (released)" in said.output
    numbers = json.loads((tmp_path / "bench.json").read_text())
    assert [each["name"] for each in numbers["comparisons"]] == [*command.PARTS, "loss", "step"]
    for comparison in numbers["comparisons"]:
        floors = [side["side"] for side in comparison["sides"] if side["is_floor"]]
        has_floor = comparison["name"] not in ("sampling", "step")
        assert floors == ["matrix products alone"] * has_floor
        assert all(side["median_seconds"] > 0 for side in comparison["sides"])
    assert numbers["command"] == f"bas-opd bench {' '.join(SMALL)}"
    sampling, *_, student = (each["sides"] for each in numbers["comparisons"][:5])
    assert [side["side"] for side in sampling[-2:]] == [
        "generate, one prompt a row",
        "generate, num_return_sequences=2",
    ]
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
        names = [side.name for side in each.sides]
        assert names[:3] == [
            "autograd, fp32 head (ours)",
            "matrix products alone",
            "plain PyTorch, whole vocabulary",
        ]


def test_the_loss_of_trl_is_among_them() -> None:
    pytest.importorskip("trl")
    both = losses(CPU, tokens=8, width=4, vocabulary=150, chunks=[8], repeats=1)
    for each in both:
        assert "TRL, whole vocabulary" in [side.name for side in each.sides]


def test_a_library_that_cannot_be_imported_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(importlib, "import_module", fails)
    found = losses(CPU, tokens=8, width=4, vocabulary=150, chunks=[8], repeats=1)
    assert "trl.experimental.gkd" in "\n".join(found[0].skipped)
    setup = _Setup(CPU, 8, 4, 150)
    setup.hidden = SimpleNamespace(device=torch.device("cuda"))  # type: ignore[assignment]
    setup.hidden.detach = lambda: torch.zeros(8, 4)  # type: ignore[method-assign]
    others, _ = setup.others()
    assert [each.name.partition(",")[0] for each in others[-2:]] == ["Liger", "orda-kernel"]
    for other, package in zip(others[-2:], ("liger_kernel", "orda_kernel"), strict=True):
        with pytest.raises(ImportError, match=package):
            other.run()


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
