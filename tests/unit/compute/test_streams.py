"""Copies on a GPU in any order that their streams allow, without a GPU."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from bas_opd.compute import streaming
from bas_opd.compute.streaming import HostTensors, Uploads

CPU = torch.device("cpu")
COPY = Tensor.copy_


class Operation:
    """Something on a stream, done at the earliest after what it waits for."""

    def __init__(self, action: Callable[[], Any], after: list[Operation]) -> None:
        self.action, self.after, self.is_done = action, after, False

    def run(self) -> None:
        if not self.is_done:
            for other in self.after:
                other.run()
            self.is_done = True
            self.action()


class Stream:
    """Does nothing until it must: operations queue up until something waits for them."""

    device = CPU

    def __init__(self) -> None:
        self.queue: list[Operation] = []
        self.after: list[Operation] = []

    def add(self, action: Callable[[], Any]) -> Operation:
        self.queue.append(Operation(action, self.after + self.queue[-1:]))
        self.after = []
        return self.queue[-1]

    def wait_event(self, event: Event) -> None:
        self.after = [*self.after, event.place]

    def wait_stream(self, other: Stream) -> None:
        self.after = [*self.after, *other.queue[-1:], *other.after]

    def synchronize(self) -> None:
        for operation in self.queue:
            operation.run()


class Event:
    place: Operation

    def record(self, stream: Stream) -> None:
        self.place = stream.add(lambda: None)


class Gpu:
    """Streams, and memory that is handed on as soon as it is freed."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.main = Stream()
        self.current, self.streams = [self.main], [self.main]
        self.free: list[Tensor] = []
        self.held = self.most = 0
        patch.setattr(torch.cuda, "Stream", self.new_stream)
        patch.setattr(torch.cuda, "Event", Event)
        patch.setattr(torch.cuda, "current_stream", lambda *_: self.main)
        patch.setattr(torch.cuda, "stream", self.within)
        patch.setattr(torch, "empty_like", self.allocate)
        patch.setattr(Tensor, "copy_", lambda *args, **options: self.copy(*args, **options))

    def new_stream(self) -> Stream:
        self.streams.append(Stream())
        return self.streams[-1]

    @contextmanager
    def within(self, stream: Stream) -> Iterator[None]:
        self.current.append(stream)
        yield
        self.current.pop()

    def allocate(self, like: Tensor, **_: Any) -> Tensor:
        fits = [memory for memory in self.free if memory.numel() == like.numel()]
        memory = fits[0] if fits else torch.zeros(like.numel())
        self.free = [other for other in self.free if other is not memory]
        self.held += like.numel()
        self.most = max(self.most, self.held)
        # What the memory was used for before may still come on the stream that it belongs to.
        self.current[-1].add(lambda: memory.fill_(torch.nan))
        given = memory.view(-1)
        weakref.finalize(given, self.take_back, memory)
        return given

    def take_back(self, memory: Tensor) -> None:
        self.held -= memory.numel()
        self.free.append(memory)

    def copy(self, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        target, source = target.detach(), source.detach()
        if non_blocking:
            self.current[-1].add(lambda: COPY(target, source))
            return target
        return COPY(target, source)


@pytest.mark.parametrize("seed", range(5))
def test_no_order_of_the_streams_changes_a_number(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "PIECE", 512)
    gpu, draws = Gpu(monkeypatch), random.Random(seed)
    shapes = {number: (draws.choice([100, 300, 700]),) for number in range(25)}
    sets = [HostTensors(shapes, CPU) for _ in range(2)]

    def work(piece: dict[int, tuple[Tensor, ...]]) -> None:
        for number, tensors in piece.items():
            one, two = (tensor.detach() for tensor in tensors)
            gpu.main.add(lambda one=one, number=number: one.add_(number + 1))
            gpu.main.add(lambda one=one, two=two: two.add_(one))
        for stream in draws.sample(gpu.streams, len(gpu.streams)):
            for operation in stream.queue[: draws.randint(0, len(stream.queue))]:
                operation.run()

    for _ in range(2):
        streaming._visit_gpu(sets, sets[0].pieces, work)
    for number in shapes:
        assert (sets[0].tensors[number] == 2 * (number + 1)).all()
        assert (sets[1].tensors[number] == 3 * (number + 1)).all()
    assert len(sets[0].pieces) > 10
    sizes = {number: shape[0] for number, shape in shapes.items()}
    assert gpu.most == 2 * streaming.most_in_flight(sizes)


@pytest.mark.parametrize("seed", range(5))
def test_a_layer_finds_its_own_weights_while_the_next_ones_come(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, draws = Gpu(monkeypatch), random.Random(seed)
    uploads = Uploads(CPU)
    uploads._stream = gpu.new_stream()  # type: ignore[assignment]
    homes = [torch.full((100,), float(number)) for number in range(20)]
    found: list[Tensor] = []

    def begin(home: Tensor) -> Tensor:
        copy = torch.empty_like(home)
        with uploads.begun():
            copy.copy_(home, non_blocking=True)
        return copy

    coming = begin(homes[0])
    for after in [*homes[1:], None]:
        layer = coming
        uploads.wait()
        if after is not None:
            coming = begin(after)
        weights = layer.detach()
        gpu.main.add(lambda weights=weights: found.append(weights.clone()))
        del layer, weights
        for stream in draws.sample(gpu.streams, len(gpu.streams)):
            for operation in stream.queue[: draws.randint(0, len(stream.queue))]:
                operation.run()
    gpu.main.synchronize()
    assert [set(weights.tolist()) for weights in found] == [{float(n)} for n in range(20)]
