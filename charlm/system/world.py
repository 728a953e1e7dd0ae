"""The processes of a run: a single one, or those that torchrun started, each with its part of the batch.

All processes run the same program, and call the methods of `World` in the same order. What only one may do, such as
writing files, is done by the first. An error that one of them meets in such a call ends all.
"""

import contextlib
import os
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor

from charlm.errors import CharlmError, ProcessError
from charlm.system import console

T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """The part `index` of `count` equal parts, into which a batch is cut along its streams."""

    index: int = 0
    count: int = 1

    def of(self, whole: Tensor, dim: int) -> Tensor:
        """This part of a tensor of the whole batch, whose streams are along `dim`."""
        return whole if self.count == 1 else whole.chunk(self.count, dim)[self.index].contiguous()


WHOLE = Part()


class World:
    """A run of a single process: every method does what it would do for one."""

    rank = 0
    """The number of this process; the first one is 0."""
    size = 1
    local_rank = 0
    """The number of this process on its machine."""
    local_size = 1
    """How many processes run on this machine."""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def shares_updates(self) -> bool:
        """Whether gradients go through `sum_`."""
        return False

    @property
    def part(self) -> Part:
        """The part of the batch that this process computes."""
        return Part(self.rank, self.size)

    def threads(self, asked: int) -> int:
        """CPU threads for this process: the number asked for, or, for 0, its share of the cores; 0: torch's default."""
        return asked

    def use(self, device: torch.device) -> None:
        """Set the device of the tensors in `sum_` and `join`."""

    def sum_(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all processes; the same bits in all of them."""

    def join(self, part: Tensor, dim: int) -> Tensor:
        """The whole tensor from the parts of all processes; the inverse of `Part.of`."""
        return part

    def total(self, number: float) -> float:
        """The sum of a number over all processes, in float64; the same in all of them."""
        return number

    def first(self, function: Callable[[], T]) -> T:
        """What the function returns in the first process, which alone runs it."""
        return function()

    def each(self, function: Callable[[], T]) -> T:
        """What the function returns here; ends all processes if it raises in one."""
        return function()

    def in_turn(self, function: Callable[[], T]) -> T:
        """`each`; the first process of a machine fills the caches before the others start."""
        return function()

    def same(self, name: str, find: Callable[[], object]) -> None:
        """ProcessError unless all processes find the same value; a single process does not look for it."""

    def agree(self, elapsed_s: float, signals: list[str]) -> tuple[float, list[str]]:
        """The first process's clock, and the signals that any process has received."""
        return elapsed_s, signals


ALONE = World()


class Processes(World):
    """The processes that torchrun started. Decisions go through a group of their own, which never waits for a GPU.

    Every method raises ProcessError if another process has ended or does not answer in time.
    """

    def __init__(self, rank: int, size: int, local_rank: int, local_size: int, timeout_s: float) -> None:
        from torch import distributed
        from torch.distributed.rendezvous import rendezvous

        self._distributed = distributed
        self.rank, self.size, self.local_rank, self.local_size = rank, size, local_rank, local_size
        self._timeout_s = timeout_s
        timeout = timedelta(seconds=timeout_s)
        with self._answered(f"not all {size} have come", then="start all of them, and check their --rdzv-endpoint"):
            store, _, _ = next(rendezvous("env://", rank, size, timeout=timeout))
            # torchrun's store keeps the addresses of processes that it has started before, and has lost.
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            store = distributed.PrefixStore(attempt, store)  # pyright: ignore[reportPrivateImportUsage]
            distributed.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
        self._group: Any = None
        places = self._gather((socket.gethostname(), _cores()))
        host, cores = places[rank]
        # Slurm gives each process cores of its own, torchrun all of them to everyone.
        sharing = sum(place == host and not cores.isdisjoint(others) for place, others in places)
        self._cores = max(1, len(cores) // sharing)

    @property
    def shares_updates(self) -> bool:
        return True

    def threads(self, asked: int) -> int:
        # torchrun sets this variable to 1 if the user has not set it.
        if asked or self.local_size == 1 or os.environ.get("OMP_NUM_THREADS", "1") != "1":
            return asked
        console.say("threads", f"{self._cores} for each process, its share of the cores; `threads` sets another number")
        return self._cores

    def use(self, device: torch.device) -> None:
        with self._answered(f"no group for tensors on {device.type}"):
            self._group = self._distributed.new_group(
                backend="nccl" if device.type == "cuda" else "gloo", timeout=timedelta(seconds=self._timeout_s)
            )

    def sum_(self, tensor: Tensor) -> None:
        with self._answered():
            self._distributed.all_reduce(tensor, group=self._group)

    def join(self, part: Tensor, dim: int) -> Tensor:
        parts = [torch.empty_like(part) for _ in range(self.size)]
        with self._answered():
            self._distributed.all_gather(parts, part.contiguous(), group=self._group)
        return torch.cat(parts, dim)

    def total(self, number: float) -> float:
        return float(self._sum([number])[0])

    def first(self, function: Callable[[], T]) -> T:
        value, error = _tried(function) if self.is_first else (None, None)
        outcome: list[Any] = [(value, _described(error))]
        with self._answered():
            self._distributed.broadcast_object_list(outcome)
        if error is not None:
            raise error
        value, fault = outcome[0]
        if fault:
            raise ProcessError(fault)
        return value

    def each(self, function: Callable[[], T]) -> T:
        value, error = _tried(function)
        faults = self._gather(_described(error))
        if error is not None:
            raise error
        for rank, fault in enumerate(faults):
            if fault:
                raise ProcessError(f"process {rank}: {fault}")
        return value  # type: ignore[return-value]

    def in_turn(self, function: Callable[[], T]) -> T:
        if self.local_rank == 0:
            result = self.each(function)
            self.each(lambda: None)
            return result
        self.each(lambda: None)
        return self.each(function)

    def same(self, name: str, find: Callable[[], object]) -> None:
        value = find()
        for rank, other in enumerate(self._gather(value)):
            if other != value:
                raise ProcessError(
                    f"{name}: process {self.rank} and process {rank} differ; allowed: the same in all processes; "
                    "use the same files, packages and kind of device everywhere"
                )

    def agree(self, elapsed_s: float, signals: list[str]) -> tuple[float, list[str]]:
        names = ("SIGINT", "SIGTERM")
        first_s, *counts = self._sum([elapsed_s if self.is_first else 0.0, *(name in signals for name in names)])
        return first_s, [name for name, count in zip(names, counts, strict=True) if count]

    def leave(self) -> None:
        """End the groups, when all is done."""
        self._distributed.destroy_process_group()

    def _sum(self, numbers: Sequence[float]) -> list[float]:
        """Sums over all processes, in float64, by the group for decisions."""
        tensor = torch.tensor(numbers, dtype=torch.float64)
        with self._answered():
            self._distributed.all_reduce(tensor)
        return tensor.tolist()

    def _gather(self, value: T) -> list[T]:
        values: list[Any] = [None] * self.size
        with self._answered():
            self._distributed.all_gather_object(values, value)
        return values

    @contextlib.contextmanager
    def _answered(self, what: str = "another one ended or did not answer", then: str = "") -> Iterator[None]:
        """Turn what torch says about other processes into one line."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            # torch's message begins with a place in its source, and goes on with general advice.
            reason = re.sub(r"^\[\S+\] ", "", str(error).strip()).splitlines()[0].partition(". ")[0]
            raise ProcessError(
                f"processes: {what} ({reason}); they wait {self._timeout_s:g} s for each other (CHARLM_TIMEOUT_S); "
                f"{then or 'see its own message, and go on with --resume'}"
            ) from None


def _tried(function: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return function(), None
    except Exception as error:
        return None, error


def _described(error: Exception | None) -> str:
    if error is None:
        return ""
    return str(error) if isinstance(error, CharlmError) else f"{type(error).__name__}: {error}"


def _cores() -> frozenset[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


@contextlib.contextmanager
def joined() -> Iterator[World]:
    """The world of this process: with others if the environment says so, as torchrun sets it.

    Processes but the first print errors of their own only. ProcessError if the others do not come.
    """
    if not {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        yield ALONE
        return
    rank, size, local_rank, local_size = (
        _number(name, default)
        for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1))
    )
    world = Processes(rank, size, local_rank, local_size, _number("CHARLM_TIMEOUT_S", 1800))
    if rank:
        console.speak_for(f"process {rank}")
    yield world
    world.leave()


def _number(name: str, default: int) -> int:
    found = os.environ.get(name, str(default))
    if not found.isdecimal():
        raise ProcessError(f"{name}: found {found!r} in the environment; allowed: an integer; start with torchrun")
    return int(found)
