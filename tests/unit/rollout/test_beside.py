"""Rollouts beside the training: what a request to stop ends, and what it waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from stage_fixtures import make_examples
from torch import Tensor

from bas_opd.errors import PreemptionError
from bas_opd.rollout import AheadEngine, ahead
from bas_opd.rollout.ahead import Beside
from bas_opd.types import Example, Part, Prompt, PromptBatch, Rollouts

CPU = torch.device("cpu")


class Engine:
    """Draws one token for every prompt, and calls `during` while it does."""

    def __init__(self, during: Callable[[int], None] = lambda step: None) -> None:
        self.during, self.drawn, self.is_closed = during, list[int](), False

    def generate(self, batch: PromptBatch) -> Rollouts:
        self.drawn.append(batch.step)
        self.during(batch.step)
        rows = len(batch.examples)
        ids = torch.zeros(3, dtype=torch.long)
        prompt = Prompt(input_ids=ids, pixel_values=torch.zeros(1, 1), grid=torch.ones(1, 3))
        return Rollouts(
            step=batch.step,
            examples=batch.examples,
            prompts=(prompt,) * rows,
            per_prompt=1,
            tokens=torch.zeros(rows, 1, dtype=torch.long),
            lengths=torch.ones(rows, dtype=torch.long),
            logprobs=torch.zeros(rows, 1),
            entropies=torch.zeros(rows, 1),
        )

    def load_weights(self, named: Mapping[str, Tensor], version: int) -> None: ...

    def parts(self) -> dict[str, Part]:
        return {}

    def close(self) -> None:
        self.is_closed = True


class Stop:
    """A flag that is set from anywhere, and raises where it is polled."""

    def __init__(self) -> None:
        self.is_set = False

    def __call__(self) -> None:
        if self.is_set:
            raise PreemptionError("SIGTERM")


def never(example: Example) -> Any:
    raise AssertionError(example)


def batches(tmp_path: Path) -> list[PromptBatch]:
    examples = make_examples(tmp_path)
    return [PromptBatch(step=step, examples=examples, upcoming=examples) for step in range(3)]


def test_a_request_to_stop_waits_for_the_batch_that_is_being_drawn_and_begins_no_other(
    tmp_path: Path,
) -> None:
    stop = Stop()

    def during(step: int) -> None:
        stop.is_set = step == 1
        if step == 1:
            beside.poll()

    beside, engine = Beside(CPU, stop), Engine(during)
    policy, (first, second, _) = (
        AheadEngine(engine, never, never, beside=beside),
        batches(tmp_path),
    )
    policy.load_weights({}, 0)
    policy.generate(first)
    with pytest.raises(PreemptionError):
        policy.generate(second)
    assert engine.drawn == [0, 1]
    assert {key.partition(".")[0] for key in policy.state_dict()} == {"1"}
    policy.close()


def test_in_the_main_thread_a_poll_is_that_of_the_run() -> None:
    stop = Stop()
    stop.is_set = True
    with pytest.raises(PreemptionError):
        Beside(CPU, stop).poll()


def test_an_engine_that_still_draws_is_not_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "PATIENCE_SECONDS", 0.05)
    done = threading.Event()
    for hangs in (True, False):
        engine = Engine(lambda step, hangs=hangs: hangs and step == 1 and done.wait(60))  # type: ignore[misc]
        policy = AheadEngine(engine, never, never, beside=Beside(CPU))
        policy.load_weights({}, 0)
        policy.generate(batches(tmp_path)[0])
        policy.close()
        assert engine.is_closed is not hangs
    done.set()


def test_all_batches_of_a_gpu_are_drawn_in_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[object] = []
    streams: list[object] = []

    def stream(device: torch.device) -> SimpleNamespace:
        streams.append(SimpleNamespace(wait_stream=waited.append))
        return streams[-1]  # type: ignore[return-value]

    monkeypatch.setattr(torch.cuda, "Stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "the trainer's")
    monkeypatch.setattr(Beside, "_run", lambda beside, work, future: None)
    beside = Beside(torch.device("cuda"))
    for _ in range(2):
        beside.start(never)  # type: ignore[arg-type]
    assert len(streams) == 1
    assert waited == ["the trainer's"] * 2
