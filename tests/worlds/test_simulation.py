"""The simulation of a step on many GPUs: its bytes are those that ranks exchange."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import in_world
from small_models import build_small_model
from stage_fixtures import crop_teacher, make_examples, make_model
from torch import Tensor

from bas_opd.compute.world import World
from bas_opd.data.views import full_view
from bas_opd.distill.loss import DistillSettings
from bas_opd.learn import Distillation, Learner, OptimizerSettings
from bas_opd.rollout import Sampler, SamplingSettings
from bas_opd.types import Example, PromptBatch
from benchmarks.scale_simulation import Pool, Step, options, simulate, traffic


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("simulated")
    return build_small_model(home / "model", family="qwen3_5", hidden=32, tied=False)


def _bytes_of_phases(
    folder: Path, examples: tuple[Example, ...], replicas: int, reshard: bool, world: World
) -> dict[str, tuple[int, int, int]]:
    """Phase -> bytes received as weights, sent as gradients, and micro-batches."""
    model = make_model(folder, precision=torch.bfloat16)
    world = world.replicated(replicas)
    model.shard(world, by_layer=reshard)
    moved: Counter[str] = Counter()
    begin_gather, begin_sum, sum_gradients = World.begin_gather, World.begin_sum, 0

    def gather(self: World, part: Tensor, out: Tensor) -> Callable[[], None]:
        moved["gathered"] += (self.parts - 1) * part.nbytes
        return begin_gather(self, part, out)

    def add(self: World, parts: Tensor) -> Callable[[], Tensor]:
        own = parts[0].nbytes
        moved["summed"] += (self.parts - 1) * own + 2 * own * (replicas - 1) // replicas
        return begin_sum(self, parts)

    found: dict[str, tuple[int, int, int]] = {}

    def count(phase: str, work: Callable[[], Any]) -> Any:
        moved.clear()
        result = work()
        found[phase] = (moved["gathered"], moved["summed"], sum_gradients)
        return result

    assert model.shards is not None
    settle = model.shards.sum_gradients

    def settled() -> None:
        nonlocal sum_gradients
        sum_gradients += 1
        settle()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "begin_gather", gather)
        patch.setattr(World, "begin_sum", add)
        patch.setattr(model.shards, "sum_gradients", settled)
        sampler = Sampler(model, full_view, SamplingSettings(per_prompt=3), world=world)
        batch = PromptBatch(step=0, examples=examples)
        rollouts = count("sample", lambda: sampler.generate(batch))
        teacher, rows = crop_teacher(model, world=world), rollouts.candidates()
        scores = count("score", lambda: teacher.score(rollouts, rows))
        learner = Learner(model, OptimizerSettings(tokens_per_micro_batch=100), world=world)
        objective = Distillation(scores, head=model.logits, settings=DistillSettings(k=20))
        count("learn", lambda: learner.accumulate(rollouts, rows, objective))
    return found


@pytest.mark.parametrize(
    ("size", "replicas", "reshard"), [(2, 1, False), (3, 1, True), (4, 2, True)], ids=str
)
def test_it_counts_the_bytes_that_ranks_exchange(
    size: int, replicas: int, reshard: bool, folder: Path, tmp_path: Path
) -> None:
    examples = make_examples(tmp_path, n=4)
    work = partial(_bytes_of_phases, folder, examples, replicas, reshard)
    moved = traffic(str(folder), size, replicas=replicas, reshard=reshard)
    for found in in_world(size, work):
        *_, turns = found["learn"]
        assert turns > 1
        assert found["sample"] == (moved.phase, 0, 0)
        assert found["score"] == (moved.phase + moved.head, 0, 0)
        learned = moved.learn + turns * moved.turn
        assert found["learn"] == (learned, turns * (moved.summed + moved.across), turns)


def simulated(tmp_path: Path, folder: Path, *words: str) -> list[Step]:
    """Simulate steps on 1, 2 and 4 GPUs; every prompt is one of two."""
    chosen = options().parse_args(["--model", str(folder), "--prompts-per-gpu", "2", *words])
    pool: Pool = [(1000, [50, 60, 70, 80, 90, 100, 110, 120]), (2000, [10] * 7 + [400])]
    return [simulate(chosen, gpus, pool, 12, 1e-4, tmp_path) for gpus in (1, 2, 4)]


def test_a_step_of_1_2_and_4_gpus(folder: Path, tmp_path: Path) -> None:
    one, two, four = simulated(tmp_path, folder)
    assert [step.prompts for step in (one, two, four)] == [2, 4, 8]
    assert one.sample_gb == one.summed_gb == one.moving == one.others == one.idle == 0
    # All but a GPU's own rows; the last of these may be padded.
    assert 2 * two.sample_gb == pytest.approx(4 / 3 * four.sample_gb, rel=0.05)
    assert two.sample_gb == two.learn_gb < two.score_gb
    assert 0 < two.others < four.others
    assert all(step.total >= step.computing + step.idle for step in (one, two, four))
    content = four.content()
    assert content["total"] == pytest.approx(four.total, abs=1e-5)
    assert 0 < content["computing_share"] < 1


def test_groups_and_resharding_move_what_they_move(folder: Path, tmp_path: Path) -> None:
    plain, by_layer, grouped = (
        simulated(tmp_path, folder, *words)[-1]
        for words in ((), ("--reshard",), ("--reshard", "--group", "2"))
    )
    assert [step.replicas for step in (plain, by_layer, grouped)] == [1, 1, 2]
    assert plain.sample_gb == by_layer.sample_gb > grouped.sample_gb
    assert by_layer.learn_gb > plain.learn_gb
    assert by_layer.summed_gb > plain.summed_gb
