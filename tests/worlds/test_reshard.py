"""The student's passes gather layers one by one: the same step, in less memory, and none hangs."""

from __future__ import annotations

import itertools
import shutil
import socket
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from memory_fixtures import Live
from process import at, fail
from ranks import Ranks, Train, in_world
from run_states import assert_same_end
from small_models import build_small_model
from stage_fixtures import make_examples, make_model
from test_runs import assert_ended, assert_same_run, assert_sound, on_last, steps_of
from test_step import TOLERANCE, Case, Found, difference, step_alone, take_step
from torch import Tensor, nn

from bas_opd.compute import eight_bits
from bas_opd.compute.world import World
from bas_opd.errors import DataError
from bas_opd.learn import Distillation, Learner
from bas_opd.learn.objective import ObjectivePart, PackedRows
from bas_opd.model import sharding, vlm
from bas_opd.model.layerwise import LayerPass
from bas_opd.model.loading import LoraSettings
from bas_opd.model.sharding import Shards
from bas_opd.types import Example

LORA = LoraSettings(rank=2)
SMALL: dict[str, Any] = {"hidden": 32, "layers": 4}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> tuple[Example, ...]:
    return make_examples(tmp_path_factory.mktemp("pictures"), n=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_small_model(
        tmp_path_factory.mktemp("model"), family="qwen3_vl", tied=False, **SMALL
    )


@pytest.fixture
def case(folder: Path, pictures: tuple[Example, ...]) -> Case:
    return Case(folder=folder, examples=pictures, reshard=True)


@pytest.fixture(scope="module")
def alone(folder: Path, pictures: tuple[Example, ...]) -> Found:
    return take_step(Case(folder=folder, examples=pictures), World())


def assert_same_step(found: Found, other: Found) -> None:
    assert torch.equal(found.tokens, other.tokens)
    assert found.counts == other.counts
    assert found.utility == pytest.approx(other.utility, rel=1e-4, abs=1e-7)
    assert found.loss == pytest.approx(other.loss, rel=1e-5)
    assert difference(other.gradients, found.gradients) < TOLERANCE


@pytest.mark.parametrize(
    ("family", "tied", "change"),
    [
        ("qwen3_5", False, {}),
        ("qwen3_5", True, {"lora": LORA, "checkpointing": True}),
        ("qwen3_vl", True, {"checkpointing": True}),
        ("qwen3_vl", False, {"lora": LORA}),
        ("qwen3_vl", False, {"lora": LoraSettings(rank=2, targets=("embed_tokens", "q_proj"))}),
        ("qwen2_5_vl", True, {"share_prompts": False}),
        ("qwen2_5_vl", False, {"checkpointing": True, "tokens": 1}),
    ],
    ids=str,
)
def test_one_process_computes_the_same_bytes_as_with_the_whole_network(
    family: Any, tied: bool, change: dict[str, Any], pictures: tuple[Example, ...], tmp_path: Path
) -> None:
    model = build_small_model(tmp_path / "model", family=family, tied=tied, **SMALL)
    case = Case(folder=model, examples=pictures, always=True, **change)
    whole, layers = (take_step(replace(case, reshard=each), World()) for each in (False, True))
    assert_same_step(layers, whole)
    for name, weight in whole.after.items():
        assert torch.equal(layers.after[name], weight), name


def test_a_gradient_of_the_head_that_comes_late_is_an_error(
    pictures: tuple[Example, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_small_model(tmp_path / "model", family="qwen3_vl", tied=False, **SMALL)
    call = Distillation.__call__

    def late(self: Distillation, hidden: Tensor, packed: PackedRows) -> ObjectivePart:
        part = call(self, hidden, packed)
        if hidden.requires_grad:
            self.head(hidden.detach()).square().mean().backward()
        return part

    monkeypatch.setattr(Distillation, "__call__", late)
    case = Case(folder=model, examples=pictures, always=True)
    take_step(case, World())
    with pytest.raises(RuntimeError, match=r"lm_head.weight got a gradient after its gradients"):
        take_step(replace(case, reshard=True), World())


def assert_same_in_worlds(case: Case) -> None:
    for size in (2, 3):
        alone = step_alone(case, size)
        for found in in_world(size, partial(take_step, replace(case, reshard=True))):
            assert_same_step(found, alone)


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_vl", "qwen2_5_vl"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("lora", [None, LORA], ids=["whole", "LoRA"])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "checkpointed"])
def test_several_processes_compute_the_step_of_one(
    family: Any,
    tied: bool,
    lora: LoraSettings | None,
    checkpointing: bool,
    pictures: tuple[Example, ...],
    tmp_path: Path,
) -> None:
    model = build_small_model(tmp_path / "model", family=family, tied=tied, **SMALL)
    assert_same_in_worlds(
        Case(folder=model, examples=pictures, lora=lora, checkpointing=checkpointing)
    )


@pytest.mark.parametrize("change", [{"limit": 100}, {"share_prompts": False}], ids=str)
def test_so_they_do_in_small_batches_and_without_shared_prompts(
    change: dict[str, Any], pictures: tuple[Example, ...], tmp_path: Path
) -> None:
    model = build_small_model(tmp_path / "model", family="qwen3_5", tied=False, **SMALL)
    assert_same_in_worlds(Case(folder=model, examples=pictures, **change))


@pytest.mark.parametrize(
    "change",
    [{"rows": (4,)}, {"prompts": 2, "tokens": 1}, {"short": (0, 1, 2), "limit": 60}],
    ids=["one row", "more ranks than prompts, one token", "one token on one rank"],
)
def test_so_they_do_when_ranks_compute_less_than_others(change: dict[str, Any], case: Case) -> None:
    prompts = change.pop("prompts", 4)
    case = replace(case, examples=case.examples[:prompts], **change)
    alone = take_step(case, World())
    for found in in_world(3, partial(take_step, case)):
        assert_same_step(found, alone)


def _blind(case: Case, world: World) -> Found:
    """Take a step in which the last rank sees no picture."""
    with pytest.MonkeyPatch.context() as patch:
        act = Learner._micro_batch

        def blinded(*arguments: Any) -> Any:
            patch.setattr(vlm, "_pixels", lambda *_: {})
            return act(*arguments)

        if world.rank == world.size - 1:
            patch.setattr(Learner, "_micro_batch", blinded)
        return take_step(case, world)


def test_so_they_do_when_the_vision_tower_of_one_does_not_run(case: Case, alone: Found) -> None:
    whole, layers = (
        in_world(2, partial(_blind, replace(case, reshard=each)))[0] for each in (False, True)
    )
    assert_same_step(layers, whole)
    assert difference(alone.gradients, layers.gradients) > 100 * TOLERANCE


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of a step's passes, and what the plan knows of them."""

    gathered: int
    kept: int
    layer: int
    left: int
    """Bytes of weights and gradients of layers that a pass left behind."""
    shares: tuple[float, ...]
    """Share of a layer's trained parameters that had a gradient, for each of its sums."""


def _held(case: Case, mistake: tuple[Any, str, Any] | None, world: World) -> Held:
    """Take a step, and look at the network after every exchange and every pass."""
    most, left = 0, 0
    shares: list[float] = []
    kept: list[int] = []
    layer: list[int] = []
    gather, add, passed = Shards._begin_gather, Shards._begin_sum, Shards.exchanging

    def bytes_of(shards: Shards) -> int:
        return sum(p.untyped_storage().nbytes() for p in shards._whole.values())

    def gathering(shards: Shards, *arguments: Any) -> Callable[[], None]:
        fill = gather(shards, *arguments)

        def filling() -> None:
            nonlocal most
            fill()
            if shards.is_by_layer:
                most = max(most, bytes_of(shards))

        return filling

    def adding(shards: Shards, bucket: Any) -> Any:
        if bucket not in (*shards._head.summed, *shards._rest.summed):
            shares.append(
                sum(shards._whole[n].grad is not None for n in bucket.names) / len(bucket.names)
            )
        return add(shards, bucket)

    def passing(shards: Shards, *arguments: Any, **options: Any) -> Any:
        nonlocal left
        found = passed(shards, *arguments, **options)
        kept.append(shards._bytes(shards._kept.names))
        layer.append(max(shards._bytes(part.names) for part in shards._layers.values()))
        inner = [shards._whole[n] for part in shards._layers.values() for n in part.names]
        left += sum(p.untyped_storage().nbytes() for p in inner)
        left += sum(p.grad.nbytes for p in inner if p.grad is not None)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Shards, "_begin_gather", gathering)
        patch.setattr(Shards, "_begin_sum", adding)
        patch.setattr(Shards, "exchanging", passing)
        if mistake is not None:
            patch.setattr(*mistake)
        take_step(case, world)
    return Held(most, kept[0], layer[0], left, tuple(shares))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_no_pass_holds_more_than_what_is_in_no_layer_and_one_layer(
    checkpointing: bool, case: Case
) -> None:
    for held in in_world(2, partial(_held, replace(case, checkpointing=checkpointing), None)):
        assert held.kept < held.gathered <= held.kept + held.layer
        assert held.left == 0
        # Prompts and responses are read one after the other, and each leaves its own gradient.
        assert set(held.shares) == {1.0}


def _keeping(shards: Shards, bucket: Any, begin: Callable[..., Any] = Shards._begin_sum) -> Any:
    kept = {name: shards._whole[name].grad for name in bucket.names}
    add = begin(shards, bucket)
    for name, gradient in kept.items():
        shards._whole[name].grad = gradient
    return add


def test_what_a_layer_leaves_behind_would_show(case: Case) -> None:
    one = replace(case, always=True)
    held = _held(one, (Shards, "_free", lambda *_: None), World())
    assert held.left
    assert held.gathered > held.kept + held.layer
    with pytest.raises(RuntimeError, match="got a gradient after its gradients were summed"):
        _held(one, (Shards, "_begin_sum", _keeping), World())


def _course(case: Case, world: World) -> list[tuple[str, int]]:
    """Return what happens to the language layers in one pass, by their numbers."""
    course: list[tuple[str, int]] = []
    exchanges: dict[Any, tuple[str, int]] = {}
    numbers: dict[nn.Module, int] = {}
    gather, add, start = Shards._begin_gather, Shards._begin_early_sum, Shards.exchanging
    reach = LayerPass._reach

    def starting(shards: Shards, *arguments: Any, **options: Any) -> Any:
        for number, layer in enumerate(cast("Any", shards)._towers[-1].layers):
            numbers[layer] = number
            part = shards._layers[layer]
            exchanges.update(dict.fromkeys(part.gathered, ("gather", number)))
            exchanges.update({("sum", bucket): ("sum", number) for bucket in part.summed})
        return start(shards, *arguments, **options)

    def told(known: Any, end: Callable[[], None]) -> Callable[[], None]:
        if known not in exchanges:
            return end
        what, number = exchanges[known]
        course.append((f"begin {what}", number))

        def ended() -> None:
            end()
            course.append((f"end {what}", number))

        return ended

    def reached(current: LayerPass, moment: Any) -> None:
        reach(current, moment)
        if moment[1] in numbers:
            course.append((moment[0], numbers[moment[1]]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Shards, "exchanging", starting)
        patch.setattr(
            Shards,
            "_begin_gather",
            lambda own, bucket, rows: told(bucket, gather(own, bucket, rows)),
        )
        patch.setattr(
            Shards, "_begin_early_sum", lambda own, bucket: told(("sum", bucket), add(own, bucket))
        )
        patch.setattr(LayerPass, "_reach", reached)
        take_step(replace(case, share_prompts=False), world)
    return course[: len(course) // 2]  # The step computes two passes.


def assert_in_order(course: list[tuple[str, int]], *moments: tuple[str, int]) -> None:
    places = [course.index(each) for each in moments]
    assert places == sorted(places), (moments, course)


def test_while_a_layer_computes_the_next_and_the_gradients_of_the_last_are_under_way(
    case: Case,
) -> None:
    for course in in_world(2, partial(_course, case)):
        last = max(number for _, number in course)
        turn = course.index(("backward", last))
        forward, backward = course[:turn], course[turn:]
        for n in range(last):
            assert_in_order(forward, ("begin gather", n + 1), ("forward", n), ("end gather", n + 1))
        for n in range(1, last - 1):
            assert_in_order(
                backward, ("begin gather", n - 1), ("backward", n), ("end gather", n - 1)
            )
            assert_in_order(backward, ("begin sum", n + 1), ("backward", n), ("end sum", n + 1))
        # The last layer stays for the way back, and there is never more than one under way.
        assert course.count(("begin gather", last)) == 1
        for what in ("gather", "sum"):
            changes = [(did == f"begin {what}") - (did == f"end {what}") for did, _ in course]
            assert set(itertools.accumulate(changes)) == {0, 1}


def _live(case: Case, world: World) -> tuple[int, int]:
    """Return the most bytes of a pass, and what its parts have without activations."""
    found: list[tuple[int, int]] = []
    accumulate = Learner.accumulate

    def measured(learner: Learner, *arguments: Any) -> Any:
        shards = learner.model.shards
        assert shards is not None
        patch.setattr(Learner, "accumulate", accumulate)
        with Live(list(shards._whole.values())) as live:
            passed = accumulate(learner, *arguments)
        rows = 2 * sum(p.nbytes for p in shards.rows.values())  # and their gradients
        found.append((live.most, rows + shards.peak.bytes))
        return passed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "accumulate", measured)
        take_step(case, world)
    return found[0]


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_pass_allocates_no_more_than_that(
    tied: bool, pictures: tuple[Example, ...], tmp_path: Path
) -> None:
    # Weights of many megabytes beside few activations.
    wide = build_small_model(tmp_path / "model", family="qwen3_vl", hidden=256, layers=8, tied=tied)
    case = Case(folder=wide, examples=pictures[:2], rows=(0, 3), tokens=3, checkpointing=True)
    for most, planned in in_world(2, partial(_live, replace(case, reshard=True))):
        assert most < 1.2 * planned


def test_embedding_and_head_are_not_held_together_on_the_way_back(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, reach = Shards._begin_sum, LayerPass._reach
    networks: list[Shards] = []
    sums: list[set[str]] = []
    weights: list[bool] = []

    def end_of(name: str) -> str:
        return ".".join(name.split(".")[-2:])

    def beginning(shards: Shards, bucket: Any) -> Any:
        networks.append(shards)
        has = {end_of(name) for name, p in shards._whole.items() if p.grad is not None}
        sums.append(has & {"embed_tokens.weight", "lm_head.weight"})
        return begin(shards, bucket)

    def reaching(current: LayerPass, moment: Any) -> None:
        reach(current, moment)
        if moment[0] == "backward" and networks:
            whole = {end_of(name): p for name, p in networks[0]._whole.items()}
            weights.append(bool(whole["embed_tokens.weight"].untyped_storage().nbytes()))

    monkeypatch.setattr(Shards, "_begin_sum", beginning)
    monkeypatch.setattr(LayerPass, "_reach", reaching)
    take_step(replace(case, always=True), World())
    assert {"lm_head.weight"} in sums
    assert {"embed_tokens.weight"} in sums
    assert {"lm_head.weight", "embed_tokens.weight"} not in sums
    assert weights
    assert not any(weights)


def _fail_once(owner: Any, name: str, call: int, patch: pytest.MonkeyPatch) -> None:
    act, calls = getattr(owner, name), 0

    def failing(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise MemoryError("The memory of one process is full.")
        return act(*arguments, **options)

    patch.setattr(owner, name, failing)


def _with_full_memory(
    case: Case, owner: Any, name: str, call: int, limit: int, world: World,
    *, rank: int | None = None, replicas: int = 1,
) -> Found:  # fmt: skip
    """Take a step in which the memory of one rank, else the last, is full once; all adapt alike."""
    with pytest.MonkeyPatch.context() as patch:
        accumulate = Learner.accumulate

        def armed(learner: Learner, *arguments: Any) -> Any:
            patch.setattr(Learner, "accumulate", accumulate)
            if world.rank == (world.size - 1 if rank is None else rank):
                _fail_once(owner, name, call, patch)
            passed = accumulate(learner, *arguments)
            assert learner.tokens_per_micro_batch == limit
            return passed

        patch.setattr(Learner, "accumulate", armed)
        return take_step(case, world.replicated(replicas))


@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        (LayerPass, "_before", 2),
        (LayerPass, "_take_gradients", 3),
        (sharding, "_allocate", 80),
        (Shards, "_begin_sum", 5),
        (LayerPass, "finish", 1),
    ],
    ids=["the vision tower", "the backward pass", "a gather", "a sum", "the end"],
)
def test_all_try_smaller_batches_wherever_in_a_pass_the_memory_of_one_is_full(
    owner: Any, name: str, call: int, case: Case, alone: Found
) -> None:
    full = partial(_with_full_memory, case, owner, name, call, case.limit // 2)
    for found in in_world(2, full):
        assert_same_step(found, alone)


@pytest.mark.parametrize(
    ("size", "rank", "replicas"), [(3, 0, 1), (4, 2, 2)], ids=["the leader", "groups"]
)
def test_so_they_do_when_it_is_that_of_the_leader_or_in_groups(
    size: int, rank: int, replicas: int, case: Case, alone: Found
) -> None:
    full = partial(
        _with_full_memory, case, LayerPass, "_take_gradients", 3, case.limit // 2,
        rank=rank, replicas=replicas,
    )  # fmt: skip
    for found in in_world(size, full):
        assert_same_step(found, alone)


@pytest.mark.parametrize(
    ("reshard", "owner", "name", "call"),
    [
        (True, sharding, "_allocate", 1),
        (True, sharding, "_allocate", 9),
        (False, sharding, "_allocate", 9),
        (True, World, "begin_gather", 1),
        (False, World, "begin_sum", 1),
        (False, sharding, "_widened", 9),
    ],
)
def test_a_rank_whose_memory_is_full_between_passes_tries_once_more(
    reshard: bool, owner: Any, name: str, call: int, case: Case, alone: Found
) -> None:
    chosen = replace(case, reshard=reshard)
    full = partial(_with_full_memory, chosen, owner, name, call, case.limit)
    for found in in_world(2, full):
        assert_same_step(found, alone)


def _always_full(case: Case, owner: Any, name: str, rank: int) -> None:
    def full(*_: Any, **options: Any) -> None:
        raise MemoryError("The memory of one process is full.")

    with World.joined("cpu", timeout_minutes=1) as world, pytest.MonkeyPatch.context() as patch:
        if rank == world.size - 1:
            patch.setattr(owner, name, full)
        take_step(case, world)


@pytest.mark.parametrize(
    ("owner", "name"),
    [(sharding, "_allocate"), (sharding, "_widened"), (dist, "all_gather_object")],
    ids=["a gather", "a sum", "in an exchange"],
)
def test_if_it_is_full_again_it_says_so_and_all_end(owner: Any, name: str, case: Case) -> None:
    ended = Ranks(2, partial(_always_full, replace(case, reshard=False), owner, name)).wait(30)
    assert all(each.code for each in ended)
    said = "has no memory left to exchange with the others (The memory of one process is"
    for each in ended:
        assert f"Rank 1 on {socket.gethostname()} {said}" in each.output.splitlines()[-1]
    assert "waited for the others in vain" not in ended[1].output


def _refer(tensor: Tensor, kept: list[weakref.ref[Tensor]]) -> Tensor:
    kept.append(weakref.ref(tensor))
    return tensor


def test_a_failed_pass_holds_nothing_when_its_exchanges_are_made(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A head that is the embedding keeps its gradients to the end of a pass.
    tied = build_small_model(tmp_path / "model", family="qwen3_vl", tied=True, **SMALL)
    kept: list[weakref.ref[Tensor]] = []
    left: list[int] = []
    take, finish, calls = LayerPass._take_gradients, LayerPass.finish, 0
    networks: list[Shards] = []
    start = Shards.exchanging

    def starting(shards: Shards, *arguments: Any, **options: Any) -> Any:
        networks.append(shards)
        return start(shards, *arguments, **options)

    def fail_with_a_tensor() -> None:
        local = _refer(torch.ones(3), kept)
        raise ValueError(len(local))

    def failing(current: LayerPass, layer: nn.Module, call: int) -> None:
        nonlocal calls
        calls += 1
        if calls != 3:
            return take(current, layer, call)
        leaves = current._leaves[layer, call]
        found = [each.grad for each in (*leaves.values(), *networks[0]._whole.values())]
        kept.extend(weakref.ref(gradient) for gradient in found if gradient is not None)
        assert len(kept) > len(leaves)
        local, cycle = _refer(torch.ones(3), kept), [_refer(torch.ones(3), kept)]
        cycle.append(cycle)  # pyright: ignore[reportArgumentType]
        try:
            fail_with_a_tensor()
        except ValueError as error:
            raise MemoryError(f"The memory of {len(local)} is full.") from error

    def finishing(current: LayerPass) -> None:
        if kept:
            left.append(sum(each() is not None for each in kept))
        finish(current)

    monkeypatch.setattr(Shards, "exchanging", starting)
    monkeypatch.setattr(LayerPass, "_take_gradients", failing)
    monkeypatch.setattr(LayerPass, "finish", finishing)
    take_step(replace(case, folder=tied, always=True), World())
    assert left[0] == 0


def test_a_trained_parameter_that_no_rank_reaches_does_not_decay(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {name: p.detach().clone() for name, p in make_model(case.folder).trainable().items()}
    act = Learner._micro_batch

    def blinded(*arguments: Any) -> Any:
        monkeypatch.setattr(vlm, "_pixels", lambda *_: {})
        return act(*arguments)

    monkeypatch.setattr(Learner, "_micro_batch", blinded)
    after = take_step(replace(case, always=True), World()).after
    unseen = {name for name in before if ".visual." in name}
    assert unseen
    assert {name for name in before if torch.equal(before[name], after[name])} == unseen


def test_in_half_precision_gradients_agree_but_for_rounding(case: Case) -> None:
    half = replace(case, precision=torch.bfloat16, limit=60)
    whole, layers = (
        in_world(2, partial(take_step, replace(half, reshard=each)))[0] for each in (False, True)
    )
    assert torch.equal(layers.tokens, whole.tokens)
    assert difference(whole.gradients, layers.gradients) < 0.02


def _without(owner: Any, name: str, case: Case, rank: int) -> None:
    """Leave something out on the last rank, in a world that waits for seconds."""
    with World.joined("cpu", timeout_minutes=0.1) as world, pytest.MonkeyPatch.context() as patch:
        if rank == world.size - 1:
            patch.setattr(owner, name, lambda *_: None)
        take_step(case, world)


def test_a_rank_without_rows_that_leaves_out_its_idle_pass_would_show(case: Case) -> None:
    only = replace(case, rows=(0,))
    ended = Ranks(2, partial(_without, LayerPass, "finish", only)).wait()
    assert all(each.code for each in ended)
    assert any("waited for the others in vain" in each.output for each in ended)


def _without_memory(case: Case, rank: int) -> None:
    """Let the memory of the last rank be full from some moment of a pass on."""
    with World.joined("cpu", timeout_minutes=1) as world, pytest.MonkeyPatch.context() as patch:
        act, calls = LayerPass._advance, 0

        def full(current: LayerPass, until: int) -> None:
            nonlocal calls
            calls += 1
            if calls > 7:
                raise MemoryError("The memory of one process is full.")
            act(current, until)

        if rank == world.size - 1:
            patch.setattr(LayerPass, "_advance", full)
        take_step(case, world)


def test_a_rank_that_cannot_even_exchange_ends_all_at_once(case: Case) -> None:
    ended = Ranks(2, partial(_without_memory, case)).wait(30)
    assert all(each.code for each in ended)
    for each in ended:
        assert "no memory left to exchange with the others" in each.output.splitlines()[-1]


def trained(train: Train, size: int, run: Path, *overrides: str) -> Path:
    ended = train(size, run, f"run.output={run}", "shard.reshard=true", *overrides)
    assert [each.code for each in ended] == [0] * size, ended
    assert_sound(run)
    return run


@pytest.fixture(scope="module")
def resharded(train: Train, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    home = tmp_path_factory.mktemp("resharded")
    return {size: trained(train, size, home / str(size), "shard.always=true") for size in (1, 2, 3)}


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_run_is_that_of_one_process_and_records_its_idle_passes(
    size: int, resharded: dict[int, Path], whole: dict[int, Path]
) -> None:
    assert_same_run(resharded[size], whole[1])
    for step in steps_of(resharded[size]):
        # All rows of a rank fit into one pass here.
        assert step.get("idle_passes", 0) == step.get("student_tokens_of_ranks", []).count(0)
        assert ("idle_passes" in step) == (size > 1)
    assert any(step.get("idle_passes") for step in steps_of(resharded[size])) == (size == 3)


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (1, 2), (2, 1), (1, 3), (3, 1)])
def test_it_resumes_what_was_saved_without_and_the_other_way_round(
    before: int, after: int, stopped: dict[int, Path], train: Train, whole: dict[int, Path],
    tmp_path: Path,
) -> None:  # fmt: skip
    run = shutil.copytree(stopped[before], tmp_path / "run")
    trained(train, after, run, "run.steps=3")
    ended = train(before, run, f"run.output={run}")
    assert [each.code for each in ended] == [0] * before, ended
    assert_same_run(run, whole[1])
    assert_sound(run)


def test_state_in_host_memory_changes_nothing(
    resharded: dict[int, Path], train: Train, tmp_path: Path
) -> None:
    assert_same_end(trained(train, 2, tmp_path / "run", "optim.offload=true"), resharded[2])


def test_an_error_of_one_rank_in_a_pass_stops_all_which_resume(
    resharded: dict[int, Path], train: Train, tmp_path: Path
) -> None:
    lost = fail(DataError("A picture is lost. Restore it."))
    fault = on_last(at(Learner, "_micro_batch", lost, call=2, before=True))
    ended = train(2, tmp_path / "run", "shard.reshard=true", fault=fault)
    assert_ended(ended, 1, f"bas-opd: Rank 1 on {socket.gethostname()}: A picture is lost.")
    assert_same_end(trained(train, 2, tmp_path / "run"), resharded[2])


def test_so_it_trains_with_moments_in_8_bits(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eight_bits, "LEAST_ROW", 8)  # The rows of this model are short.
    ended = train(1, tmp_path / "alone", "optim.moments=8bit")
    assert [each.code for each in ended] == [0], ended
    assert_same_run(trained(train, 2, tmp_path / "run", "optim.moments=8bit"), tmp_path / "alone")
