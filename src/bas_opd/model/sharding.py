"""The parameters of a network over the processes of a run: each rank keeps some rows of every one.

Optimizer, moving average and checkpoints work on these rows. To compute, a rank gathers all weights
once a phase; inside such a phase no pass needs another rank, so ranks may differ in work, shrink
their batches, or fail alone. Gradients are summed over ranks between the student's micro-batches.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from bas_opd.compute.world import World

BUCKET = 2**27
"""Elements of all ranks that are exchanged together; a larger parameter is exchanged alone."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Parameters of one type that are exchanged together: the rows of each, padded, end to end."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    """Elements of a rank for each of them, padding counted."""

    def pieces(self, flat: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield what belongs to each parameter of `[..., n]`."""
        yield from zip(self.names, flat.split(self.sizes, dim=-1), strict=True)


class Shards:
    """This rank's rows of all parameters. The network's own have memory while they are gathered."""

    def __init__(
        self, network: nn.Module, head: nn.Module, precision: torch.dtype, world: World
    ) -> None:
        self.world = world
        self._whole: dict[str, nn.Parameter] = dict(network.named_parameters())
        self._is_gathered = False
        self.rows: dict[str, nn.Parameter] = {}
        for name, parameter in self._whole.items():
            start, stop = world.rows_of(len(parameter))
            own = parameter.detach()[start:stop].clone()
            self.rows[name] = nn.Parameter(own, requires_grad=parameter.requires_grad)
        for name in narrowed(network, head, precision, self._whole):
            parameter = self._whole[name]
            parameter.data = parameter.data.to(precision)
        for parameter in self._whole.values():
            # Memory of its own: that of a loaded file cannot be freed.
            parameter.data = torch.empty_like(parameter)
            _free(parameter)
        self._buckets = list(self._cut(list(self._whole)))
        self._trained = list(self._cut(list(self.trainable())))

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return this rank's rows of the trained parameters, by name."""
        return {name: rows for name, rows in self.rows.items() if rows.requires_grad}

    @contextmanager
    def gathered(self, weights: Mapping[str, Tensor] | None = None) -> Iterator[None]:
        """Fill the network with the weights of all ranks, or with other rows by their names.

        Gradients that are on the network at the end are dropped: an optimizer would not find them,
        and the next pass would add to them.
        """
        if self._is_gathered:
            if weights is not None:
                raise RuntimeError("Other weights are in the network; gathering does not nest.")
            yield
            return
        self._is_gathered = True
        try:
            rows = {**self.rows, **(weights or {})}
            with torch.no_grad():
                for bucket in self._buckets:
                    self._gather(bucket, rows)
            yield
        finally:
            self.drop_gradients()
            for parameter in self._whole.values():
                _free(parameter)
            self._is_gathered = False

    @torch.no_grad()
    def whole(self, name: str, rows: Tensor) -> Tensor:
        """Return all rows of a tensor that is spread like a parameter; every rank must ask."""
        shape = self._whole[name].shape
        parts = self.world.gather_parts(_padded(rows, self.world.most_rows(shape[0])).reshape(-1))
        return parts.view(-1, *shape[1:])[: shape[0]]

    @torch.no_grad()
    def sum_gradients(self) -> None:
        """Add the gradients of all ranks to those of the rows, in fp32; the network has none then.

        A sum, not a mean: the denominator of the loss is that of the whole step. Called after each
        micro-batch: gradients in half precision may not be added up, and take half the room.
        """
        own = [name for name, whole in self._whole.items() if whole.grad is not None]
        # A parameter without a gradient anywhere has none, as in one process: it does not decay.
        used = {name for names in self.world.gather(own) for name in names}
        for bucket in self._trained:
            self._sum(bucket, used)

    @property
    def exchanged(self) -> int:
        """Most bytes that a sum of gradients over ranks takes for a while, in fp32."""
        return max((self._summed_bytes(bucket) for bucket in self._trained), default=0)

    @property
    def gathered_bytes(self) -> int:
        """Bytes of the network while it is gathered."""
        return sum(p.numel() * p.element_size() for p in self._whole.values())

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients that a micro-batch leaves on the gathered network."""
        trained = (p for p in self._whole.values() if p.requires_grad)
        return sum(p.numel() * p.element_size() for p in trained)

    def drop_gradients(self) -> None:
        """Forget what passes have left on the network."""
        for parameter in self._whole.values():
            parameter.grad = None

    def first_row(self, name: str, tensor: Tensor) -> int | None:
        """Return where a tensor of a checkpoint begins, by its name there; None if it is whole."""
        if not tensor.dim() or not self.is_spread(name):
            return None
        owner = name if name in self.rows else name.partition(".")[2]
        return self.world.rows_of(len(self._whole[owner]))[0]

    def is_spread(self, name: str) -> bool:
        """Return whether a tensor of a checkpoint is spread over ranks.

        Its name there is a parameter's, or that after the kind of an optimizer's moment.
        """
        return name in self.rows or name.partition(".")[2] in self.rows

    def _cut(self, names: Sequence[str]) -> Iterator[Bucket]:
        """Put parameters of one type into buckets."""
        for dtype in dict.fromkeys(self._whole[name].dtype for name in names):
            bucket: dict[str, int] = {}
            for name in (each for each in names if self._whole[each].dtype is dtype):
                shape = self._whole[name].shape
                size = self.world.most_rows(shape[0]) * prod(shape[1:])
                if bucket and (sum(bucket.values()) + size) * self.world.size > BUCKET:
                    yield Bucket(tuple(bucket), tuple(bucket.values()))
                    bucket = {}
                bucket[name] = size
            yield Bucket(tuple(bucket), tuple(bucket.values()))

    def _gather(self, bucket: Bucket, rows: Mapping[str, Tensor]) -> None:
        """Fill the parameters of a bucket."""
        whole, world = [self._whole[name] for name in bucket.names], self.world
        for parameter in whole:
            _allocate(parameter)
        own = [
            _padded(rows[n].detach().to(p.dtype), world.most_rows(len(p))).reshape(-1)
            for n, p in zip(bucket.names, whole, strict=True)
        ]
        if self._fits_exactly(bucket):
            world.gather_parts(own[0], whole[0].data.view(world.size, -1))
            return
        parts = world.gather_parts(torch.cat(own))
        for name, piece in bucket.pieces(parts):
            target = self._whole[name].data
            target.copy_(piece.reshape(-1, *target.shape[1:])[: len(target)])

    def _sum(self, bucket: Bucket, used: Container[str]) -> None:
        """Add to the gradients of a bucket's rows."""
        ranks, first = self.world.size, self._whole[bucket.names[0]]
        if self._fits_exactly(bucket) and first.grad is not None:
            parts = _take(first).view(ranks, -1)
        else:
            shape = (ranks, sum(bucket.sizes))
            parts = torch.zeros(shape, dtype=torch.float32, device=first.device)
            for name, piece in bucket.pieces(parts):
                if self._whole[name].grad is not None:
                    whole = _take(self._whole[name])
                    rows = ranks * self.world.most_rows(len(whole))
                    piece.copy_(_padded(whole, rows).view(ranks, -1))
        for name, piece in bucket.pieces(self.world.sum_parts(parts)):
            rows = self.rows[name]
            if name in used:
                found = piece[: rows.numel()].view_as(rows)
                rows.grad = found if rows.grad is None else rows.grad.add_(found)

    def _summed_bytes(self, bucket: Bucket) -> int:
        """Return the bytes of `_sum`: this rank's part, what goes into it, and copies for that."""
        fp32, ranks, part = 4, self.world.size, sum(bucket.sizes)
        whole = [self._whole[name] for name in bucket.names]
        widened = [p.numel() if p.dtype is not torch.float32 else 0 for p in whole]
        if self._fits_exactly(bucket):
            return fp32 * (part + widened[0])
        padded = [
            ranks * size if len(p) % ranks else 0
            for p, size in zip(whole, bucket.sizes, strict=True)
        ]
        return fp32 * (part + ranks * part + max(map(sum, zip(widened, padded, strict=True))))

    def _fits_exactly(self, bucket: Bucket) -> bool:
        """Return whether a bucket is one parameter without padding: it needs no copy."""
        return len(bucket.names) == 1 and not len(self._whole[bucket.names[0]]) % self.world.size


def narrowed(
    network: nn.Module, head: nn.Module, precision: torch.dtype, known: Mapping[str, nn.Parameter]
) -> list[str]:
    """Return the parameters that are gathered in half precision: what autocast would round anyway.

    These are the linear layers but the head, whose logits are fp32. Adapters stay as they are: they
    are small, and what they adapt is in half precision already.
    """
    if precision is torch.float32 or hasattr(network, "get_base_model"):
        return []
    kept = {id(parameter) for parameter in head.parameters()}
    linear = {
        id(parameter)
        for module in network.modules()
        if isinstance(module, nn.Linear)
        for parameter in module.parameters(recurse=False)
    } - kept
    return [name for name, parameter in known.items() if id(parameter) in linear]


def _padded(rows: Tensor, count: int) -> Tensor:
    """Return rows with zeros behind them, so that all parts are equal."""
    spare = count - len(rows)
    return torch.cat([rows, rows.new_zeros(spare, *rows.shape[1:])]) if spare else rows


def _take(parameter: nn.Parameter) -> Tensor:
    """Return the gradient of a parameter in fp32; the parameter has none any more."""
    gradient, parameter.grad = parameter.grad, None
    assert gradient is not None
    return gradient.float().contiguous()


def _allocate(parameter: nn.Parameter) -> None:
    parameter.untyped_storage().resize_(parameter.numel() * parameter.element_size())


def _free(parameter: nn.Parameter) -> None:
    parameter.untyped_storage().resize_(0)
