"""One step at worlds of several processes: the same tokens, selection and gradients as alone."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranks import in_world
from small_models import build_small_model
from stage_fixtures import crop_teacher, make_examples, make_model
from torch import Tensor

from bas_opd.compute.world import World
from bas_opd.data.views import full_view
from bas_opd.distill.loss import DistillSettings
from bas_opd.learn import Distillation, Learner, OptimizerSettings, learner
from bas_opd.model.batches import MicroBatch, PromptGroup, micro_batches, shares
from bas_opd.model.family import Family
from bas_opd.model.head import Head, plain_head
from bas_opd.model.loading import LoraSettings
from bas_opd.model.sharding import Shards
from bas_opd.rollout import Sampler, SamplingSettings
from bas_opd.rollout.sampler import Drawn, Packed
from bas_opd.teacher import self_teacher
from bas_opd.types import Example, PromptBatch

TOLERANCE = 2e-5
"""Largest norm of a difference, relative to that of the parameter's gradient; where that is small,
to a hundredth of the largest of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model and the step that it takes."""

    folder: Path
    examples: tuple[Example, ...]
    rows: tuple[int, ...] | None = None
    """Rows that are learned from; None: all that have a crop."""
    tokens: int = 7
    short: tuple[int, ...] = ()
    """Rows of which only the first token is learned from."""
    lora: LoraSettings | None = None
    checkpointing: bool = False
    precision: torch.dtype = torch.float32
    share_prompts: bool = True
    limit: int = 16_384
    fast_head: bool = False
    """Whether logits are products in half precision and their gradients explicit, as on a GPU."""
    always: bool = False
    """Whether one process treats its parameters like several."""
    reshard: bool = False
    """Whether the student's passes gather layers one by one."""
    per_rank_mean: bool = False
    """A mistake: the denominator of a rank is that of its own tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a step computed."""

    tokens: Tensor
    logprobs: Tensor
    loss: float
    gradients: dict[str, Tensor]
    utility: dict[int, float]
    norm: float
    counts: tuple[Any, ...]
    after: dict[str, Tensor]
    """Trained weights after the optimizer's step."""
    average: dict[str, Tensor]
    """The teacher's after it followed."""


