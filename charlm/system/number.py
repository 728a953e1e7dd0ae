"""Numbers with a range, as arguments of functions have them."""

import numbers
from typing import Any, TypeVar

N = TypeVar("N", int, float)

LARGEST = 10**9
"""The most of what has no limit of its own."""


def in_range(name: str, value: Any, least: N, most: float) -> N:
    """A number as Python's own; ValueError unless it is one from `least` to `most`, an integer if `least` is one."""
    is_integer = isinstance(least, int)
    of_kind: Any = numbers.Integral if is_integer else numbers.Real
    if not isinstance(value, of_kind) or isinstance(value, bool) or not least <= value <= most:
        words = "an integer" if is_integer else "a number"
        is_huge = isinstance(value, int) and abs(value) >= 10**100  # Python writes out 4300 digits at most
        found = "an integer of more than 100 digits" if is_huge else repr(value)
        raise ValueError(f"{name}: found {found}; allowed: {words} from {plain(least)} to {plain(most)}")
    return type(least)(value)


def plain(number: float) -> str:
    """A number in words: 1e9 and 1000000000 → '1,000,000,000', 1e-30 → '1e-30'."""
    return f"{int(number):,}" if number == int(number) else str(number)
