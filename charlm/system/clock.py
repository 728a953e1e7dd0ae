"""The clock of a run. Imports only the standard library."""

import time
from dataclasses import dataclass, field

from charlm.system.console import say

LONGEST_START = 0.5
"""Largest share of a run's minutes that starting may take, so that the run learns something."""
EVALUATION_COST = 0.22
"""Time to evaluate a character, relative to training on it: 0.20 to 0.23 measured, until a run measures its own."""

_compilations: list[tuple[float, float]] = []
"""When each compilation began, and its seconds."""


def count_compilation(start_s: float) -> float:
    """Exclude the time since `start_s` from all clocks, and return it: compiling happens once on a machine."""
    seconds = time.perf_counter() - start_s
    _compilations.append((start_s, seconds))
    return seconds


@dataclass(frozen=True)
class Clock:
    """The minutes of a run, without the time to compile kernels. Times are those of time.perf_counter()."""

    minutes: float
    began_s: float = field(default_factory=time.perf_counter)
    updates: int = 0
    """How many are planned; 0 without a plan."""

    def starts_s(self) -> float:
        """When the minutes began; later by the time that was spent compiling since."""
        return self.began_s + sum(seconds for start_s, seconds in _compilations if start_s >= self.began_s)

    def ends_s(self) -> float:
        return self.starts_s() + 60 * self.minutes

    def passed_s(self) -> float:
        return time.perf_counter() - self.starts_s()

    def start_of_training_s(self) -> float:
        """When the run's time began, for its training loop: later, with a line, if starting took most of the time."""
        run_s = 60 * self.minutes
        latest_s = time.perf_counter() - LONGEST_START * run_s
        if self.starts_s() < latest_s:
            say("start", f"starting took most of {run_s:.1f} s; training gets {1 - LONGEST_START:.0%} of them anyway")
        return max(self.starts_s(), latest_s)
