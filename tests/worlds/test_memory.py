"""What a plan computes for each of several processes, against the bytes of their tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
import torch
from memory_fixtures import Live, peak_of_an_update, size_of
from ranks import in_world
from run_fixtures import tiny
from small_models import build_small_model
from stage_fixtures import crop_teacher, make_examples, make_model
from torch import Tensor

from bas_opd.compute.world import World
from bas_opd.data.images import open_image
from bas_opd.data.views import crop_view, full_view
from bas_opd.distill.loss import DistillSettings
from bas_opd.learn import Distillation, Learner, OptimizerSettings
from bas_opd.learn.eight_bit import UNPACKED, EightBitAdamW
from bas_opd.model import sharding
from bas_opd.model.activations import activations, image_kept, text_kept
from bas_opd.model.loading import LoraSettings, open_model
from bas_opd.model.sharding import Shards
from bas_opd.model.weights import HeadWeights
from bas_opd.rollout import Sampler, SamplingSettings
from bas_opd.run.footprint import measure
from bas_opd.teacher import FrozenTeacher
from bas_opd.types import Example, PromptBatch

STATE = ("weights", "gradients", "adamw", "teacher", "gathered", "pass_gradients", "casts")
LORA = LoraSettings(rank=2)
T = TypeVar("T")


def held(
    folder: Path,
    examples: tuple[Example, ...],
    precision: torch.dtype,
    lora: LoraSettings | None,
    offload: bool,
    world: World,
) -> dict[str, int]:
    """Take a step, and return the bytes of all tensors that it kept."""
    torch.manual_seed(0)
    model = make_model(folder, precision=precision, lora=lora)
    model.shard(world)
    shards = model.shards
    assert shards is not None
    sampling = SamplingSettings(per_prompt=2, max_response_tokens=3)
    rollouts = Sampler(model, full_view, sampling, world=world).generate(
        PromptBatch(step=3, examples=examples)
    )
    rows = rollouts.candidates()
    teacher = crop_teacher(model, world=world, offload=offload)
    scores = teacher.score(rollouts, rows)
    settings = OptimizerSettings(warmup_steps=0, offload=offload)
    learner = Learner(model, settings, world=world)
    objective = Distillation(scores, head=model.logits, settings=DistillSettings(k=20))
    found: dict[str, int] = {"exchanged": 0}
    known: set[int] = set()
    network = list(model.network.parameters())

    def before_the_sum(act: Callable[[Shards], None], own: Shards) -> None:
        found["pass_gradients"] = size_of(p.grad for p in network)
        known.update(p.grad.data_ptr() for p in network if p.grad is not None)
        found["gathered"] = sum(p.untyped_storage().nbytes() for p in network)
        act(own)

    def in_the_sum(
        act: Callable[[World, Tensor], Callable[[], Tensor]], own: World, parts: Tensor
    ) -> Callable[[], Tensor]:
        part = act(own, parts)()
        copied = [] if parts.data_ptr() in known else [parts]
        found["exchanged"] = max(found["exchanged"], size_of([*copied, part]))
        return lambda: part

    def before_the_step(*_: Any) -> None:
        found["gradients"] = size_of(p.grad for p in learner.parameters)

    with pytest.MonkeyPatch.context() as patch:
        for owner, name, spy in (
            (Shards, "sum_gradients", before_the_sum),
            (World, "begin_sum", in_the_sum),
        ):
            act = getattr(owner, name)
            patch.setattr(owner, name, lambda *a, act=act, spy=spy: spy(act, *a))
        learner.optimizer.register_step_pre_hook(before_the_step)
        assert learner.update(rollouts, rows, objective).is_valid
    head = teacher.weights.head()
    assert isinstance(head, HeadWeights)
    moments = [t for n, t in learner.state_dict().items() if not n.startswith("step.")]
    return {
        **found,
        "weights": size_of(shards.rows.values()),
        "adamw": size_of(moments),
        "teacher": size_of(teacher.weights.state_dict().values()),
        "casts": size_of(head.own.values()),
    }


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> tuple[Example, ...]:
    return make_examples(tmp_path_factory.mktemp("pictures"), n=4)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("precision", "lora", "offload"),
    [("float32", None, False), ("bfloat16", None, True), ("bfloat16", LORA, False)],
    ids=["float32", "bfloat16-offload", "LoRA"],
)
@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_vl"])
def test_a_process_holds_the_bytes_that_a_plan_computes(
    family: Any,
    precision: str,
    lora: LoraSettings | None,
    offload: bool,
    size: int,
    pictures: tuple[Example, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sharding, "BUCKET", 2**14)  # Several buckets of so small a model.
    folder = build_small_model(tmp_path / "model", family=family, hidden=32, tied=False)
    kind = getattr(torch, precision)
    config = tiny(
        folder,
        tmp_path,
        tmp_path / "run",
        f"model.precision={precision}",
        f"optim.offload={str(offload).lower()}",
        f"lora.rank={lora.rank if lora else 0}",
    )
    planned = measure(config, ranks=size)
    # A CPU multiplies by the head in fp32, and keeps no rounded copy of it.
    rounded = 0 if kind is torch.float32 else rounded_heads(folder, lora)
    first, *others = in_world(size, partial(held, folder, pictures, kind, lora, offload))
    expected = {name: getattr(planned, name) for name in STATE} | {"casts": planned.casts - rounded}
    assert {name: first[name] for name in STATE} == expected
    assert 0 < first["exchanged"] <= planned.exchanged
    for other in others:
        assert all(other[name] <= first[name] for name in STATE)
    assert planned.host_copy == first["adamw"] + 2 * first["teacher"]


def rounded_heads(folder: Path, lora: LoraSettings | None) -> int:
    """Return the bytes of the head's copies in half precision."""
    head = make_model(folder).head
    return 2 * size_of(head.parameters()) // 4 * (1 if lora else 2)


