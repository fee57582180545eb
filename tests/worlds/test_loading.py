"""Ranks of a machine load their models at the same time as far as its memory has room."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
from ranks import Train, in_world

from bas_opd.compute.world import World
from bas_opd.errors import ModelError
from bas_opd.run import ranks, state
from bas_opd.run.ranks import in_turns

Span = tuple[float, float]


def overlap(one: Span, other: Span) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def timed(load: Callable[[], object]) -> Span:
    begun = time.monotonic()
    load()
    return begun, time.monotonic()


@pytest.mark.parametrize(
    ("free", "keeps", "together"),
    [
        (300, 0, {(0, 1), (0, 2), (1, 2)}),
        (None, 0, {(0, 1), (0, 2), (1, 2)}),
        (299, 0, {(0, 2)}),
        (199, 0, set()),
        (1, 0, set()),
        # Each keeps 60 of 100: 120 are left for three that need 40 more, 119 for two.
        (300, 60, {(0, 1), (0, 2), (1, 2)}),
        (299, 60, {(0, 2)}),
    ],
)
def test_as_many_ranks_load_at_a_time_as_their_machine_has_room_for(
    free: int | None, keeps: int, together: set[tuple[int, int]]
) -> None:
    def work(world: World) -> Span:
        pytest.MonkeyPatch().setattr(ranks, "free_host_memory", lambda: free)
        return in_turns(world, lambda: timed(lambda: time.sleep(0.8)), needs=100, keeps=keeps)

    spans = in_world(3, work)
    found = {(a, b) for a, b in combinations(range(3), 2) if overlap(spans[a], spans[b])}
    assert found == together


def test_a_model_that_cannot_be_loaded_in_its_turn_is_an_error_of_all() -> None:
    def work(world: World) -> str:
        pytest.MonkeyPatch().setattr(ranks, "free_host_memory", lambda: 1)

        def load() -> None:
            if world.rank == 1:
                raise ModelError("no such weights")

        try:
            in_turns(world, load, needs=100)
        except ModelError as error:
            return str(error)
        return "loaded"

    sentence = f"Rank 1 on {socket.gethostname()}: no such weights"
    assert in_world(3, work) == [sentence] * 3


@pytest.mark.parametrize("settings", [(), ("optim.offload=true", "teacher.path=MODEL")])
def test_a_run_loads_its_models_in_turns(
    train: Train, tmp_path: Path, settings: tuple[str, ...], small_qwen35: Path
) -> None:
    log = tmp_path / "spans"
    log.mkdir()

    def fault(rank: int) -> None:
        patch = pytest.MonkeyPatch()
        patch.setattr(ranks, "free_host_memory", lambda: 1)
        opened, calls = state.open_model, iter(range(9))

        def slow(*given: object, **named: object) -> object:
            begun = time.monotonic()
            model = opened(*given, **named)  # type: ignore[arg-type]
            time.sleep(0.2)
            (log / f"{next(calls)}-{rank}").write_text(f"{begun} {time.monotonic()}")
            return model

        patch.setattr(state, "open_model", slow)

    settings = tuple(each.replace("MODEL", str(small_qwen35)) for each in settings)
    ended = train(2, tmp_path / "run", *settings, "run.steps=1", fault=fault)
    assert [each.code for each in ended] == [0, 0], ended
    files = sorted(log.iterdir())
    assert len(files) == (4 if settings else 2)
    spans = [tuple(map(float, file.read_text().split())) for file in files]
    for one, other in combinations(spans, 2):
        assert not overlap((one[0], one[1]), (other[0], other[1]))


def test_what_fails_between_two_models_is_told_by_all(
    train: Train, tmp_path: Path, small_qwen35: Path
) -> None:
    """The others wait for this rank to load the teacher, where they hear of it."""

    def fault(rank: int) -> None:
        def fail(*given: object) -> None:
            raise ModelError("the optimizer has no room")

        if rank == 1:
            pytest.MonkeyPatch().setattr(state, "Learner", fail)

    settings = (f"teacher.path={small_qwen35}", "run.steps=1")
    ended = train(2, tmp_path / "run", *settings, fault=fault)
    assert all(each.code for each in ended), ended
    assert "the optimizer has no room" in " ".join(ended[0].output.split()), ended[0].output
    assert not any("Traceback" in each.output for each in ended), ended
