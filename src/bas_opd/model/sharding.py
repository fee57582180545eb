"""The parameters of a network over the processes of a run: each rank keeps some rows of every one.

Optimizer, moving average and checkpoints work on these rows. To compute, a rank gathers all weights
once a phase; inside such a phase no pass needs another rank, so ranks may differ in work, shrink
their batches, or fail alone. Gradients are summed over ranks between the student's micro-batches.

The student's passes may gather layers one by one instead, each just before it is needed, and sum
its gradients as soon as they are there (`shard.reshard`). Then a pass has exchanges, and all ranks
make the same ones (`layerwise`). So do the passes of a frozen network whose rows are kept in host
memory, also in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import prod
from typing import TypeVar

import torch
from torch import Tensor, nn

from bas_opd.compute.memory import clear_frames, release
from bas_opd.compute.streaming import PIECE, HostTensors, Uploads, cut
from bas_opd.compute.world import World
from bas_opd.errors import LostRanks
from bas_opd.model.layerwise import Act, Exchanges, LayerPass, Tower, moments_of, towers_of

T = TypeVar("T")

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


@dataclass(frozen=True, slots=True)
class Part:
    """Some parameters, and how they are exchanged."""

    names: tuple[str, ...]
    gathered: tuple[Bucket, ...]
    summed: tuple[Bucket, ...]
    """The trained ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Bytes of the network in a moment of a pass."""

    weights: int
    gradients: int = 0
    exchanged: int = 0

    @property
    def bytes(self) -> int:
        return self.weights + self.gradients + self.exchanged


class Shards:
    """This rank's rows of all parameters. The network's own have memory while they are gathered.

    With `by_layer` the student's passes gather each layer when they need it. With `host_for` the
    rows of a frozen network are kept in host memory for that device, and all passes do so.
    """

    def __init__(
        self,
        network: nn.Module,
        head: nn.Module,
        precision: torch.dtype,
        world: World,
        *,
        by_layer: bool = False,
        host_for: torch.device | None = None,
    ) -> None:
        self.world = world
        by_layer = by_layer or host_for is not None
        self._whole: dict[str, nn.Parameter] = dict(network.named_parameters())
        self._is_gathered = False
        self._uploads = None if host_for is None else Uploads(host_for)
        self._host = [] if host_for is None else list(self._to_host(host_for))
        own = {name: rows for host in self._host for name, rows in host.tensors.items()}
        self.rows: dict[str, nn.Parameter] = {}
        for name, parameter in self._whole.items():
            start, stop = world.rows_of(len(parameter))
            rows = own[name] if own else parameter.detach()[start:stop].clone()
            self.rows[name] = nn.Parameter(rows, requires_grad=parameter.requires_grad)
        for name in narrowed(network, head, precision, self._whole):
            parameter = self._whole[name]
            parameter.data = parameter.data.to(precision)
        for parameter in self._whole.values() if host_for is None else ():
            # Memory of its own: that of a loaded file cannot be freed.
            parameter.data = torch.empty_like(parameter)
            _free(parameter)
        self._all = self._part(list(self._whole))
        self._towers: tuple[Tower, ...] = towers_of(network, head) if by_layer else ()
        names = {id(parameter): name for name, parameter in self._whole.items()}
        self._layers = {
            layer: self._part([names[id(parameter)] for parameter in layer.parameters()])
            for tower in self._towers
            for layer in tower.layers
        }
        in_layers = {name for part in self._layers.values() for name in part.names}
        self._kept = self._part([name for name in self._whole if name not in in_layers])
        """What a pass by layers holds throughout: the head, and what else is in no layer."""
        self._embedding = [layer for tower in self._towers[:1] for layer in tower.layers]
        heads = {id(parameter) for parameter in head.parameters()} if self._embedding else set()
        is_head = {name: id(self._whole[name]) in heads for name in self._kept.names}
        self._head, self._rest = (
            self._part([name for name in self._kept.names if is_head[name] is each])
            for each in (True, False)
        )
        """Of that, whose gradients are there when a pass turns back, and at its end."""
        self._is_by_layer = False
        self._reached: set[str] = set()
        self._begun: set[str] = set()
        """Parameters to whose rows a pass gave a gradient: one of this rank, and their first."""

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return this rank's rows of the trained parameters, by name."""
        return {name: rows for name, rows in self.rows.items() if rows.requires_grad}

    @contextmanager
    def gathered(
        self, weights: Mapping[str, Tensor] | None = None, *, learns: bool = False
    ) -> Iterator[None]:
        """Fill the network with the weights of all ranks, or with other rows by their names.

        A phase that learns may leave layers out, for `exchanging` to gather; one of a network in
        host memory does, and leaves out the head too. Gradients that are on the network at the end
        are dropped: an optimizer would not find them, and the next pass would add to them.
        """
        if self._is_gathered:
            if weights is not None or self._is_by_layer:
                raise RuntimeError("The network holds other weights; gathering does not nest.")
            yield
            return
        self._is_gathered = True
        self._is_by_layer = bool(self._layers) and (learns or self.is_on_host)
        first = self._all
        if self._is_by_layer:
            first = self._rest if self.is_on_host else self._kept
        is_lost = False
        try:
            rows = {**self.rows, **(weights or {})}
            for bucket in first.gathered:
                self.world.surely(partial(self._gather, bucket, rows))
            yield
        except LostRanks:
            is_lost = True  # What is left of an exchange may still write into the parameters.
            raise
        finally:
            self.drop_gradients()
            if self._uploads is not None:
                self._uploads.wait()  # A pass that failed may have left one under way.
            if not is_lost:
                self._free(list(self._whole))
            self._is_gathered = self._is_by_layer = False

    @property
    def is_on_host(self) -> bool:
        """Whether the rows are kept in host memory."""
        return self._uploads is not None

    @property
    def is_by_layer(self) -> bool:
        """Whether this phase gathers layers one by one."""
        return self._is_by_layer

    def exchanging(self, work: Callable[[], T], *, reads: int) -> T:
        """Compute a pass that calls the language model so many times at most, with its exchanges.

        All ranks call it at the same time. What `work` raises is raised after the last exchange.
        """
        exchanges = {
            layer: Exchanges(
                gather=[partial(self._begin_gather, bucket, self.rows) for bucket in part.gathered],
                sum=[partial(self._begin_early_sum, bucket) for bucket in part.summed],
                free=partial(self._free, part.names),
            )
            for layer, part in self._layers.items()
        }
        turning, ending = (
            [partial(self._begin_early_sum, bucket) for bucket in part.summed]
            for part in (self._head, self._rest)
        )
        current = LayerPass(self._towers, exchanges, turning, ending, reads=reads)
        try:
            with current.watched():
                found = work()
            self._end(current)
            self._check_all_summed()
            return found
        except LostRanks:
            raise
        except Exception as error:
            failure = error
        self._give_up(current, failure)
        raise failure

    def _check_all_summed(self) -> None:
        late = [name for name, parameter in self._whole.items() if parameter.grad is not None]
        if late:
            raise RuntimeError(
                f"{late[0]} got a gradient after its gradients were summed over the ranks. With "
                "shard.reshard=true an objective gives the head its gradients before the hidden "
                "states get theirs."
            )

    def _give_up(self, current: LayerPass, failure: Exception) -> None:
        """Make the exchanges of a failed pass that are left, for the other ranks."""
        # Its graph goes, and its gradients.
        clear_frames(failure)
        current.drop()
        self.drop_gradients()
        release()
        self.world.surely(partial(self._end, current))

    def _end(self, current: LayerPass) -> None:
        """Make the exchanges of a pass that are left; copies from host memory alone meet nobody."""
        if self._uploads is None or self.world.parts > 1:
            current.finish()
            return
        self._uploads.wait()
        for part in self._layers.values():
            self._free(part.names)

    @torch.no_grad()
    def whole(self, name: str, rows: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Return all rows of a tensor that is spread like a parameter; every rank must ask.

        They come to the device, from host memory too; with `dtype`, in that type.
        """
        shape, device = self._whole[name].shape, self._whole[name].device
        most, kind = self.world.most_rows(shape[0]), dtype or rows.dtype
        if self.world.parts == 1:
            return self.world.surely(lambda: _copied(rows, device, kind))

        def gather() -> Tensor:
            is_there = rows.device == device and rows.dtype is kind
            own = rows if is_there else _copied(rows, device, kind)
            return self.world.gather_parts(_padded(own, most).reshape(-1))

        return self.world.surely(gather).view(-1, *shape[1:])[: shape[0]]

    @torch.no_grad()
    def sum_gradients(self) -> None:
        """Add the gradients of all ranks to those of the rows, in fp32; the network has none then.

        A sum, not a mean: the denominator of the loss is that of the whole step. Called after each
        micro-batch: gradients in half precision may not be added up, and take half the room.
        """
        own = [name for name, whole in self._whole.items() if whole.grad is not None]
        own += sorted(self._reached)
        # A parameter without a gradient anywhere has none, as in one process: it does not decay.
        used = {name for names in self.world.gather(own) for name in names}
        for bucket in () if self._is_by_layer else self._all.summed:
            self.world.surely(partial(self._begin_sum, bucket))(used)
        for name in self._begun - used:
            self.rows[name].grad = None
        self._reached.clear()
        self._begun.clear()

    @property
    def gathered_bytes(self) -> int:
        """Bytes of the network while it is gathered."""
        return self._bytes(self._whole)

    @property
    def moving_bytes(self) -> int:
        """Bytes of host memory, at most, while the network is moved there: it, and one piece."""
        return self.gathered_bytes + max((host.flat.nbytes for host in self._host), default=0)

    @property
    def peak(self) -> Peak:
        """The moment in which the network takes the most bytes, in a pass that learns.

        In host memory: in any pass.
        """
        moments = self._host_moments() if self.is_on_host else self._moments()
        return max(moments, key=lambda moment: moment.bytes)

    def _host_moments(self) -> Iterator[Peak]:
        """Yield the bytes while each layer is filled, and while it computes and the next comes.

        First come the parameters that are in no layer; they stay.
        """
        rest = self._bytes(self._rest.names)
        filled = max(map(self._gathering_bytes, self._rest.gathered), default=0)
        yield Peak(weights=rest, exchanged=filled)
        order = [self._layers[layer] for (_, layer, _), _ in moments_of(self._towers, reads=2)]
        for part, after in pairwise(order):
            filled = sum(map(self._gathering_bytes, part.gathered))
            ahead = sum(map(self._in_flight, after.gathered))
            yield Peak(weights=rest + self._bytes(part.names), exchanged=max(filled, ahead))

    def _moments(self) -> Iterator[Peak]:
        """Yield the bytes of moments of a pass, each of them at most what is told.

        While a layer computes, the weights of the next one are on their way, and the gradients of
        the one before.
        """
        kept, last = self._bytes(self._kept.names), self._gradient_bytes(self._rest)
        sums = max(map(self._summed_bytes, self._rest.summed), default=0)
        yield Peak(weights=kept, gradients=last, exchanged=sums)
        if not self._layers:
            return
        own = {layer: part for layer, part in self._layers.items() if layer not in self._embedding}
        layers, alone = own.values(), [self._layers[layer] for layer in self._embedding]
        layer = max(self._bytes(part.names) for part in layers)
        gradients = max(map(self._gradient_bytes, layers))
        ahead = max(sum(map(self._in_flight, part.gathered)) for part in layers)
        behind = max(sum(map(self._summing_bytes, part.summed)) for part in layers)
        yield Peak(weights=kept + layer, gradients=last + gradients, exchanged=ahead + behind)
        for part in (self._head, *alone):  # Their gradients are summed while a layer computes.
            found = sum(map(self._summed_bytes, part.summed))
            yield Peak(
                weights=kept + layer,
                gradients=last + gradients + self._gradient_bytes(part),
                exchanged=ahead + max(found, behind),
            )
        for part in alone:
            copies = sum(map(self._gathering_bytes, part.gathered))
            yield Peak(weights=kept + self._bytes(part.names), exchanged=ahead + copies)

    def _gradient_bytes(self, part: Part) -> int:
        return self._bytes(name for name in part.names if self._whole[name].requires_grad)

    def drop_gradients(self) -> None:
        """Forget what passes have left on the network."""
        for parameter in self._whole.values():
            parameter.grad = None
        self._reached.clear()
        self._begun.clear()

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

    def _bytes(self, names: Iterable[str]) -> int:
        whole = (self._whole[name] for name in names)
        return sum(p.numel() * p.element_size() for p in whole)

    def _part(self, names: Sequence[str]) -> Part:
        trained = [name for name in names if self._whole[name].requires_grad]
        return Part(tuple(names), tuple(self._cut(names)), tuple(self._cut(trained)))

    def _cut(self, names: Sequence[str]) -> Iterator[Bucket]:
        """Put parameters of one type into buckets."""
        for dtype in dict.fromkeys(self._whole[name].dtype for name in names):
            bucket: dict[str, int] = {}
            for name in (each for each in names if self._whole[each].dtype is dtype):
                shape = self._whole[name].shape
                size = self.world.most_rows(shape[0]) * prod(shape[1:])
                if bucket and (sum(bucket.values()) + size) * self.world.parts > BUCKET:
                    yield Bucket(tuple(bucket), tuple(bucket.values()))
                    bucket = {}
                bucket[name] = size
            yield Bucket(tuple(bucket), tuple(bucket.values()))

    def _gather(self, bucket: Bucket, rows: Mapping[str, Tensor]) -> None:
        """Fill the parameters of a bucket. After the exchange no memory is taken: none can fail."""
        for name in bucket.names:
            _allocate(self._whole[name])
        self._begin_gather(bucket, rows)()

    @torch.no_grad()
    def _begin_gather(self, bucket: Bucket, rows: Mapping[str, Tensor]) -> Act:
        """Begin to gather the parameters of a bucket; return what fills them."""
        if self._uploads is not None:
            return self._begin_upload(bucket, self._uploads)
        whole, world = [self._whole[name] for name in bucket.names], self.world
        own = [
            _padded(rows[n].detach().to(p.dtype), world.most_rows(len(p))).reshape(-1)
            for n, p in zip(bucket.names, whole, strict=True)
        ]
        if self._fits_exactly(bucket):
            _allocate(whole[0])
            return world.begin_gather(own[0], whole[0].data.view(world.parts, -1))
        sent = torch.cat(own)
        parts = sent.new_empty((world.parts, len(sent)))
        return partial(self._end_gather, bucket, parts, world.begin_gather(sent, parts))

    def _begin_upload(self, bucket: Bucket, uploads: Uploads) -> Act:
        """Begin to gather from host memory; on a GPU it is busy with another layer meanwhile."""
        whole, world = [self._whole[name] for name in bucket.names], self.world
        if world.parts == 1:
            for parameter in whole:
                _allocate(parameter)
            with uploads.begun():
                for name, parameter in zip(bucket.names, whole, strict=True):
                    parameter.data.copy_(self.rows[name], non_blocking=True)
            return uploads.wait
        sent = torch.zeros(sum(bucket.sizes), dtype=whole[0].dtype, device=whole[0].device)
        if is_direct := self._fits_exactly(bucket):
            _allocate(whole[0])
            parts = whole[0].data.view(world.parts, -1)
        else:
            parts = sent.new_empty((world.parts, len(sent)))
        with uploads.begun():
            for name, piece in bucket.pieces(sent):
                rows = self.rows[name].view(-1)
                piece[: len(rows)].copy_(rows, non_blocking=True)
            wait = world.begin_gather(sent, parts)
        return wait if is_direct else partial(self._end_gather, bucket, parts, wait)

    @torch.no_grad()
    def _end_gather(self, bucket: Bucket, parts: Tensor, wait: Act) -> None:
        """Fill the parameters of a bucket with the rows of all ranks."""
        for name in bucket.names:  # before it waits: a rank that fails here tries once more
            _allocate(self._whole[name])
        wait()
        for name, piece in bucket.pieces(parts):
            whole = self._whole[name].data
            _fill(whole, piece, self.world.most_rows(len(whole)))

    def _to_host(self, device: torch.device) -> Iterator[HostTensors[str]]:
        """Yield this rank's rows in host memory, piece by piece; each leaves the network at once.

        So the host never has the network twice.
        """
        shapes: dict[torch.dtype, dict[str, tuple[int, ...]]] = {}
        for name, parameter in self._whole.items():
            assert not parameter.requires_grad
            start, stop = self.world.rows_of(len(parameter))
            shapes.setdefault(parameter.dtype, {})[name] = (stop - start, *parameter.shape[1:])
        for dtype, own in shapes.items():
            for piece in cut({name: prod(shape) for name, shape in own.items()}):
                host = HostTensors({name: own[name] for name in piece.places}, device, dtype)
                for name, rows in host.tensors.items():
                    parameter = self._whole[name]
                    start, stop = self.world.rows_of(len(parameter))
                    rows.copy_(parameter.detach()[start:stop])
                    parameter.data = torch.empty_like(parameter, device=device)
                    _free(parameter)
                yield host

    def _free(self, names: Sequence[str]) -> None:
        for name in names:
            _free(self._whole[name])

    @torch.no_grad()
    def _begin_early_sum(self, bucket: Bucket) -> Act:
        """Begin to sum the gradients of a bucket in a pass, also where no rank has any.

        Who has some is asked after the pass: here it would take one more exchange.
        """
        own = [name for name in bucket.names if self._whole[name].grad is not None]
        add = self._begin_sum(bucket)
        self._reached.update(own)

        def end() -> None:
            new = [name for name in bucket.names if self.rows[name].grad is None]
            add(bucket.names)
            self._begun.update(new)

        return end

    def _begin_sum(self, bucket: Bucket) -> Callable[[Container[str]], None]:
        """Begin to sum a bucket's gradients, which leave the network; return what adds the sums.

        They are added to the gradients of the rows, of the parameters that it is told.
        """
        ranks, whole = self.world.parts, [self._whole[name] for name in bucket.names]
        if self._fits_exactly(bucket) and (gradient := whole[0].grad) is not None:
            parts = _widened(gradient).view(ranks, -1)
        else:
            shape = (ranks, sum(bucket.sizes))
            parts = torch.zeros(shape, dtype=torch.float32, device=whole[0].device)
            for name, piece in bucket.pieces(parts):
                if (gradient := self._whole[name].grad) is not None:
                    rows = ranks * self.world.most_rows(len(gradient))
                    piece.copy_(_padded(_widened(gradient), rows).view(ranks, -1))
        wait = self.world.begin_sum(parts)
        for parameter in whole:
            parameter.grad = None

        def add(used: Container[str]) -> None:
            for name, piece in bucket.pieces(wait()):
                if name in used:
                    rows = self.rows[name]
                    found = piece[: rows.numel()].view_as(rows)
                    rows.grad = found if rows.grad is None else rows.grad.add_(found)

        return add

    def _summed_bytes(self, bucket: Bucket) -> int:
        """Return the bytes of a sum: this rank's part, what goes into it, and copies for that."""
        fp32, ranks, part = 4, self.world.parts, sum(bucket.sizes)
        whole = [self._whole[name] for name in bucket.names]
        widened = [p.numel() if p.dtype is not torch.float32 else 0 for p in whole]
        if self._fits_exactly(bucket):
            return fp32 * (part + widened[0])
        padded = [
            ranks * size if len(p) % ranks else 0
            for p, size in zip(whole, bucket.sizes, strict=True)
        ]
        return fp32 * (part + ranks * part + max(map(sum, zip(widened, padded, strict=True))))

    def _summing_bytes(self, bucket: Bucket) -> int:
        """Return the same while the gradients of another layer come to the network."""
        first = self._whole[bucket.names[0]]
        is_sent = self._fits_exactly(bucket) and first.dtype is torch.float32
        return self._summed_bytes(bucket) + (first.nbytes if is_sent else 0)

    def _gathering_bytes(self, bucket: Bucket) -> int:
        """Return the bytes of a gather besides the parameters: rows, copied, and all parts."""
        part, whole = sum(bucket.sizes), [self._whole[name] for name in bucket.names]
        if self.is_on_host:
            copied = 0 if self.world.parts == 1 else part
        else:
            copied = 0 if self._fits_exactly(bucket) else part
            copied += sum(
                size
                for name, size, p in zip(bucket.names, bucket.sizes, whole, strict=True)
                if self.rows[name].dtype is not p.dtype
            )
        if not self._fits_exactly(bucket):
            copied += self.world.parts * part
        return whole[0].element_size() * copied

    def _in_flight(self, bucket: Bucket) -> int:
        """Return the bytes of a gather while another layer computes."""
        is_filled = self._fits_exactly(bucket)
        return self._gathering_bytes(bucket) + (self._bytes(bucket.names) if is_filled else 0)

    def _fits_exactly(self, bucket: Bucket) -> bool:
        """Return whether a bucket needs no copy: one parameter without padding.

        Host memory of one process is copied into any.
        """
        if self.is_on_host and self.world.parts == 1:
            return True
        return len(bucket.names) == 1 and not len(self._whole[bucket.names[0]]) % self.world.parts


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


def _copied(rows: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return a copy on the device, which casts what comes from host memory, piece by piece."""
    copy = torch.empty(rows.shape, dtype=dtype, device=device)
    each = max(1, PIECE * len(rows) // max(1, rows.numel()))
    for target, piece in zip(copy.split(each), rows.split(each), strict=True):
        target.copy_(piece.to(device, non_blocking=True))
    return copy


def _fill(whole: Tensor, parts: Tensor, rows: int) -> None:
    """Copy so many rows of each rank, `[rank, n]`, behind one another; the last may be padded."""
    full = len(whole) // rows
    whole[: full * rows].view(full, -1).copy_(parts[:full])
    if full * rows < len(whole):
        rest = whole[full * rows :].view(-1)
        rest.copy_(parts[full, : len(rest)])


def _widened(gradient: Tensor) -> Tensor:
    return gradient.float().contiguous()


def _allocate(parameter: nn.Parameter) -> None:
    size = parameter.numel() * parameter.element_size()
    if parameter.untyped_storage().nbytes() != size:  # Another try may have made it.
        parameter.untyped_storage().resize_(size)


def _free(parameter: nn.Parameter) -> None:
    parameter.untyped_storage().resize_(0)