def held_by_layers(
    folder: Path, examples: tuple[Example, ...], precision: torch.dtype, lora: Any, world: World
) -> dict[str, int]:
    """Take a step that gathers layers one by one, and return the most bytes of its passes."""
    most = {"gathered": 0, "exchanged": 0, "together": 0}
    gather, add = Shards._begin_gather, Shards._begin_sum
    act, act_gather = World.begin_sum, World.begin_gather
    flying: dict[int, int] = {}
    networks: list[Shards] = []
    passes = False

    def look() -> None:
        if not passes:  # What is in no layer is gathered before.
            return
        whole = networks[-1]._whole.values()
        now = {
            "gathered": sum(p.untyped_storage().nbytes() for p in whole),
            "exchanged": sum(flying.values()),
        }
        now["together"] = sum(now.values()) + size_of(p.grad for p in whole)
        most.update({name: max(most[name], count) for name, count in now.items()})

    def under_way(tensors: list[Tensor], end: Callable[[], T]) -> Callable[[], T]:
        shards = networks[-1]
        own = [p.data_ptr() for p in (*shards._whole.values(), *shards.rows.values())]
        flying[id(end)] = size_of(each for each in tensors if each.data_ptr() not in own)
        look()

        def ended() -> T:
            found = end()
            look()
            del flying[id(end)]
            return found

        return ended

    def gathering(shards: Shards, bucket: Any, rows: Any) -> Callable[[], None]:
        nonlocal passes
        networks.append(shards)
        passes = shards.is_by_layer and bucket not in shards._kept.gathered
        fill = gather(shards, bucket, rows)

        def filled() -> None:
            fill()
            look()

        return filled

    def adding(shards: Shards, bucket: Any) -> Any:
        look()
        return add(shards, bucket)

    def gathering_parts(own: World, part: Tensor, out: Tensor) -> Callable[[], None]:
        return under_way([part, out], act_gather(own, part, out))

    def exchanging(own: World, parts: Tensor) -> Callable[[], Tensor]:
        wait = act(own, parts)
        return under_way([parts, parts[0]], wait)  # A part is as large as any other.

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Shards, "_begin_gather", gathering)
        patch.setattr(Shards, "_begin_sum", adding)
        patch.setattr(World, "begin_sum", exchanging)
        patch.setattr(World, "begin_gather", gathering_parts)
        model = make_model(folder, precision=precision, lora=lora)
        model.shard(world, by_layer=True)
        sampling = SamplingSettings(per_prompt=2, max_response_tokens=3)
        rollouts = Sampler(model, full_view, sampling, world=world).generate(
            PromptBatch(step=3, examples=examples)
        )
        rows = rollouts.candidates()
        scores = crop_teacher(model, world=world).score(rollouts, rows)
        objective = Distillation(scores, head=model.logits, settings=DistillSettings(k=20))
        learner = Learner(model, OptimizerSettings(warmup_steps=0), world=world)
        assert learner.update(rollouts, rows, objective).is_valid
    return most


