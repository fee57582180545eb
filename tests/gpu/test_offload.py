"""Moments and teacher in host memory on a GPU: the same bits, in less of its memory."""

from __future__ import annotations

import copy
import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from baseline_fixtures import short_config
from run_fixtures import Silent, events_of
from small_models import build_small_model
from stage_fixtures import crop_teacher, draw, make_examples, make_model
from torch import Tensor, nn

from bas_opd.compute import streaming
from bas_opd.compute.streaming import HostTensors, visit
from bas_opd.compute.world import World
from bas_opd.data.views import crop_view, full_view
from bas_opd.learn.offloaded import OffloadedAdamW
from bas_opd.model.loading import open_model
from bas_opd.model.vlm import VisionLanguageModel
from bas_opd.model.weights import ShadowWeights
from bas_opd.rollout import Sampler, SamplingSettings
from bas_opd.run import loop
from bas_opd.teacher import FrozenTeacher
from bas_opd.types import PromptBatch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

PIECE = 2**18
SHAPES = [(33, 7), (129,), (), (1024, 777), (3,), *[(512, 512)] * 40, (2048, 1025)]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "PIECE", PIECE)


def trained(
    kind: type[torch.optim.AdamW], steps: int = 5
) -> tuple[list[nn.Parameter], torch.optim.AdamW, int]:
    """Take steps on random gradients; return the parameters, the optimizer and the peak bytes."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    generator = torch.Generator("cuda").manual_seed(0)

    def normal(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=generator, device="cuda")

    weights = [nn.Parameter(normal(shape)) for shape in SHAPES]
    optimizer = kind(weights, lr=1e-2, weight_decay=0.1, fused=True)
    for step in range(steps):
        for place, weight in enumerate(weights):
            gradient = normal(tuple(weight.shape))
            weight.grad = None if place == 3 and step % 2 == 0 else gradient
        optimizer.step()
        optimizer.zero_grad()
    return weights, optimizer, torch.cuda.max_memory_allocated() - before


def test_every_bit_is_that_of_the_fused_step_and_the_peak_is_lower() -> None:
    theirs, resident, their_peak = trained(torch.optim.AdamW)
    expected = [
        [
            weight.detach().cpu(),
            *(resident.state[weight][k].cpu() for k in ("exp_avg", "exp_avg_sq")),
        ]
        for weight in theirs
    ]
    counts = [float(resident.state[weight]["step"]) for weight in theirs]
    del theirs, resident
    ours, offload, our_peak = trained(OffloadedAdamW)
    for weight, tensors, count in zip(ours, expected, counts, strict=True):
        state = offload.state[weight]
        assert state["exp_avg"].device.type == state["exp_avg_sq"].device.type == "cpu"
        assert float(state["step"]) == count
        for one, other in zip(
            (weight.detach().cpu(), state["exp_avg"], state["exp_avg_sq"]), tensors, strict=True
        ):
            assert torch.equal(one, other)
    moments = 2 * 4 * sum(weight.numel() for weight in ours)
    sizes = {place: weight.numel() for place, weight in enumerate(ours)}
    in_flight = 2 * 4 * streaming.most_in_flight(sizes)
    print(f"peak {our_peak / 2**20:.1f} MiB, resident {their_peak / 2**20:.1f} MiB")
    assert our_peak <= their_peak - moments + in_flight + 2**21


def test_no_copy_overtakes_another() -> None:
    """Many visits without a pause, each over twenty pieces, with slow and quick work."""
    shapes = {number: (PIECE - 128 * number,) for number in range(20)}
    host = HostTensors(shapes, torch.device("cuda"))
    assert host.flat.is_pinned()
    burden = torch.randn(2048, 2048, device="cuda")

    def work(piece: dict[int, tuple[Tensor, ...]]) -> None:
        for number, (tensor,) in piece.items():
            if number % 3 == 0:
                burden.copy_((burden @ burden).tanh())
            # Memory that a copy might still use is overwritten if it was handed on too early.
            torch.full_like(tensor, torch.nan)
            tensor += number + 1

    for _ in range(20):
        visit([host], work)
    for number, tensor in host.tensors.items():
        assert (tensor == 20 * (number + 1)).all()


def models(folder: Path, precision: torch.dtype) -> list[VisionLanguageModel]:
    cpu = make_model(folder)
    return [
        VisionLanguageModel(copy.deepcopy(cpu.network).cuda(), cpu.processor, precision=precision)
        for _ in range(2)
    ]


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_teacher_in_host_memory_says_and_follows_the_same(
    precision: torch.dtype, small_qwen35: Path, tmp_path: Path
) -> None:
    rollouts = draw(make_model(small_qwen35), make_examples(tmp_path))
    found = []
    for model, offload in zip(models(small_qwen35, precision), (False, True), strict=True):
        teacher = crop_teacher(model, offload=offload)
        generator = torch.Generator("cuda").manual_seed(3)
        said: list[Tensor] = []
        for _ in range(3):
            with torch.no_grad():
                for weight in model.trainable().values():
                    noise = torch.randn(weight.shape, generator=generator, device="cuda")
                    weight += 0.05 * noise
            before = [weight.detach().clone() for weight in model.trainable().values()]
            scores = teacher.score(rollouts, (4, 0, 1))
            said += [chunk.logits.cpu() for chunk in scores.chunks(scores.rows, 8)]
            for weight, own in zip(model.trainable().values(), before, strict=True):
                assert torch.equal(weight, own)
            teacher.follow()
        kept = teacher.weights.state_dict()
        assert {w.device.type for w in kept.values()} == {"cpu" if offload else "cuda"}
        found.append((said, {name: weight.cpu() for name, weight in kept.items()}))
    (said, weights), (ours, our_weights) = found
    assert all(torch.equal(one, other) for one, other in zip(ours, said, strict=True))
    assert all(torch.equal(our_weights[name], weight) for name, weight in weights.items())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_another_model_in_host_memory_says_the_same(
    precision: Any, small_qwen35: Path, tmp_path: Path
) -> None:
    rollouts = draw(make_model(small_qwen35), make_examples(tmp_path))
    folder = build_small_model(tmp_path / "larger", hidden=128, layers=8, tied=False, seed=5)
    found = []
    for on_host in (False, True):
        model = open_model(folder, device="cuda", precision=precision, frozen=True, on_host=on_host)
        if on_host:
            model.shard(World(), on_host=True)
            assert model.shards is not None
            assert all(rows.is_pinned() for rows in model.shards.rows.values())
        teacher, said = FrozenTeacher(model, crop_view), []
        for tokens in (16_384, 1, 16_384):
            teacher.tokens_per_batch = tokens
            scores = teacher.score(rollouts, (4, 0, 1))
            said += [chunk.logits.cpu() for chunk in scores.chunks(scores.rows, 8)]
        if on_host:
            assert not any(p.untyped_storage().nbytes() for p in model.network.parameters())
        found.append(said)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_graph_never_reads_weights_that_were_lent_before(
    precision: torch.dtype, small_qwen35: Path, tmp_path: Path
) -> None:
    model, _ = models(small_qwen35, precision)
    initial = ShadowWeights(model, offload=True)
    batch = PromptBatch(step=0, examples=make_examples(tmp_path))
    sampler = Sampler(model, full_view, SamplingSettings(max_response_tokens=12))
    drawn, fillers = [], []
    for _ in range(3):
        with initial.lent():
            drawn.append(sampler.generate(batch).tokens)
        # They take the memory that was lent, so the next weights lie elsewhere.
        fillers += [torch.full_like(w, torch.nan) for w in model.trainable().values()]
        with torch.no_grad():
            for weight in model.trainable().values():
                weight.fill_(torch.nan)
    assert sampler._decode._steps
    assert all(torch.equal(tokens, drawn[0]) for tokens in drawn[1:])


@pytest.mark.parametrize("preset", ["learned25", "sft-unfiltered", "grpo"])
def test_a_run_on_a_gpu_is_the_same_in_both_forms(
    preset: str, small_qwen35: Path, tmp_path: Path
) -> None:
    """To what a GPU's unordered sums allow."""
    losses = []
    for form in ("false", "true"):
        settings = ("model.device=cuda", f"optim.offload={form}", "select.replay_start=4")
        used = settings if preset == "learned25" else settings[:2]
        config = short_config(preset, tmp_path, small_qwen35, form, *used)
        run = loop.train(config, Silent()).directory
        losses.append([e["loss"] for e in events_of(run) if e["event"] == "step"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3, abs=1e-6)
