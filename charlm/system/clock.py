"""The time that compiling takes, which happens once on a machine and is no part of a run's minutes."""

import time

_compilations: list[tuple[float, float]] = []
"""When each compilation began, and its seconds."""


def count_compilation(start_s: float) -> float:
    """Count the time since `start_s`, a time of time.perf_counter(), as compiling; return it."""
    seconds = time.perf_counter() - start_s
    _compilations.append((start_s, seconds))
    return seconds


def compiled_s(since_s: float) -> float:
    """Seconds of the compilations that began after a time of time.perf_counter()."""
    return sum(seconds for start_s, seconds in _compilations if start_s >= since_s)
