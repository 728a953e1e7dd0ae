"""The processes of a run: a single one, or those that torchrun started, each with its shard of the batch.

All processes run the same program and call the methods of `ProcessGroup` in the same order. An error in such a call
ends all processes, and one of them prints it; if a process is gone, each of the others reports that.
"""

import contextlib
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from charlm.errors import CharlmError
from charlm.system import console
from charlm.system.host import count_cores

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E", bound=CharlmError)


@dataclass(frozen=True)
class Shard:
    """Shard `index` of a batch that is cut into `count` equal shards along its streams."""

    index: int = 0
    count: int = 1

    def of(self, whole: Tensor, dim: int) -> Tensor:
        """This shard of a tensor of the whole batch, whose streams are along `dim`."""
        return whole if self.count == 1 else whole.chunk(self.count, dim)[self.index].contiguous()


WHOLE_BATCH = Shard()


class ProcessGroup:
    """The processes of a run; without a timeout it is this one, and nothing is exchanged.

    Every method raises CharlmError if another process has ended or does not answer in time.
    """

    def __init__(
        self, rank: int = 0, size: int = 1, local_rank: int = 0, local_size: int = 1, timeout_s: float | None = None
    ) -> None:
        self.rank, self.size = rank, size
        self.local_rank, self.local_size = local_rank, local_size
        """The number of this process on its machine, and how many run there."""
        self.is_distributed = timeout_s is not None
        """Whether torchrun started this process, alone or with others."""
        self._group: Any = None
        self._flat = torch.empty(0)
        self._store: Any = None
        if timeout_s is not None:
            self._timeout_s = timeout_s
            with self._answered(f"not all {self.size} have come", "start all of them, and check their --rdzv-endpoint"):
                _within(timeout_s + _SLACK_S, self._join)

    def _join(self) -> None:
        from torch.distributed.rendezvous import rendezvous

        timeout = timedelta(seconds=self._timeout_s)
        self._store, _, _ = next(rendezvous("env://", self.rank, self.size, timeout=timeout))
        store = dist.PrefixStore(self._meet(), self._store)  # pyright: ignore[reportPrivateImportUsage]
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.size, timeout=timeout)

    def _meet(self) -> str:
        """A name for this meeting. torchrun's store keeps what processes that it started before have written."""
        token, store = uuid.uuid4().hex, self._store
        if not self.is_first:
            store.set(f"hello/{self.rank}", token)
            name = store.get(f"answer/{token}").decode()
            store.set(f"here/{name}/{self.rank}", "")
            return name
        missing = set(range(1, self.size))
        end_s = time.monotonic() + self._timeout_s
        while missing := {other for other in missing if not store.check([f"here/{token}/{other}"])}:
            for other in missing:
                # The last greeting may come from a process that is gone; then the answer does no harm.
                if store.check([f"hello/{other}"]):
                    store.set(f"answer/{store.get(f'hello/{other}').decode()}", token)
            if time.monotonic() > end_s:
                raise RuntimeError(f"{self.size - len(missing)} of {self.size}")
            time.sleep(0.02)
        return token

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def shard(self) -> Shard:
        """The shard of the batch that this process computes."""
        return Shard(self.rank, self.size)

    def threads(self, requested: int) -> int:
        """CPU threads for this process: as requested, or, for 0, its share of the cores; 0: torch's default."""
        # torchrun sets this variable to 1 if the user has not set it.
        if requested or self.local_size == 1 or os.environ.get("OMP_NUM_THREADS", "1") != "1":
            return requested
        return max(1, count_cores() // self.local_size)

    def use(self, device: torch.device) -> None:
        """Set the device of the tensors that are exchanged; the same kind in all processes."""
        if not self.is_distributed:
            return
        self.check_equal("device", lambda: device.type)
        # The group for decisions shall be the first to notice that a process does not answer: its error is one line.
        backend, timeout_s = ("nccl", 2 * self._timeout_s) if device.type == "cuda" else ("gloo", self._timeout_s)
        if self._group is not None and dist.get_backend(self._group) == backend:
            return
        with self._answered(f"no group for tensors on {device.type}"):
            self._group = dist.new_group(backend=backend, timeout=timedelta(seconds=timeout_s))

    def all_reduce_gradients(self, parameters: Sequence[Tensor], *scores: Tensor) -> tuple[Tensor, ...]:
        """Sum the gradients of the parameters over all processes, and 0-d scores, which are returned.

        They travel in one buffer, and the gradients become views of it, until the next call. Nothing overlaps: a
        recurrence's gradients are complete only at the end of the backward pass.
        """
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        sizes = [tensor.numel() for tensor in (*parameters, *scores)]
        if self._flat.numel() != sum(sizes):
            self._flat = torch.empty(sum(sizes), dtype=gradients[0].dtype, device=gradients[0].device)
        torch.cat([tensor.reshape(-1) for tensor in (*gradients, *scores)], out=self._flat)
        with self._answered():
            dist.all_reduce(self._flat, group=self._group)
        sums = self._flat.split(sizes)
        for parameter, gradient in zip(parameters, sums, strict=False):
            parameter.grad = gradient.view_as(parameter)
        return tuple(score[0] for score in sums[len(parameters) :])

    def broadcast_(self, tensor: Tensor) -> None:
        """Replace a tensor by the first process's."""
        if self.is_distributed:
            with self._answered():
                dist.broadcast(tensor, 0, group=self._group)

    def all_gather(self, shard: Tensor, dim: int) -> Tensor:
        """The tensor of the whole batch from the shards of all processes; the inverse of `Shard.of`."""
        if not self.is_distributed:
            return shard
        shard = shard.contiguous()
        shards = [torch.empty_like(shard) for _ in range(self.size)]
        with self._answered():
            dist.all_gather(shards, shard, group=self._group)
        return torch.cat(shards, dim)

    def sums(self, numbers: Sequence[float]) -> list[float]:
        """The sum of each number over all processes, in float64; the same in all of them."""
        if not self.is_distributed:
            return list(numbers)
        tensor = torch.tensor(numbers, dtype=torch.float64)
        with self._answered():
            dist.all_reduce(tensor)  # by the group for decisions
        return tensor.tolist()

    def on_first(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function in the first process only; all processes return its result."""
        if not self.is_distributed:
            return function(*args, **kwargs)
        results: list[Any] = [self.on_each(function, *args, **kwargs) if self.is_first else self.on_each(lambda: None)]
        with self._answered():
            dist.broadcast_object_list(results)
        return results[0]

    def on_each(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the function in every process; all end if it raises in one."""
        if not self.is_distributed:
            return function(*args, **kwargs)
        value, error, fault = None, None, None
        try:
            value = function(*args, **kwargs)
        except CharlmError as raised:
            error, fault = self.shared_error(raised), (str(raised), True)
        except Exception as raised:  # this process prints it
            error, fault = raised, (f"{type(raised).__name__}: {raised}", False)
        faults = self._gather(fault)
        if error is not None:
            raise error
        for rank, fault in enumerate(faults):
            if fault:
                text, is_line = fault
                elsewhere = CharlmError(f"process {rank}: {text}")
                elsewhere.already_reported = not (is_line and self.is_first)
                raise elsewhere
        return value  # type: ignore[return-value]

    def local_first(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`on_each`, but the first process of each machine fills the caches before the others start."""
        if self.local_rank:
            self.on_each(lambda: None)  # while the first one fills the caches
            return self.on_each(function, *args, **kwargs)
        result = self.on_each(function, *args, **kwargs)
        self.on_each(lambda: None)
        return result

    def check_equal(self, name: str, find: Callable[[], object]) -> None:
        """CharlmError unless `find` returns the same in all processes; a single process does not call it."""
        if not self.is_distributed:
            return
        value = find()
        for rank, other in enumerate(self._gather(value)):
            if other != value:
                allowed = "the same in all; use the same options, files, packages and kind of machine everywhere"
                error = CharlmError(f"{name}: processes {self.rank} and {rank} differ; allowed: {allowed}")
                raise self.shared_error(error)

    def agree(self, elapsed_s: float, signals: list[str], known: Collection[str] = ()) -> tuple[float, list[str]]:
        """The first process's clock, and the signals, of those known, that any process has received."""
        if not self.is_distributed:
            return elapsed_s, signals
        first_s, *counts = self.sums([elapsed_s if self.is_first else 0.0, *(name in signals for name in known)])
        return first_s, [name for name, count in zip(known, counts, strict=True) if count]

    def shared_error(self, error: E) -> E:
        """An error that all processes raise: the first one prints it."""
        if not self.is_first:
            error.already_reported = True
        return error

    def remember(self, text: str) -> None:
        """Keep the first process's text for processes that torchrun starts in place of these."""
        if self._store is not None and self.is_first:
            self._store.set("remembered", text)

    def recall(self) -> str | None:
        """The text that an earlier process of the same launch has kept."""
        if self._store is None or not self._store.check(["remembered"]):
            return None
        return self._store.get("remembered").decode()

    def leave(self, *, failed: bool) -> None:
        """End the groups, without waiting for the others if this process failed."""
        with contextlib.suppress(RuntimeError):
            if failed and self._group is not None and dist.get_backend(self._group) == "nccl":
                dist.distributed_c10d._abort_process_group()
            else:
                dist.destroy_process_group()

    def _gather(self, value: T) -> list[T]:
        values: list[Any] = [None] * self.size
        with self._answered():
            dist.all_gather_object(values, value)
        return values

    @contextlib.contextmanager
    def _answered(
        self,
        what: str = "another one ended or did not answer",
        advice: str = "see its own message, and go on with --resume",
    ) -> Iterator[None]:
        """Turn what torch says about other processes into one line."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            # torch's message begins with a place in its source, and goes on with general advice.
            reason = re.sub(r"^\[\S+\] ", "", str(error).strip()).splitlines()[0].partition(". ")[0]
            limit = f"they wait {self._timeout_s:g} s for each other (CHARLM_TIMEOUT_S)"
            raise CharlmError(f"processes: {what} ({reason}); {limit}; {advice}") from None


_SLACK_S = 4.0
"""After its time torch tries once more to connect, for up to two seconds."""


def _within(seconds: float, function: Callable[[], None]) -> None:
    """Call the function in a thread, because torch waits without a limit for a store that accepts and says nothing."""
    result: Future[None] = Future()

    def call() -> None:
        try:
            result.set_result(function())
        except Exception as error:
            result.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    try:
        result.result(seconds)
    except TimeoutError:
        where = ":".join(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
        raise RuntimeError(f"{where} does not answer") from None


ONE_PROCESS = ProcessGroup()


@contextlib.contextmanager
def process_group() -> Iterator[ProcessGroup]:
    """The process group of this process: with others if the environment says so, as torchrun sets it."""
    size, local_size = _number("WORLD_SIZE", 1, 1), _number("LOCAL_WORLD_SIZE", 1, 1)
    if "RANK" not in os.environ or (size == 1 and "MASTER_ADDR" not in os.environ):
        yield ONE_PROCESS
        return
    rank = _number("RANK", 0, most=size - 1)
    if rank:
        console.speak_for(f"process {rank}")
    _number("MASTER_PORT", 0, most=65_535)
    group = ProcessGroup(rank, size, _number("LOCAL_RANK", 0), local_size, _number("CHARLM_TIMEOUT_S", 1800, 1))
    try:
        yield group
    except BaseException:
        group.leave(failed=True)
        raise
    group.leave(failed=False)


def _number(name: str, default: int, least: int = 0, most: int = 1_000_000) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdecimal() or len(text) > len(str(most)) or not least <= int(text) <= most:
        allowed = f"allowed: integers from {least} to {most}; set it to one, or unset it"
        raise CharlmError(f"{name}: found {text!r} in the environment; {allowed}")
    return int(text)
