"""Tensors in host memory: how they are laid out, cut and changed."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from bas_opd.compute import streaming
from bas_opd.compute.streaming import ALIGNMENT, PAGE, HostTensors, cut, most_in_flight, visit
from bas_opd.errors import OutOfMemory

CPU = torch.device("cpu")
SHAPES = {"a": (3, 50), "b": (), "c": (7,), "d": (40, 30), "e": (2, 3, 5)}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "PIECE", 4 * ALIGNMENT)


def test_pieces_hold_every_tensor_once_and_whole() -> None:
    pieces = cut({"a": 150, "b": 1, "c": 7, "d": 1200, "e": 30})
    assert [list(piece.places) for piece in pieces] == [["a", "b", "c"], ["d"], ["e"]]
    assert [piece.size for piece in pieces] == [4 * ALIGNMENT, 10 * ALIGNMENT, ALIGNMENT]
    assert pieces[0].start == 0
    assert all(one.stop == other.start for one, other in pairwise(pieces))
    assert all(place % ALIGNMENT == 0 for piece in pieces for place in piece.places.values())
    assert most_in_flight({"a": 150, "b": 1, "c": 7, "d": 1200, "e": 30}) == 14 * ALIGNMENT
    assert (most_in_flight({"a": 1}), most_in_flight({})) == (ALIGNMENT, 0)


def test_a_visit_changes_every_tensor_once() -> None:
    ones, twos = HostTensors(SHAPES, CPU), HostTensors(SHAPES, CPU)
    seen: list[str] = []
    for number, name in enumerate(SHAPES):
        ones.tensors[name].fill_(number)

    def work(piece: dict[str, tuple[Tensor, ...]]) -> None:
        for name, (one, two) in piece.items():
            assert one.shape == two.shape == SHAPES[name]
            seen.append(name)
            two.copy_(one + 1)
            one.mul_(10)

    visit([ones, twos], work)
    assert seen == list(SHAPES)
    for number, name in enumerate(SHAPES):
        assert (ones.tensors[name] == 10 * number).all()
        assert (twos.tensors[name] == number + 1).all()


def test_work_that_fails_leaves_its_own_piece_and_those_after_it() -> None:
    host = HostTensors(SHAPES, CPU)

    def work(piece: dict[str, tuple[Tensor, ...]]) -> None:
        for (tensor,) in piece.values():
            tensor += 1
        if "d" in piece:
            raise torch.OutOfMemoryError("full")

    with pytest.raises(torch.OutOfMemoryError):
        visit([host], work)
    assert {name: float(t.max()) for name, t in host.tensors.items()} == {
        "a": 1, "b": 1, "c": 1, "d": 0, "e": 0
    }  # fmt: skip


def test_copies_on_the_device_are_apart_from_the_host() -> None:
    host = HostTensors(SHAPES, CPU)
    host.on_device()["a"] += 1
    assert float(host.tensors["a"].max()) == 0


def test_an_empty_set_visits_nothing() -> None:
    host: HostTensors[str] = HostTensors({}, CPU)
    visit([host], lambda piece: pytest.fail(str(piece)))
    assert host.on_device() == {}


def test_a_host_without_room_is_a_sentence() -> None:
    with pytest.raises(OutOfMemory, match=r"no room for 4,000,000,000\.0 GB of page-locked memory"):
        HostTensors({"a": (10**18,)}, CPU)


def test_no_page_is_locked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    locked: list[range] = []

    def lock(address: int, size: int, _: int) -> int:
        locked.append(range(address // PAGE, -(-(address + size) // PAGE)))
        return 0

    cudart = SimpleNamespace(cudaHostRegister=lock, cudaHostUnregister=lambda _: None)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    hosts = [
        HostTensors({"a": (size,)}, torch.device("cuda"), dtype)
        for size in (1, 3, 700, 5000, 40_000)
        for dtype in (torch.float32, torch.bfloat16)
    ]
    pages = [page for each in locked for page in each]
    assert len(pages) == len(set(pages))
    for host, each in zip(hosts, locked, strict=True):
        end = host.flat.untyped_storage().data_ptr() + host.flat.untyped_storage().nbytes()
        assert each.stop * PAGE <= end
        assert not host.flat.any()
