"""A run whose pictures are opened ahead of time is the run that opens them in the loop."""

from __future__ import annotations

import os
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
from shapes import make_pictures

from bas_opd.config import Config
from bas_opd.data import views as data_views
from bas_opd.errors import PreemptionError
from bas_opd.model.encoding import ViewEncoder
from bas_opd.model.weights import ShadowWeights
from bas_opd.run import loop, state
from bas_opd.run.state import picture_threads
from bas_opd.types import Example

Make = Callable[..., Config]


@pytest.fixture
def config(small_qwen35: Path, tmp_path: Path) -> Make:
    data = make_pictures(tmp_path / "data", n=16, seed=1).folder
    return lambda output, *overrides: tiny(
        small_qwen35, data, tmp_path / output, *OFTEN, *overrides
    )


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, bool]]:
    """What was opened: the view, the example, and whether the loop had to."""
    found: list[tuple[str, str, bool]] = []

    def noting(name: str) -> Callable[[Example], Any]:
        real = getattr(data_views, name)

        def view(example: Example) -> Any:
            is_main = threading.current_thread() is threading.main_thread()
            found.append((name, example.id, is_main))
            return real(example)

        return view

    for name in ("full_view", "crop_view"):
        monkeypatch.setattr(state, name, noting(name))
    return found


def train(config: Config) -> Path:
    return loop.train(config, Silent()).directory


@pytest.mark.parametrize(
    "settings",
    [(), ("select.budget=processed_tokens",), ("teacher.tokens_per_batch=300",)],
    ids=lambda each: " ".join(each) or "as it is",
)
def test_workers_change_no_byte(settings: tuple[str, ...], config: Make) -> None:
    alone = train(config("alone", *settings))
    for workers in (1, 3):
        ahead = train(config(f"ahead-{workers}", f"data.workers={workers}", *settings))
        assert_same_end(ahead, alone)


@pytest.mark.parametrize("name", PRESETS)
def test_workers_change_no_byte_of_a_baseline(
    name: str, small_qwen35: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward_even_tokens(monkeypatch)
    alone, ahead = (
        train(short_config(name, tmp_path, small_qwen35, f"run-{n}", f"data.workers={n}"))
        for n in (0, 2)
    )
    assert_same_end(ahead, alone)


@pytest.mark.parametrize("poll", [12, 19])
@pytest.mark.parametrize("first", [0, 2])
def test_a_run_is_resumed_with_other_workers(
    first: int, poll: int, config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(config("whole"))
    with monkeypatch.context() as patch:
        stop_at(patch, poll)
        with pytest.raises(PreemptionError):
            train(config("run", f"data.workers={first}"))
    assert_same_end(train(config("run", f"data.workers={2 - first}")), whole)


def test_threads_open_every_picture_once_and_crops_of_selected_rows_only(
    config: Make, opened: list[tuple[str, str, bool]]
) -> None:
    run = train(config("run", "data.workers=2"))
    steps = [event for event in events_of(run) if event["event"] == "step"]
    assert not any(is_main for *_, is_main in opened)
    full = sorted(example for name, example, _ in opened if name == "full_view")
    # The step after the last is not prepared.
    assert full == sorted(example for step in steps for example in step["examples"])
    crops = sorted(example for name, example, _ in opened if name == "crop_view")
    assert crops == sorted(
        example
        for step in steps
        for example in {step["examples"][row // step["per_prompt"]] for row in step["selected"]}
    )


def test_the_next_pictures_are_opened_while_a_step_is_taken(
    config: Make, opened: list[tuple[str, str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    follow, steps = ShadowWeights.follow, 0

    def late(weights: ShadowWeights, tau: float) -> None:
        nonlocal steps
        steps += 1
        end = time.monotonic() + 20
        while sum(name == "full_view" for name, *_ in opened) < min(16, 4 * (steps + 1)):
            assert time.monotonic() < end
            time.sleep(0.005)
        follow(weights, tau)

    monkeypatch.setattr(ShadowWeights, "follow", late)
    train(config("run", "data.workers=1"))
    assert steps == 4


def test_the_time_that_was_waited_for_is_on_record(config: Make) -> None:
    for step in events_of(train(config("run"))):
        if step["event"] == "step":
            assert 0 < step["waited_seconds"] <= sum(step["seconds"].values())


def test_a_run_that_ends_leaves_no_picture_to_open(
    config: Make, opened: list[tuple[str, str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at(monkeypatch, 12)
    with pytest.raises(PreemptionError):
        train(config("run", "data.workers=1"))
    assert not [each for each in threading.enumerate() if each.name.startswith("pictures")]
    count = len(opened)
    threading.Event().wait(0.3)
    assert len(opened) == count


@pytest.mark.parametrize("name", [*PRESETS, "tiny"])
def test_closing_a_method_closes_every_encoder(
    name: str, small_qwen35: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, closed = list[ViewEncoder](), list[ViewEncoder]()
    start, close = ViewEncoder.__init__, ViewEncoder.close

    def noting_start(encoder: ViewEncoder, *args: Any, **kwargs: Any) -> None:
        made.append(encoder)
        start(encoder, *args, **kwargs)

    def noting_close(encoder: ViewEncoder) -> None:
        closed.append(encoder)
        close(encoder)

    monkeypatch.setattr(ViewEncoder, "__init__", noting_start)
    monkeypatch.setattr(ViewEncoder, "close", noting_close)
    config = short_config(name, tmp_path, small_qwen35, "run", "data.workers=1")
    method = state.build_method(config)
    assert made
    assert not closed
    method.close()
    assert {id(each) for each in closed} == {id(each) for each in made}


def test_threads_are_for_a_gpu_and_leave_it_a_core(
    config: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    unset, given = config("run"), config("run", "data.workers=5")
    assert picture_threads(given, cpu) == picture_threads(given, gpu) == 5
    assert picture_threads(unset, cpu) == 0
    for cores, processes, expected in ((1, 1, 1), (4, 1, 3), (64, 1, 8), (64, 8, 7), (8, 8, 1)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=cores: set(range(n)))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
        assert picture_threads(unset, gpu) == expected
