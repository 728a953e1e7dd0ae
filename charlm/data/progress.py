"""Lines of progress for what takes long."""

import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import numpy.typing as npt

from charlm.system.console import say

Block = TypeVar("Block", bound=npt.NDArray[Any])

EVERY_S = 5.0


class Progress:
    """Says every few seconds how much of `total` is done."""

    def __init__(self, total: int, doing: str) -> None:
        self._total, self._doing = total, doing
        self._done, self._said_s = 0, time.perf_counter()

    def passed(self, count: int) -> None:
        """So much more is done."""
        self._done += count
        if (now_s := time.perf_counter()) >= self._said_s + EVERY_S:
            self._said_s = now_s
            say("data", f"{self._doing}: {self._done / self._total:.0%}")

    def of(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """The blocks; each has passed by its length when the next is taken."""
        for block in blocks:
            yield block
            self.passed(len(block))