def take_step(case: Case, world: World) -> Found:
    """Sample, score, and take a step."""
    torch.manual_seed(0)
    model = make_model(
        case.folder,
        lora=case.lora,
        gradient_checkpointing=case.checkpointing,
        precision=case.precision,
    )
    for name, parameter in model.trainable().items():
        if ".lora_B." in name:  # While it is zero, lora_A has no gradient.
            torch.nn.init.normal_(parameter, std=0.05)
    if case.fast_head:
        weight = plain_head(model.head)
        assert weight is not None
        model.fast_head = Head(weight, torch.bfloat16)
    if world.size > 1 or case.always:
        model.shard(world, by_layer=case.reshard)
    sampling = SamplingSettings(per_prompt=3, max_response_tokens=case.tokens)
    rollouts = Sampler(model, full_view, sampling, world=world).generate(
        PromptBatch(step=3, examples=case.examples)
    )
    lengths = rollouts.lengths.clone()
    lengths[list(case.short)] = 1
    rollouts = replace(rollouts, lengths=lengths)
    rows = rollouts.candidates() if case.rows is None else case.rows
    teacher = crop_teacher(model, world=world)
    for weight in teacher.weights.state_dict().values():
        weight.mul_(0.8)  # Two models that agree have a gradient of little more than rounding.
    scores = teacher.score(rollouts, rows)
    settings = OptimizerSettings(
        learning_rate=1e-3,
        warmup_steps=0,
        share_prompts=case.share_prompts,
        tokens_per_micro_batch=case.limit,
    )
    trainer = Learner(model, settings, world=world)
    asked = replace(scores, elsewhere=()) if case.per_rank_mean else scores
    objective = Distillation(
        asked, head=model.logits, settings=DistillSettings(k=20), fast_head=model.fast_head
    )
    passed = trainer.accumulate(rollouts, rows, objective)
    gradients = {
        name: model.whole(name, _gradient(parameter)).clone()
        for name, parameter in model.trainable().items()
    }
    update = trainer.update(rollouts, rows, objective)
    assert update.is_valid
    teacher.follow()
    return Found(
        tokens=rollouts.tokens,
        logprobs=rollouts.logprobs,
        loss=float(passed.loss),
        gradients=gradients,
        utility=passed.observed,
        norm=update.gradient_norm,
        counts=(
            scores.rows,
            scores.scored_tokens,
            scores.processed_tokens,
            scores.prefilled_prompts,
        ),
        after={n: model.whole(n, p.detach()).clone() for n, p in model.trainable().items()},
        average={n: model.whole(n, w).clone() for n, w in teacher.weights.state_dict().items()},
    )


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Return the largest difference, see `TOLERANCE`."""
    assert one.keys() == other.keys()
    least = max(float(tensor.norm()) for tensor in one.values()) / 100
    return max(
        float((one[name] - other[name]).norm() / one[name].norm().clamp_min(least)) for name in one
    )


def step_alone(case: Case, size: int) -> Found:
    """Take a step in one process; with adapters, in the micro-batches of so many ranks.

    Their gradients have few numbers, and those of Qwen3.5 move by up to 4e-5 with the cut alone.
    """

    def cut(groups: Sequence[PromptGroup], tokens: int, **options: Any) -> Iterator[MicroBatch]:
        for share in shares(groups, size):
            yield from micro_batches(share, tokens, **options)

    with pytest.MonkeyPatch.context() as patch:
        if case.lora is not None:
            for module in (learner, self_teacher):
                patch.setattr(module, "micro_batches", cut)
        return take_step(case, World())


def assert_equal_steps(case: Case, *, worlds: tuple[int, ...] = (2, 3)) -> None:
    for size in worlds:
        alone = step_alone(case, size)
        for found in in_world(size, partial(take_step, case)):
            assert torch.equal(found.tokens, alone.tokens)
            assert difference({"": alone.logprobs}, {"": found.logprobs}) < TOLERANCE
            assert found.counts == alone.counts
            assert found.utility == pytest.approx(alone.utility, rel=1e-4, abs=1e-7)
            assert found.loss == pytest.approx(alone.loss, rel=1e-5)
            assert found.norm == pytest.approx(alone.norm, rel=1e-5)
            assert difference(alone.gradients, found.gradients) < TOLERANCE
            assert difference(alone.average, found.average) < 1e-3


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> tuple[Example, ...]:
    return make_examples(tmp_path_factory.mktemp("pictures"), n=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_small_model(tmp_path_factory.mktemp("model"), family="qwen3_vl", hidden=32)


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_vl", "qwen2_5_vl"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("lora", [None, LoraSettings(rank=2)], ids=["whole", "LoRA"])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "checkpointed"])
def test_a_step_of_several_processes_is_that_of_one(
    family: Family,
    tied: bool,
    lora: LoraSettings | None,
    checkpointing: bool,
    pictures: tuple[Example, ...],
    tmp_path: Path,
) -> None:
    model = build_small_model(tmp_path / "model", family=family, hidden=32, tied=tied)
    case = Case(folder=model, examples=pictures, lora=lora, checkpointing=checkpointing)
    assert_equal_steps(case)


@pytest.mark.parametrize(
    "change",
    [
        {"share_prompts": False},
        {"limit": 60},
        {"rows": (4,)},
        {"tokens": 1},
        {"fast_head": True, "limit": 60},
        {"lora": LoraSettings(rank=2), "checkpointing": True, "limit": 60},
    ],
    ids=["unshared", "small", "one-row", "length-1", "fast-head", "all"],
)
def test_so_it_is_whatever_the_settings(
    change: dict[str, Any], folder: Path, pictures: tuple[Example, ...]
) -> None:
    assert_equal_steps(Case(folder=folder, examples=pictures, **change), worlds=(3,))


def test_there_may_be_more_processes_than_prompts(
    folder: Path, pictures: tuple[Example, ...]
) -> None:
    assert_equal_steps(Case(folder=folder, examples=pictures[:2]), worlds=(3,))


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=str)
def test_one_process_that_treats_its_parameters_like_several_computes_the_same(
    precision: torch.dtype, folder: Path, pictures: tuple[Example, ...]
) -> None:
    case = Case(folder=folder, examples=pictures, precision=precision, limit=60)
    alone, other = (take_step(replace(case, always=always), World()) for always in (False, True))
    assert torch.equal(alone.tokens, other.tokens)
    assert alone.counts == other.counts
    tolerance = 1e-6 if precision is torch.float32 else 5e-3
    assert difference(alone.gradients, other.gradients) < tolerance
    assert difference(alone.after, other.after) < 1e-2


def test_in_half_precision_it_agrees_as_two_cuts_of_micro_batches_do(
    folder: Path, pictures: tuple[Example, ...]
) -> None:
    case = Case(folder=folder, examples=pictures, precision=torch.bfloat16, tokens=1)
    alone, other = (take_step(replace(case, limit=limit), World()) for limit in (16_384, 60))
    apart = difference(alone.gradients, other.gradients)
    for found in in_world(2, partial(take_step, case)):
        assert found.counts == alone.counts
        assert difference(alone.gradients, found.gradients) < max(2 * apart, 0.02)


def _with_mistake(owner: Any, name: str, mistake: Any, case: Case, world: World) -> Found:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, mistake)
        return take_step(case, world)


def _mean(world: World, parts: Tensor, begin: Any = World.begin_sum) -> Callable[[], Tensor]:
    wait = begin(world, parts)
    return lambda: wait() / world.size


def _own_part(world: World, parts: Tensor) -> Callable[[], Tensor]:
    return lambda: parts[world.rank]


@pytest.mark.parametrize("reshard", [False, True], ids=["gathered", "by layer"])
@pytest.mark.parametrize("mistake", ["mean per rank", "mean over ranks", "no sum"])
def test_a_mistake_in_the_sum_over_processes_shows(
    mistake: str, reshard: bool, folder: Path, pictures: tuple[Example, ...]
) -> None:
    case = Case(folder=folder, examples=pictures, reshard=reshard)
    alone = take_step(case, World())
    wrong: Callable[[World], Found] = {
        "mean per rank": partial(take_step, replace(case, per_rank_mean=True)),
        "mean over ranks": partial(_with_mistake, World, "begin_sum", _mean, case),
        "no sum": partial(_with_mistake, World, "begin_sum", _own_part, case),
    }[mistake]
    found = in_world(2, wrong)[0]
    assert difference(alone.gradients, found.gradients) > 100 * TOLERANCE


def _with_students_weights(
    shards: Shards, weights: Any = None, *, act: Any = Shards.gathered, **options: Any
) -> Any:
    return act(shards, None, **options)


@pytest.mark.parametrize("reshard", [False, True], ids=["gathered", "by layer"])
def test_a_teacher_whose_weights_do_not_reach_the_network_would_show(
    reshard: bool, folder: Path, pictures: tuple[Example, ...]
) -> None:
    case = Case(folder=folder, examples=pictures, reshard=reshard)
    alone = take_step(case, World())
    wrong = partial(_with_mistake, Shards, "gathered", _with_students_weights, case)
    found = in_world(2, wrong)[0]
    assert difference(alone.gradients, found.gradients) > 100 * TOLERANCE


def _give_up_then_step(
    case: Case, world: World, *, rank: int = 1, replicas: int = 1, keeps: bool = False
) -> Found:
    """Take a step after one that was given up between the head's backward and the network's."""
    objective, calls = Distillation.__call__, 0

    def interrupted(self: Distillation, hidden: Tensor, packed: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            return objective(self, hidden, packed)
        objective(self, hidden.detach().requires_grad_(), packed)  # The head's gradient stays.
        raise MemoryError("The memory of one process is full.")

    with pytest.MonkeyPatch.context() as patch:
        if world.rank == rank:
            patch.setattr(Distillation, "__call__", interrupted)
        if keeps:
            patch.setattr(Shards, "drop_gradients", lambda _: None)
        return take_step(case, world.replicated(replicas))


@pytest.mark.parametrize(
    ("size", "rank", "replicas"),
    [(2, 1, 1), (2, 0, 1), (3, 2, 1), (4, 2, 2)],
    ids=["two", "the leader", "three", "groups"],
)
def test_all_try_smaller_batches_when_the_memory_of_one_is_full_in_the_students_pass(
    size: int, rank: int, replicas: int, folder: Path, pictures: tuple[Example, ...]
) -> None:
    case = Case(folder=folder, examples=pictures)
    alone = take_step(case, World())
    work = partial(_give_up_then_step, case, rank=rank, replicas=replicas)
    for found in in_world(size, work):
        assert difference(alone.gradients, found.gradients) < TOLERANCE


def test_a_gradient_that_stays_on_the_gathered_head_would_show(
    folder: Path, pictures: tuple[Example, ...]
) -> None:
    case = Case(folder=folder, examples=pictures)
    alone = take_step(case, World())
    found = in_world(2, partial(_give_up_then_step, case, keeps=True))[0]
    assert difference(alone.gradients, found.gradients) > 100 * TOLERANCE


def _sent(folder: Path, examples: tuple[Example, ...], world: World) -> tuple[list[int], int]:
    """Sample, and return the bytes that each rank sent and the tokens of all responses."""
    found: list[Packed] = []
    together = World.together

    def spied(self: World, work: Callable[[], Any], **options: Any) -> list[Any]:
        results = together(self, work, **options)
        found.extend(result for result in results if isinstance(result, Packed))
        return results

    sampling = SamplingSettings(per_prompt=3, max_response_tokens=500)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "together", spied)
        rollouts = Sampler(make_model(folder), full_view, sampling, world=world).generate(
            PromptBatch(step=3, examples=examples)
        )
    assert rollouts.tokens.shape[1] == int(rollouts.lengths.max()) < 500
    return [len(pickle.dumps(part)) for part in found], int(rollouts.lengths.sum())


def test_ranks_send_valid_tokens_and_nothing_else(
    folder: Path, pictures: tuple[Example, ...]
) -> None:
    for sent, tokens in in_world(2, partial(_sent, folder, pictures)):
        assert len(sent) == 2
        # A token, its log-prob and its entropy; the rest is names and types.
        assert 12 * tokens < sum(sent) < 12 * tokens + 3_000


@given(st.data())
def test_what_ranks_send_is_what_they_drew(data: st.DataObject) -> None:
    prompts, per_prompt, ranks, pad = (data.draw(st.integers(1, 4)) for _ in range(4))
    shape = (prompts * per_prompt, data.draw(st.integers(1, 5)))
    lengths = data.draw(st.lists(st.integers(1, shape[1]), min_size=shape[0], max_size=shape[0]))
    valid = torch.arange(shape[1]) < torch.tensor(lengths)[:, None]
    drawn = Drawn(
        tokens=torch.randint(0, 2**31 - 1, shape).where(valid, pad),
        lengths=torch.tensor(lengths),
        logprobs=torch.randn(shape).where(valid, 0.0),
        entropies=torch.rand(shape).where(valid, 0.0),
    )
    rows = torch.arange(shape[0]).view(prompts, per_prompt)
    parts = []
    for rank in range(ranks):  # With more ranks than prompts some have no row.
        own = rows[rank::ranks].flatten()
        parts.append(Drawn(**{f.name: getattr(drawn, f.name)[own] for f in fields(Drawn)}).packed())
    found = Drawn.joined(parts, prompts, per_prompt, pad)
    longest = max(lengths)
    assert found.tokens.dtype == torch.int64
    assert torch.equal(found.tokens, drawn.tokens[:, :longest])
    assert torch.equal(found.lengths, drawn.lengths)
    assert torch.equal(found.logprobs, drawn.logprobs[:, :longest])
    assert torch.equal(found.entropies, drawn.entropies[:, :longest])


def _merged(world: World) -> tuple[dict[int, list[float]], int]:
    """Merge rows of two ranks, parts of a large tensor; the third has none."""
    large = torch.arange(10_000.0)
    own = {row: large[row : 2 * row] for row in range(world.rank, 6, 2) if world.rank < 2}
    sent: list[int] = []
    gather = World.gather

    def spied(self: World, value: Any, **options: Any) -> list[Any]:
        sent.append(len(pickle.dumps(value)))
        return gather(self, value, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "gather", spied)
        found = world.merged_tensors(own)
    return {row: values.tolist() for row, values in found.items()}, max(sent)


def test_rows_that_ranks_have_measured_travel_as_one_tensor() -> None:
    for found, most in in_world(3, _merged):
        assert list(found) == list(range(6))
        assert all(found[row] == [float(n) for n in range(row, 2 * row)] for row in found)
        assert most < 1_000  # not the tensor that they are part of