@pytest.mark.parametrize(
    ("family", "precision", "lora", "size"),
    [
        ("qwen3_5", "bfloat16", None, 3),
        ("qwen3_vl", "float32", LORA, 2),
        ("qwen2_5_vl", "bfloat16", None, 2),
    ],
    ids=["Qwen3.5", "LoRA", "Qwen2.5-VL"],
)
def test_so_it_is_with_layers_that_are_gathered_one_by_one(
    family: Any,
    precision: str,
    lora: LoraSettings | None,
    size: int,
    pictures: tuple[Example, ...],
    tmp_path: Path,
) -> None:
    folder = build_small_model(tmp_path / "model", family=family, hidden=32, tied=False)
    changes = (f"model.precision={precision}", f"lora.rank={lora.rank if lora else 0}")
    config = tiny(folder, tmp_path, tmp_path / "run", *changes)
    layers = tiny(folder, tmp_path, tmp_path / "run", *changes, "shard.reshard=true")
    whole, planned = measure(config, ranks=size), measure(layers, ranks=size)
    kind = getattr(torch, precision)
    first, *_ = in_world(size, partial(held_by_layers, folder, pictures, kind, lora))
    assert first["gathered"] < whole.pass_weights == planned.gathered
    assert first["exchanged"] > 0
    most = planned.pass_weights + planned.pass_gradients + planned.exchanged
    # Rows that three ranks cannot share evenly are copied, which is not seen here.
    assert (0.8 if size == 3 else 1.0) * most <= first["together"] <= most
    assert planned.device < whole.device


def held_by_teacher(
    folder: Path, examples: tuple[Example, ...], other: Path, on_host: bool, world: World
) -> dict[str, int]:
    """Score with a teacher that is another model, and return its bytes."""
    model = make_model(folder)
    model.shard(world)
    sampling = SamplingSettings(per_prompt=2, max_response_tokens=3)
    rollouts = Sampler(model, full_view, sampling, world=world).generate(
        PromptBatch(step=3, examples=examples)
    )
    network = open_model(other, device="cpu", frozen=True, on_host=on_host)
    network.shard(world, on_host=on_host)
    assert network.shards is not None
    teacher, gathered = FrozenTeacher(network, crop_view, world=world), 0
    flying: dict[int, int] = {}
    act, begin = Shards._end_gather, World.begin_gather

    def look(*_: Any) -> None:
        nonlocal gathered
        held = sum(p.untyped_storage().nbytes() for p in network.network.parameters())
        gathered = max(gathered, held + (sum(flying.values()) if on_host else 0))

    def beginning(own: World, part: Tensor, out: Tensor) -> Callable[[], None]:
        wait, whole = begin(own, part, out), list(network.network.parameters())
        filled = out.data_ptr() in [p.data_ptr() for p in whole]
        flying[id(wait)] = size_of([part] if filled else [part, out])
        look()

        def waited() -> None:
            wait()
            look()
            if filled:
                del flying[id(wait)]

        waited.number = id(wait)  # type: ignore[attr-defined]
        return waited

    def ending(shards: Shards, bucket: Any, parts: Tensor, wait: Any) -> None:
        act(shards, bucket, parts, wait)
        look()
        flying.pop(getattr(wait, "number", 0), None)

    with pytest.MonkeyPatch.context() as patch:
        for module in network.network.modules():
            module.register_forward_pre_hook(look)
        patch.setattr(World, "begin_gather", beginning)
        patch.setattr(Shards, "_end_gather", ending)
        hidden = teacher._score
        patch.setattr(teacher, "_score", lambda *a: (hidden(*a), flying.clear())[0])
        head = teacher.score(rollouts, rollouts.candidates()).head
    assert isinstance(head, HeadWeights)
    assert not any(p.untyped_storage().nbytes() for p in network.network.parameters())
    rows, own = size_of(network.shards.rows.values()), size_of(head.own.values())
    if on_host:
        return {"host_teacher": rows, "streamed_teacher": gathered, "teacher_head": own}
    return {"own_teacher": rows + own, "gathered_teacher": gathered}


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("size", [2, 3])
def test_so_it_is_with_a_teacher_that_is_another_model(
    size: int, on_host: bool, pictures: tuple[Example, ...], tmp_path: Path
) -> None:
    folder = build_small_model(tmp_path / "model", family="qwen3_vl", hidden=32)
    other = build_small_model(tmp_path / "other", family="qwen3_vl", hidden=64, tied=False, seed=5)
    config = tiny(folder, tmp_path, tmp_path / "run", f"teacher.path={other}")
    planned = measure(config, ranks=size)
    first, *_ = in_world(size, partial(held_by_teacher, folder, pictures, other, on_host))
    assert first == {name: getattr(planned, name) for name in first}


