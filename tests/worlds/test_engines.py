"""Rollouts by vLLM and several processes: each rank drives an engine of its own.

A stand-in computes in place of vLLM, with a copy of the model that knows only the weights it was
given; `tests/engines/test_vllm_worlds.py` has the real one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from baseline_fixtures import SHORT, reward_even_tokens
from process import ask_to_stop, at
from ranks import Start, Train, train_in_world
from run_states import assert_same_end, assert_same_run, steps_of
from test_runs import assert_ended, assert_sound

from bas_opd.config import preset
from bas_opd.data.views import full_view
from bas_opd.errors import ModelError
from bas_opd.model.loading import open_model
from bas_opd.rollout import Sampler, vllm_engine
from bas_opd.rollout.sampler import Drawn
from bas_opd.rollout.vllm_engine import VllmEngine

VLLM = "rollout.engine=vllm"
Fault = Callable[[int], None]


class StandIn:
    """A model of its own with random weights, until some are loaded."""

    def __init__(self, engine: VllmEngine) -> None:
        self.model = open_model(engine.vllm.folder, device="cpu")
        self.sampler = Sampler(self.model, full_view, engine.settings)
        self.engine_core = SimpleNamespace(shutdown=lambda: None)
        for weight in self.model.trainable().values():
            weight.data.normal_()
        network: Any = self.model.network
        network.packed_modules_mapping = {}  # It has the names of the student.
        network.hf_to_vllm_mapper = SimpleNamespace(map_name=lambda name: name)

    @torch.no_grad()
    def collective_rpc(self, name: str, kwargs: dict[str, Any]) -> None:
        assert name == "reload_weights"
        own = dict(self.model.network.named_parameters())
        loaded = {name: own[name].copy_(weight) for name, weight in kwargs["weights_iterator"]}
        assert loaded.keys() == own.keys()

    def apply_model(self, work: Callable[[Any], Any]) -> list[Any]:
        return [work(self.model.network)]

    def reset_prefix_cache(self) -> None:
        """Do nothing: it has none."""

    def reset_encoder_cache(self) -> None:
        """Do nothing: it has none."""


def stand_in(_: int = 0) -> None:
    """Let a stand-in compute in this process."""

    def draw(engine: VllmEngine, own: Any, batch: Any) -> Drawn:
        engine.hooks.poll()
        if not own:
            return Drawn.empty(0, 1, 0)
        return engine.engine.sampler._draw(list(own.values()), list(own), batch)

    patch: Any = VllmEngine
    patch._started, patch._draw = lambda engine: StandIn(engine), draw
    module: Any = vllm_engine
    module.check_vllm = lambda: "0.32.0"
    groups = SimpleNamespace(
        cleanup_dist_env_and_memory=lambda: None,
        destroy_distributed_environment=lambda: None,
        ParallelLMHead=type("Head", (), {}),  # Its own head computes with no copy.
    )
    module._vllm = lambda _: groups


def on(rank: int, arm: Callable[[], None]) -> Fault:
    """Stand-ins everywhere, and a fault on one rank."""

    def armed(number: int) -> None:
        stand_in()
        if number == rank:
            arm()

    return armed


@pytest.fixture(scope="module")
def drawn(train: Train, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Runs of one, two and three processes."""
    home = tmp_path_factory.mktemp("drawn")
    for size in (1, 2, 3):
        ended = train(size, home / str(size), VLLM, fault=stand_in)
        assert [each.code for each in ended] == [0] * size, ended
    return {size: home / str(size) for size in (1, 2, 3)}


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_run_of_several_engines_is_that_of_the_sampler_alone(
    size: int, drawn: dict[int, Path], whole: dict[int, Path]
) -> None:
    assert_same_run(drawn[size], whole[1])
    assert_sound(drawn[size])
    engines = [step["engine"] for step in steps_of(drawn[size])]
    assert [each["version"] for each in engines] == [0, 1, 2, 3]
    assert all(each["rescored_rows"] == [0, 2, 4, 6] for each in engines)
    assert all(0 <= each["logprob_gap"] < 1e-5 for each in engines)
    rescored = [each["rescored_tokens"] for each in engines]
    assert rescored == [each["engine"]["rescored_tokens"] for each in steps_of(drawn[1])]


def test_one_process_that_treats_its_parameters_like_several_uses_it_too(
    train: Train, whole: dict[int, Path], tmp_path: Path
) -> None:
    ended = train(1, tmp_path / "run", VLLM, "shard.always=true", fault=stand_in)
    assert [each.code for each in ended] == [0], ended
    assert_same_run(tmp_path / "run", whole[1])


def test_there_may_be_more_processes_than_prompts(train: Train, tmp_path: Path) -> None:
    few = ("rollout.prompts_per_step=2", "run.steps=2")
    for size, *engine in ((1,), (3, VLLM)):
        ended = train(size, tmp_path / str(size), *few, *engine, fault=stand_in)
        assert [each.code for each in ended] == [0] * size, ended
    assert_same_run(tmp_path / "3", tmp_path / "1")
    assert steps_of(tmp_path / "3")[0]["engine"]["rescored_rows"] == [0, 2]


