"""The processes of a run: one alone, or those that torchrun started. One of them leads.

Values travel between ranks as Python objects over gloo, tensors over the backend of their device.
Nothing here imports torch before it is needed: commands ask who leads before they load it.
"""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, TypeVar, cast

from bas_opd.compute.rendezvous import (
    Rendezvous,
    failed,
    is_kept_by_agent,
    not_reached,
    placed,
)
from bas_opd.errors import (
    BasOpdError,
    ConfigError,
    FailedRank,
    LostRanks,
    PreemptionError,
    RankError,
    Unanswered,
)
from bas_opd.text import counted

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

Group: TypeAlias = Callable[[], Any]
"""A group while torch has it: who leaves it lets go of its connections, and the others hear so."""
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun tells each process that it starts."""
TIMEOUT_MINUTES = 30
"""Longest wait of a rank for the others."""


def is_launched() -> bool:
    """Return whether a launcher started this process."""
    return all(name in os.environ for name in VARIABLES)


def launched() -> tuple[int, int]:
    """Return rank and number of the processes that a launcher started; (0, 1) without one."""
    if not is_launched():
        return 0, 1
    rank, size, *_ = (_number(name) for name in VARIABLES if name != "MASTER_ADDR")
    return rank, size


def launched_here() -> int:
    """Return how many of them are on this machine."""
    return _number("LOCAL_WORLD_SIZE", "1")


@contextmanager
def telling_others() -> Iterator[None]:
    """Tell the other processes of an error of this one, before it joins them."""
    rank, size = launched()
    try:
        _check_restarts()
        yield
    except Exception as error:
        if size == 1:
            raise
        met = None
        with suppress(RankError):  # Nobody may be there to be told.
            met = Rendezvous(rank, size, timeout_minutes=1)
        if met is not None:
            _end_together(met, error)
        if isinstance(error, BasOpdError):
            raise
        raise failed(rank, error) from error


@contextmanager
def _left_together(met: Rendezvous) -> Iterator[None]:
    """Leave the groups; if by an error, tell it before the others find this process gone."""
    import torch.distributed as dist

    try:
        yield
    except Exception as error:
        _end_together(met, error)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _end_together(met: Rendezvous, error: Exception) -> NoReturn:
    from bas_opd.compute.memory import clear_frames

    settled = met.settle(error)
    clear_frames(error)  # They may hold groups.
    if settled is error:
        raise error
    raise settled from error


def _no_group() -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This process among those of its run."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Number of this process on its machine."""
    timeout_minutes: float = TIMEOUT_MINUTES
    """Longest wait for the others."""
    objects: Group = _no_group
    writers: Group = _no_group
    """Groups for Python objects: of the main thread, and of the thread that writes checkpoints."""
    replicas: int = 1
    """Into so many groups of neighbours the ranks are cut; each has all parameters."""
    within: Group = _no_group
    across: Group = _no_group
    """With replicas, groups for tensors: this rank's own, and who has the same rows in others."""
    advice: str = "set optim.offload=true, or train adapters with lora.rank"
    """What would make room, for sentences about full memory."""

    @classmethod
    @contextmanager
    def joined(
        cls,
        device: Literal["cpu", "cuda"],
        *,
        timeout_minutes: float = TIMEOUT_MINUTES,
        facts: Mapping[str, Any] | None = None,
        check: Callable[[Mapping[str, Any]], None] = lambda _: None,
    ) -> Iterator[World]:
        """Join the processes that were started together with this one, if there are any.

        Each passes the leader's `facts` to its `check`, and what that raises is raised on all. What
        fails later on one rank is at last the sentence and the exit code of all.
        """
        rank, size = launched()
        if size == 1:
            yield cls()
            return
        met = Rendezvous(rank, size, timeout_minutes=timeout_minutes)
        local = _number("LOCAL_RANK")
        world = cls(rank=rank, size=size, local_rank=local, timeout_minutes=timeout_minutes)
        with _left_together(met):
            _check_gpu(device, local)
            met.agree(facts or {}, check)
            world = world._grouped(device, met.store)
            yield world
            met.close()
            world.gather(None)  # A rank that left early would break the last exchange of others.

    def _grouped(self, device: str, store: Any) -> World:
        """Return it with groups for tensors and objects."""
        import torch
        import torch.distributed as dist

        wait = timedelta(minutes=self.timeout_minutes)
        if device == "cuda":
            torch.cuda.set_device(self.local_rank)
        with self._meeting():
            dist.init_process_group(
                "nccl" if device == "cuda" else "gloo",
                store=store,
                rank=self.rank,
                world_size=self.size,
                timeout=wait,
            )
            objects, writers = (dist.new_group(backend="gloo", timeout=wait) for _ in range(2))
        return replace(self, objects=weakref.ref(objects), writers=weakref.ref(writers))

    def replicated(self, replicas: int) -> World:
        """Return the same processes in so many groups; every rank must ask."""
        if replicas == 1:
            return self
        import torch.distributed as dist

        parts = self.size // replicas
        groups = [list(range(first, first + parts)) for first in range(0, self.size, parts)]
        wait = timedelta(minutes=self.timeout_minutes)
        with self._meeting():
            # All ranks make all groups, in the same order.
            within, across = (
                [dist.new_group(list(ranks), timeout=wait) for ranks in each]
                for each in (groups, zip(*groups, strict=True))
            )
        return replace(
            self,
            replicas=replicas,
            within=weakref.ref(within[self.rank // parts]),
            across=weakref.ref(across[self.rank % parts]),
        )

    @property
    def parts(self) -> int:
        """Among how many ranks the rows of a parameter are dealt out."""
        return self.size // self.replicas

    @property
    def part(self) -> int:
        """Which of these parts this rank has."""
        return self.rank % self.parts

    @property
    def saves(self) -> bool:
        """Whether checkpoints have this rank's rows: one group writes, as all have the same."""
        return self.rank < self.parts

    @property
    def leads(self) -> bool:
        """Whether this process holds the run directory, writes the records and decides."""
        return self.rank == 0

    def gather(self, value: T, *, writers: bool = False) -> list[T]:
        """Return the value of every rank, in their order."""
        if self.size == 1:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.size
        group = (self.writers if writers else self.objects)()
        self._exchange(lambda: dist.all_gather_object(values, value, group=group))
        return values

    def together(self, work: Callable[[], T], *, writers: bool = False) -> list[T]:
        """Work on every rank and return all results; what fails on one is raised on all.

        Memory that ran out on one rank is a MemoryError on all, so that all try smaller batches.
        """
        if self.size == 1:
            return [work()]
        result, failure = None, None
        try:
            result = work()
        except LostRanks:
            raise
        except Exception as error:
            failure = error
        try:
            own = (result, self._told(failure), socket.gethostname() if failure else "")
            outcomes = self.gather(own, writers=writers)
        except LostRanks as lost:  # Others may wait elsewhere, because this rank has failed.
            if failure is None or isinstance(failure, BasOpdError):
                raise failure or lost from None
            raise LostRanks(str(self._told(failure))) from failure
        if all(error is None for _, error, _ in outcomes):
            return [cast("T", each) for each, _, _ in outcomes]
        raise self._first(failure, [(error, host) for _, error, host in outcomes])

    def _first(
        self, failure: Exception | None, outcomes: list[tuple[Exception | None, str]]
    ) -> Exception:
        """Return the error of the first rank that failed, as this rank raises it."""
        rank, told, host = next(
            (rank, error, host) for rank, (error, host) in enumerate(outcomes) if error is not None
        )
        if isinstance(told, FailedRank):  # An exchange within this one may have told of it.
            rank = told.rank
        error = failure if failure is not None and rank == self.rank else told
        if not isinstance(error, BasOpdError):
            return error
        error.is_told = True
        is_alike = {str(each) for each, _ in outcomes} == {str(told)}
        if rank and not is_alike and not isinstance(error, PreemptionError):
            error.args = (placed(str(error), rank, host),)
        return error

    def each(self, work: Callable[[], T]) -> T:
        """Work on every rank and return its own result; what fails on one is raised on all."""
        own: list[T] = []
        self.together(lambda: own.append(work()))
        return own[0]

    def led(self, work: Callable[[], T], *, writers: bool = False) -> T:
        """Work on the leader alone; return its result, or raise its error, on every rank."""
        results = self.together(lambda: work() if self.leads else None, writers=writers)
        return cast("T", results[0])

    def dealt(self, work: Callable[[], Sequence[T]]) -> T:
        """Work on the leader alone for one part a rank; return this rank's, or raise its error."""
        parts: list[T] = []
        self.led(lambda: parts.extend(work()))
        if self.size == 1:
            return parts[0]
        import torch.distributed as dist

        own: list[Any] = [None]
        self._exchange(
            lambda: dist.scatter_object_list(own, parts or None, src=0, group=self.objects())
        )
        return own[0]

    def surely(self, work: Callable[[], T]) -> T:
        """Work where this rank cannot fail alone, as the others would wait: twice, then it ends.

        Work may run out of memory before its exchange with the others, and then begins again.
        """
        from bas_opd.compute.memory import ran_out, release

        if self.size == 1:
            return work()
        try:
            return work()
        except (RuntimeError, MemoryError) as error:
            if not ran_out(error):
                raise
        release()
        try:
            return work()
        except (RuntimeError, MemoryError) as error:
            if not ran_out(error):
                raise
            raise self._without_memory(error) from error

    def merged(self, values: dict[int, T]) -> dict[int, T]:
        """Return the entries of all ranks together, by their keys."""
        if self.size == 1:
            return values
        parts = self.gather(values)
        return dict(sorted((e for part in parts for e in part.items()), key=lambda entry: entry[0]))

    def merged_tensors(self, values: dict[int, Tensor]) -> dict[int, Tensor]:
        """Return the tensors `[n]` of all ranks, by their keys, on the host; one travels a rank."""
        if self.size == 1:
            return values
        import torch

        packed = torch.cat([value.cpu() for value in values.values()]) if values else torch.empty(0)
        merged: dict[int, Tensor] = {}
        for lengths, flat in self.gather(({key: len(v) for key, v in values.items()}, packed)):
            merged.update(zip(lengths, flat.split(list(lengths.values())), strict=True))
        return dict(sorted(merged.items()))

    def gather_parts(self, part: Tensor) -> Tensor:
        """Return the equal parts `[n]` of all rows as `[part, n]`."""
        out = part.new_empty((self.parts, len(part)))
        self.begin_gather(part, out)()
        return out

    def begin_gather(self, part: Tensor, out: Tensor) -> Callable[[], None]:
        """Begin to gather the equal parts `[n]` of all rows as `[part, n]`; return what waits."""
        if self.parts == 1:
            out[0] = part
            return lambda: None
        import torch.distributed as dist

        gather = _newer(dist, "all_gather_single", "all_gather_into_tensor")
        return self._begun(
            lambda: gather(out.view(-1), part, group=self.within(), async_op=True), part, out
        )

    def begin_sum(self, parts: Tensor) -> Callable[[], Tensor]:
        """Begin to sum `[part, n]` over all ranks; return what waits for this rank's part `[n]`."""
        if self.size == 1:
            return lambda: parts[0]
        import torch.distributed as dist

        part, wait = parts[0], None
        if self.parts > 1:
            part = parts.new_empty(parts.shape[1])
            reduce = _newer(dist, "reduce_scatter_single", "reduce_scatter_tensor")
            wait = self._begun(
                lambda: reduce(part, parts.view(-1), group=self.within(), async_op=True),
                parts,
                part,
            )

        def end() -> Tensor:
            if wait is not None:
                wait()
            if self.replicas > 1:
                self._exchange(lambda: dist.all_reduce(part, group=self.across()))
            return part

        return end

    def sum(self, value: Tensor) -> Tensor:
        """Return the sum of a tensor over the parts of all rows."""
        if self.parts > 1:
            import torch.distributed as dist

            self._exchange(lambda: dist.all_reduce(value, group=self.within()))
        return value

    def rows_of(self, rows: int) -> tuple[int, int]:
        """Return which of so many rows this rank has: equal parts, the last ones may be short."""
        each = self.most_rows(rows)
        return min(self.part * each, rows), min((self.part + 1) * each, rows)

    def most_rows(self, rows: int) -> int:
        """Return how many of so many rows the first ranks have."""
        return -(-rows // self.parts)

    def _begun(self, act: Callable[[], Any], *tensors: Tensor) -> Callable[[], None]:
        """Begin an exchange; return what waits for it, and keeps its tensors until then."""
        works: list[Any] = []
        self._exchange(lambda: works.append((act(), tensors)))
        return lambda: self._exchange(works[0][0].wait)

    def _exchange(self, act: Callable[[], object]) -> None:
        """Meet the other ranks, or say that they are gone."""
        from bas_opd.compute.memory import ran_out

        try:
            act()
        except (RuntimeError, MemoryError) as error:
            if ran_out(error):
                raise self._without_memory(error) from error
            raise Unanswered(
                f"Rank {self.rank} waited for the others in vain: one has ended without a word, or "
                f"did not answer within {self.timeout_minutes:g} minutes. Published checkpoints "
                "are as they were, so rerun the same command to resume."
            ) from error

    def _without_memory(self, error: Exception) -> LostRanks:
        return LostRanks(
            f"Rank {self.rank} on {socket.gethostname()} has no memory left to exchange with the "
            f"others ({_first_line(error)}). Use more processes, lower "
            f"optim.tokens_per_micro_batch or teacher.tokens_per_batch, or {self.advice}; "
            "published checkpoints are as they were, so rerun to resume."
        )

    @contextmanager
    def _meeting(self) -> Iterator[None]:
        """Make groups of ranks, or say that these did not come."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            raise not_reached(self.rank, self.size, self.timeout_minutes, error) from error

    def _told(self, error: Exception | None) -> Exception | None:
        """Return an error as other ranks raise it."""
        from bas_opd.compute.memory import ran_out

        if error is None or isinstance(error, BasOpdError):
            return error
        if ran_out(error):
            return MemoryError(str(error))
        return failed(self.rank, error)


def _check_restarts() -> None:
    """Refuse several agents whose restarts would share a store: they count these differently."""
    several, restarts = (
        os.environ.get(name, "0") not in ("0", without)
        for name, without in (("GROUP_WORLD_SIZE", "1"), ("TORCHELASTIC_MAX_RESTARTS", "0"))
    )
    if is_kept_by_agent() and several and restarts:
        raise ConfigError(
            "torchrun may restart the processes of several machines (--max-restarts), but all "
            "attempts would share one store, where each would read what the one before has left. "
            "Set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in the environment of torchrun on each "
            "machine."
        )


def _check_gpu(device: str, local_rank: int) -> None:
    import torch

    if device == "cuda" and local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"{socket.gethostname()} has {counted(torch.cuda.device_count(), 'GPU')}, but process "
            f"{local_rank + 1} of this machine needs one of its own. Start as many processes as "
            "there are GPUs (--nproc-per-node), or set model.device=cpu."
        )


def _number(name: str, default: str = "") -> int:
    text = os.environ.get(name, default)
    if not text.isdecimal():
        raise ConfigError(
            f"{name} is {text!r} in the environment, where the launcher of a run puts a whole "
            "number. Start the processes with torchrun, or remove the variable."
        )
    return int(text)


def _newer(module: Any, name: str, before: str) -> Callable[..., Any]:
    """Return a function of torch by its name since 2.13; the name before then warns."""
    return getattr(module, name, None) or getattr(module, before)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")
