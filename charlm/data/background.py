"""Run work in a background thread while a text is read."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

# How many calls may wait. Enough to even out slow chunks; they hold a few MB.
CALLS_BEHIND = 4


@contextmanager
def in_background() -> Iterator[Callable[..., None]]:
    """A function `later(function, *arguments)` that runs its calls one after another in one thread.

    An error in a call is raised by a later call, or at the end of the block, which waits for all calls. If the block
    itself raises, calls that have not started are dropped. The thread ends with the block. This helps with work that
    releases the GIL: hashlib, zlib, files, most of numpy.
    """
    under_way: deque[Future[Any]] = deque()
    pool = ThreadPoolExecutor(1)

    def later(function: Callable[..., Any], *arguments: Any) -> None:
        if len(under_way) == CALLS_BEHIND:
            under_way.popleft().result()
        under_way.append(pool.submit(function, *arguments))

    try:
        yield later
        while under_way:
            under_way.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
