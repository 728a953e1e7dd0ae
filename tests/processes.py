"""Several processes that train together, as torchrun starts them."""

import contextlib
import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from charlm.system.world import World, joined


class Team:
    """Calls functions of a module, which take the world first, in all processes."""

    def __init__(self, connections: list[Connection]) -> None:
        self._connections = connections

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What the function returns in each process; AssertionError with the tracebacks of those where it raises."""
        for connection in self._connections:
            connection.send((function, arguments))
        outcomes = [
            connection.recv() if connection.poll(120) else (None, "no answer") for connection in self._connections
        ]
        faults = [fault for _, fault in outcomes if fault]
        assert not faults, "\n".join(faults)
        return [result for result, _ in outcomes]


@contextlib.contextmanager
def team(size: int) -> Iterator[Team]:
    """So many processes, in one world."""
    context = multiprocessing.get_context("spawn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    connections, processes = [], []
    for rank in range(size):
        ours, theirs = context.Pipe()
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
        environment = {name: str(number) for name, number in numbers.items()} | {"MASTER_ADDR": "127.0.0.1"}
        process = context.Process(target=_serve, args=(theirs, environment), daemon=True)
        process.start()
        connections.append(ours)
        processes.append(process)
    yield Team(connections)
    for connection in connections:
        connection.send(None)
    for process in processes:
        process.join(30)
        process.kill()


def _serve(connection: Connection, environment: dict[str, str]) -> None:
    os.environ |= environment
    with joined() as world:
        while (request := connection.recv()) is not None:
            connection.send(_outcome(world, *request))


def _outcome(world: World, function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, str]:
    try:
        return function(world, *arguments), ""
    except BaseException:
        return None, traceback.format_exc()
