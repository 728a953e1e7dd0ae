"""Lines that show the progress of long tasks."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import numpy.typing as npt

from charlm.errors import DataError
from charlm.system.console import say
from charlm.system.formatting import format_duration

Block = TypeVar("Block", bound=npt.NDArray[Any])
EVERY_S = 5.0
_ends_s: ContextVar[float | None] = ContextVar("ends_s", default=None)


@contextmanager
def to_be_done_by(ends_s: float | None) -> Iterator[None]:
    """Set a deadline for `ProgressLines` in the block, a time of time.perf_counter(); None: no deadline."""
    token = _ends_s.set(ends_s)
    try:
        yield
    finally:
        _ends_s.reset(token)


class ProgressLines:
    """Says every few seconds how much of `total` is done; DataError once it is clear that it takes too long."""

    def __init__(self, total: int, doing: str) -> None:
        self._total, self._doing, self._done = total, doing, 0
        self._began_s = self._said_s = time.perf_counter()

    def passed(self, count: int) -> None:
        """Count more as done."""
        self._done += count
        now_s, ends_s = time.perf_counter(), _ends_s.get()
        if now_s < self._said_s + EVERY_S:
            return
        self._said_s = now_s
        say("data", f"{self._doing}: {self._done / self._total:.0%}")
        takes_s = (now_s - self._began_s) * self._total / max(self._done, 1)
        if ends_s is not None and self._began_s + takes_s > ends_s:
            raise DataError(
                f"{self._doing} takes about {format_duration(takes_s)}; allowed: what is done before the run's "
                "minutes are over; give more --minutes, or a part of the text"
            )

    def of(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """The blocks; each has passed by its length when the next is taken."""
        for block in blocks:
            yield block
            self.passed(len(block))