@pytest.mark.parametrize("name", ["sft-unfiltered", "grpo"])
def test_weights_that_are_lent_or_have_adapters_arrive_whole(
    name: str, model: Path, data: Path, tmp_path: Path
) -> None:
    def fault(_: int) -> None:
        reward_even_tokens(pytest.MonkeyPatch())
        stand_in()

    def stopped(rank: int) -> None:  # When it resumes, the student is no longer what it was.
        fault(rank)
        at(VllmEngine, "generate", ask_to_stop, call=3, before=True)()

    extra = ["optim.learning_rate=1e-5", "rollout.per_prompt=2"]
    extra += ["lora.rank=2"] if name == "grpo" else []
    for size, engine in ((1, []), (2, [VLLM])):
        paths = [f"model.path={model}", f"data.path={data}", f"run.output={tmp_path / str(size)}"]
        words = ["train", str(preset(name)), *paths, *SHORT, *extra, *engine]
        if engine:
            ended = train_in_world(size, words, stopped).wait()
            assert [each.code for each in ended] == [75] * size, ended
        ended = train_in_world(size, words, fault).wait()
        assert [each.code for each in ended] == [0] * size, ended
    assert_same_run(tmp_path / "2", tmp_path / "1")
    assert_sound(tmp_path / "2")


@pytest.mark.parametrize("rank", [0, 1])
def test_an_engine_that_does_not_start_on_one_rank_says_why_and_all_end_at_once(
    rank: int, start: Start, tmp_path: Path
) -> None:
    def meets(engine: VllmEngine) -> StandIn:
        if engine.world.rank == rank:
            raise ModelError("It has no memory for vLLM.")
        engine.world.begin_sum(torch.zeros(2, 1))()  # vLLM exchanges something while it starts.
        return StandIn(engine)

    def fault(_: int) -> None:
        stand_in()
        patch: Any = VllmEngine
        patch._started = meets

    ended = start(2, tmp_path / "run", VLLM, "shard.timeout_minutes=9", fault=fault).wait(60)
    assert_ended(ended, 1, "It has no memory for vLLM.")


def test_weights_that_do_not_arrive_on_one_rank_are_the_sentence_of_all(
    train: Train, tmp_path: Path
) -> None:
    def lose() -> None:
        load, calls = VllmEngine._load, iter(range(9))
        patch: Any = VllmEngine
        patch._load = lambda *given: load(*given) if next(calls) != 2 else None

    large = "optim.learning_rate=0.05"  # Of a small step the weights before are near enough.
    ended = train(2, tmp_path / "run", VLLM, large, fault=on(1, lose))
    assert_ended(ended, 1, "Step 2: the log-probs of vLLM on rank 1 are")
    assert len(steps_of(tmp_path / "run")) == 2
    again = train(2, tmp_path / "run", VLLM, large, fault=stand_in)
    assert [each.code for each in again] == [0, 0], again
    assert_sound(tmp_path / "run")


def test_a_weight_that_does_not_arrive_on_one_rank_is_the_sentence_of_all(
    train: Train, drawn: dict[int, Path], tmp_path: Path
) -> None:
    """After a small step, which log-probs would not show."""

    def lose() -> None:
        load, calls = StandIn.collective_rpc, iter(range(9))

        def incomplete(engine: StandIn, name: str, kwargs: dict[str, Any]) -> None:
            own = dict(engine.model.network.named_parameters())
            lost = next(name for name in own if name.endswith("layers.1.mlp.up_proj.weight"))
            before = own[lost].detach().clone()
            load(engine, name, kwargs)
            if next(calls) == 2:
                own[lost].data.copy_(before)

        patch: Any = StandIn
        patch.collective_rpc = incomplete

    ended = train(2, tmp_path / "run", VLLM, fault=on(1, lose))
    assert_ended(ended, 1, "vLLM on rank 1 does not hold version 2 of the student's weights: ")
    assert "layers.1.mlp.up_proj.weight is not what was sent" in " ".join(ended[0].output.split())
    assert len(steps_of(tmp_path / "run")) == 2
    again = train(2, tmp_path / "run", VLLM, fault=stand_in)
    assert [each.code for each in again] == [0, 0], again
    assert_same_end(tmp_path / "run", drawn[2])


def test_a_signal_to_one_engine_stops_all_and_the_run_resumes_to_the_same_end(
    train: Train, drawn: dict[int, Path], tmp_path: Path
) -> None:
    stop = on(1, at(VllmEngine, "_draw", ask_to_stop, call=3, before=True))
    ended = train(2, tmp_path / "run", VLLM, fault=stop)
    assert [each.code for each in ended] == [75, 75], ended
    again = train(2, tmp_path / "run", VLLM, fault=stand_in)
    assert [each.code for each in again] == [0, 0], again
    assert_same_end(tmp_path / "run", drawn[2])


def test_vllm_that_one_machine_lacks_is_refused(train: Train, tmp_path: Path) -> None:
    def missing() -> None:
        module: Any = vllm_engine
        module.check_vllm, module.version = check, lambda _: "0.31.0"
        module.importlib.util.find_spec = lambda _: True

    check = vllm_engine.check_vllm
    ended = train(2, tmp_path / "run", VLLM, fault=on(1, missing))
    assert_ended(ended, 2, "the vLLM that is installed is 0.31.0")
