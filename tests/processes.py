"""Several processes that train together, as torchrun starts them."""

import contextlib
import multiprocessing
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from charlm.system.process_group import ProcessGroup, process_group

TIMEOUT_S = 60


@contextlib.contextmanager
def team(size: int, **environment: str) -> Iterator[Callable[..., list[Any]]]:
    """So many processes in one group, with these variables in their environment.

    It calls a function with the group and further arguments in each process; returns what each returns.
    """
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        pools = [stack.enter_context(ProcessPoolExecutor(1, context)) for _ in range(size)]
        joining = environments(size, TIMEOUT_S)
        for future in [pool.submit(_join, each | environment) for pool, each in zip(pools, joining, strict=True)]:
            future.result(2 * TIMEOUT_S)

        def call(function: Callable[..., Any], *arguments: Any) -> list[Any]:
            futures = [pool.submit(_call, function, arguments) for pool in pools]
            return [future.result(2 * TIMEOUT_S) for future in futures]

        yield call
        call(_leave)


def environments(size: int, timeout_s: int) -> list[dict[str, str]]:
    """The variables by which so many processes find each other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port, "CHARLM_TIMEOUT_S": timeout_s}
    common = {name: str(value) for name, value in common.items()} | {"MASTER_ADDR": "127.0.0.1"}
    return [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]


# What each process calls. It stays in its group between calls.

_stay = contextlib.ExitStack()
_groups: list[ProcessGroup] = []


def _join(environment: dict[str, str]) -> None:
    os.environ |= environment
    _groups.append(_stay.enter_context(process_group()))


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(_groups[0], *arguments)


def _leave(group: ProcessGroup) -> None:
    _stay.close()
