"""Tensors that are kept in host memory and visit the device piece by piece."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Generic, TypeVar

import torch
from torch import Tensor

from bas_opd.errors import OutOfMemory

PIECE = 2**26
"""Elements that visit the device together. A larger tensor visits alone: it is never cut, because
the arithmetic on its last elements may depend on where it ends."""
ALIGNMENT = 128
"""A tensor starts at a multiple of so many elements, as the kernels for wide words need."""
PAGE = 4096
"""Bytes of a page of host memory."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Piece(Generic[Key]):
    """Tensors that lie side by side and visit the device together."""

    start: int
    stop: int
    places: dict[Key, int]
    """Tensor -> where it starts, counted from the start of the piece."""

    @property
    def size(self) -> int:
        return self.stop - self.start


def cut(sizes: Mapping[Key, int]) -> list[Piece[Key]]:
    """Cut tensors of given sizes, laid out one after another, into pieces."""
    pieces: list[Piece[Key]] = []
    for key, size in sizes.items():
        room = -(-size // ALIGNMENT) * ALIGNMENT
        last = pieces[-1] if pieces else Piece(0, 0, {})
        if not pieces or last.size + room > PIECE:
            pieces.append(Piece(last.stop, last.stop + room, {key: 0}))
        else:
            pieces[-1] = Piece(last.start, last.stop + room, {**last.places, key: last.size})
    return pieces


def most_in_flight(sizes: Mapping[Key, int]) -> int:
    """Return how many elements are on the device at once while all pieces visit it."""
    pieces = cut(sizes)
    pairs = (one.size + other.size for one, other in pairwise(pieces))
    return max((piece.size for piece in pieces), default=0) if len(pieces) < 2 else max(pairs)


class HostTensors(Generic[Key]):
    """Zeros of given shapes and one type, in one stretch of host memory, page-locked for a GPU.

    Whoever reads or writes `tensors` finds no copy under way: each method returns when it is done.
    """

    def __init__(
        self,
        shapes: Mapping[Key, Sequence[int]],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.device = device
        self._shapes = {key: tuple(shape) for key, shape in shapes.items()}
        self.pieces = cut({key: prod(shape) for key, shape in self._shapes.items()})
        self.flat = _host_zeros(self.pieces[-1].stop if self.pieces else 0, device, dtype)
        self.tensors: dict[Key, Tensor] = {}
        """Views of the memory."""
        for piece in self.pieces:
            self.tensors |= self.views(piece, self.flat[piece.start : piece.stop])

    def views(self, piece: Piece[Key], flat: Tensor) -> dict[Key, Tensor]:
        """Return the tensors of a piece within a copy of it."""
        return {
            key: flat[start : start + prod(self._shapes[key])].view(self._shapes[key])
            for key, start in piece.places.items()
        }

    def on_device(self) -> dict[Key, Tensor]:
        """Return a copy of every tensor on the device."""
        copies = {
            key: tensor.to(self.device, non_blocking=True, copy=True)
            for key, tensor in self.tensors.items()
        }
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return copies


class Uploads:
    """Copies from page-locked host memory to a device, beside what that computes."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Let copies begin; their targets are allocated before, and may still be in use."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            yield

    def wait(self) -> None:
        """Let what is computed from now on find all copies that have begun."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


@torch.no_grad()
def visit(
    sets: Sequence[HostTensors[Key]], work: Callable[[dict[Key, tuple[Tensor, ...]]], None]
) -> None:
    """Let `work` change the tensors of equal sets in place, piece by piece, on the device.

    It gets each key of a piece with the tensors of all sets. On a GPU the next piece is copied to
    the device, and the last one back, while one is worked on; two are there at a time. If `work`
    fails, the pieces before have changed and the others have not.
    """
    pieces, device = sets[0].pieces, sets[0].device
    if device.type == "cuda":
        with torch.cuda.device(device):
            _visit_gpu(sets, pieces, work)
        return
    for piece in pieces:
        homes = _homes(sets, piece)
        copies = [home.clone() for home in homes]
        work(_by_key(sets, piece, copies))
        for home, copy in zip(homes, copies, strict=True):
            home.copy_(copy)


def _visit_gpu(
    sets: Sequence[HostTensors[Key]],
    pieces: Sequence[Piece[Key]],
    work: Callable[[dict[Key, tuple[Tensor, ...]]], None],
) -> None:
    # Copies are allocated on the main stream and freed only after it waits for their way back, so
    # that the allocator may hand their memory on at once.
    main = torch.cuda.current_stream()
    up, down = torch.cuda.Stream(), torch.cuda.Stream()

    def fetch(piece: Piece[Key]) -> tuple[list[Tensor], torch.cuda.Event]:
        homes = _homes(sets, piece)
        copies = [torch.empty_like(home, device=main.device) for home in homes]
        up.wait_stream(main)  # Their memory may still be in use there.
        with torch.cuda.stream(up):
            for copy, home in zip(copies, homes, strict=True):
                copy.copy_(home, non_blocking=True)
        return copies, _reached(up)

    def send(piece: Piece[Key], copies: list[Tensor]) -> tuple[list[Tensor], torch.cuda.Event]:
        down.wait_stream(main)
        with torch.cuda.stream(down):
            for home, copy in zip(_homes(sets, piece), copies, strict=True):
                home.copy_(copy, non_blocking=True)
        return copies, _reached(down)

    leaving: tuple[list[Tensor], torch.cuda.Event] | None = None
    coming = fetch(pieces[0]) if pieces else None
    try:
        for number, piece in enumerate(pieces):
            assert coming is not None
            copies, arrived = coming
            if leaving is not None:
                main.wait_event(leaving[1])
                leaving = None
            coming = fetch(pieces[number + 1]) if number + 1 < len(pieces) else None
            main.wait_event(arrived)
            work(_by_key(sets, piece, copies))
            leaving = send(piece, copies)
    finally:
        # No copy may be under way when its memory is freed, or when a checkpoint reads the host's.
        up.synchronize()
        down.synchronize()


def _reached(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record(stream)
    return event


def _homes(sets: Sequence[HostTensors[Key]], piece: Piece[Key]) -> list[Tensor]:
    return [each.flat[piece.start : piece.stop] for each in sets]


def _by_key(
    sets: Sequence[HostTensors[Key]], piece: Piece[Key], copies: Sequence[Tensor]
) -> dict[Key, tuple[Tensor, ...]]:
    views = [each.views(piece, copy) for each, copy in zip(sets, copies, strict=True)]
    return {key: tuple(view[key] for view in views) for key in piece.places}


def _host_zeros(elements: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    # A plan that only counts bytes has no device.
    place = "meta" if device.type == "meta" else "cpu"
    # One page more: a page that two stretches share might not be locked for both.
    spare = PAGE // dtype.itemsize if device.type == "cuda" else 0
    try:
        flat = torch.zeros(elements + spare, dtype=dtype, device=place)[:elements]
    except RuntimeError as error:
        raise _host_is_full(elements * dtype.itemsize, str(error)) from error
    if device.type == "cuda" and elements:
        _page_lock(flat, device)
    return flat


def _page_lock(flat: Tensor, device: torch.device) -> None:
    """Page-lock memory in place: torch's own allocator rounds sizes up to a power of two."""
    cudart = torch.cuda.cudart()
    assert cudart is not None
    address, portable = flat.data_ptr(), 1
    with torch.cuda.device(device):
        if code := int(cudart.cudaHostRegister(address, flat.nbytes, portable)):
            raise _host_is_full(flat.nbytes, f"CUDA error {code} on locking its pages.")
    # The end of the process frees it as well, after which CUDA may no longer be called.
    weakref.finalize(flat, cudart.cudaHostUnregister, address).atexit = False


def _host_is_full(size: int, reason: str) -> OutOfMemory:
    return OutOfMemory(
        f"The host has no room for {size / 1e9:,.1f} GB of page-locked memory, which "
        f"optim.offload=true needs: {reason} Use a machine with more memory, or set "
        "optim.offload=false; `bas-opd plan` says what takes how much."
    )