def test_no_sum_over_processes_grows_with_their_number(tmp_path: Path) -> None:
    folder = build_small_model(tmp_path / "model", family="qwen3_vl", hidden=32)
    network = make_model(folder).network
    wholes = [p.numel() for p in network.parameters()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharding, "BUCKET", 2**14)
        for ranks in (2, 8, 64, 1024):
            with torch.device("meta"):
                spread = Shards(
                    network.to("meta"), torch.nn.Identity(), torch.float32, World(size=ranks)
                )
            # Each of few rows is padded to one row a rank.
            most = max(2**14, *(n + ranks * 32 * 32 for n in wholes))
            assert spread.peak.exchanged <= 4 * 3 * most


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_vl", "qwen2_5_vl"])
def test_what_a_pass_keeps_is_counted_without_memory_as_with_it(
    family: Any, tmp_path: Path
) -> None:
    folder = build_small_model(tmp_path / "model", family=family, hidden=32)
    counted = activations(folder)
    network: Any = make_model(folder).network
    core = network.model.language_model
    assert text_kept(core, torch.float32) == counted.text
    assert image_kept(network.model.visual, torch.float32) == counted.image
    assert counted.text.inputs >= 4 * 32 * len(core.layers)
    for kept in (counted.text, counted.image):
        assert kept.inputs + kept.layer < kept.whole


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_vl", "qwen2_5_vl"])
def test_the_vision_tower_keeps_for_real_pictures_what_is_counted(
    family: Any, tmp_path: Path
) -> None:
    folder = build_small_model(tmp_path / "model", family=family)
    model = make_model(folder)
    tower = cast("Any", model.network).model.visual
    examples = make_examples(tmp_path, n=2)
    prompts = [model.processor.encode(open_image(e.image), e.question) for e in examples]
    held = {p.untyped_storage()._cdata: p.untyped_storage() for p in tower.parameters()}
    before = size_of_storages(held)

    def keep(tensor: Tensor) -> Tensor:
        held.setdefault(tensor.untyped_storage()._cdata, tensor.untyped_storage())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        tower(
            torch.cat([prompt.pixel_values for prompt in prompts]),
            torch.cat([prompt.grid for prompt in prompts]),
        )
    images = sum(int(prompt.grid.prod()) for prompt in prompts) // 4
    counted = images * activations(folder).image.whole
    # Beside it: indices of positions, a few numbers for each patch.
    assert 1 <= (size_of_storages(held) - before) / counted < 1.05


def size_of_storages(held: dict[int, Any]) -> int:
    return sum(storage.nbytes() for storage in held.values())


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_vl", "qwen2_5_vl"])
def test_the_peak_of_an_update_is_what_a_plan_counts_or_a_little_less(
    family: Any, checkpointing: bool, tmp_path: Path
) -> None:
    folder = build_small_model(tmp_path / "model", family=family, hidden=128, layers=8)
    peak, counted = peak_of_an_update(folder, tmp_path, checkpointing=checkpointing)
    assert 1 <= counted / peak < 1.15


def test_a_step_with_moments_in_8_bits_takes_no_more_than_a_plan_counts() -> None:
    weight = torch.nn.Parameter(torch.randn(512, 512))
    weight.grad = torch.randn(512, 512)
    optimizer = EightBitAdamW([weight])
    optimizer.step()  # The next one finds moments.
    with Live([]) as live:
        optimizer.step()
    assert UNPACKED / 2 < live.most / weight.numel() < UNPACKED


def test_the_memory_of_one_process_is_the_same_function(tmp_path: Path) -> None:
    folder = build_small_model(tmp_path / "model", family="qwen3_vl", hidden=32)
    config = tiny(folder, tmp_path, tmp_path / "run")
    alone, spread = measure(config), measure(config, ranks=1)
    for name in ("parameters", "trained", "weights", "gradients", "adamw", "teacher", "host_copy"):
        assert asdict(alone)[name] == asdict(spread)[name]
    assert spread.gathered == alone.weights
