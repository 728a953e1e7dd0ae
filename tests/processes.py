"""Several processes that train together, as torchrun starts them."""

import contextlib
import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from charlm.system.process_group import ProcessGroup, process_group

TIMEOUT_S = 60


class Team:
    """Calls functions of a module, which take the group first, in all processes."""

    def __init__(self, connections: list[Connection]) -> None:
        self._connections = connections
        self._calls = 0

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What the function returns in each process; AssertionError with the tracebacks of those where it raises."""
        self._calls += 1
        for connection in self._connections:
            connection.send((self._calls, function, arguments))
        outcomes = [self._answer(connection) for connection in self._connections]
        faults = [fault for _, fault in outcomes if fault]
        assert not faults, "\n".join(faults)
        return [result for result, _ in outcomes]

    def _answer(self, connection: Connection) -> tuple[Any, str]:
        """The answer to the last call; those to earlier calls may come late."""
        while connection.poll(2 * TIMEOUT_S):
            call, result, fault = connection.recv()
            if call == self._calls:
                return result, fault
        return None, "no answer"


@contextlib.contextmanager
def team(size: int, timeout_s: int = TIMEOUT_S) -> Iterator[Team]:
    """So many processes, in one group."""
    context = multiprocessing.get_context("spawn")
    connections, processes = [], []
    for rank, environment in enumerate(environments(size, timeout_s)):
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, environment), daemon=True, name=f"process {rank}")
        process.start()
        connections.append(ours)
        processes.append(process)
    try:
        yield Team(connections)
    finally:
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.send(None)
        for process in processes:
            process.join(10)
            process.kill()


def environments(size: int, timeout_s: int) -> list[dict[str, str]]:
    """The variables by which so many processes find each other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port, "MASTER_ADDR": "127.0.0.1"}
    common["CHARLM_TIMEOUT_S"] = timeout_s
    return [
        {name: str(value) for name, value in (common | {"RANK": rank, "LOCAL_RANK": rank}).items()}
        for rank in range(size)
    ]


def _serve(connection: Connection, environment: dict[str, str]) -> None:
    os.environ |= environment
    with process_group() as group:
        while (request := connection.recv()) is not None:
            call, function, arguments = request
            connection.send((call, *_outcome(group, function, arguments)))


def _outcome(group: ProcessGroup, function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, str]:
    try:
        return function(group, *arguments), ""
    except BaseException:
        return None, traceback.format_exc()
