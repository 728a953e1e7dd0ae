"""Polynomial hashes of stretches of numbers, modulo 2⁶⁴ (Karp & Rabin 1987).

    S_i = Σ_{j<i} x_j b^j        Σ_{j<n} x_{i+j} b^j = (S_{i+n} − S_i) b^{−i}

The running sums S give the hashes of all lines, or of all n-grams, of an array at once.
"""

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.integer[Any]]
Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.integer[Any]] | slice

BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so it has an inverse modulo 2⁶⁴; 2⁶⁴ divided by the golden ratio


def stretch_hashes(values: Numbers, begins: Places, ends: Places) -> Hashes:
    """Σ_j x_j b^j of each stretch values[begin : end], where j counts from its begin."""
    powers, inverse_powers = _powers(len(values).bit_length())
    sums = np.zeros(len(values) + 1, np.uint64)
    np.cumsum(values.astype(np.uint64) * powers[: len(values)], out=sums[1:])
    return (sums[ends] - sums[begins]) * inverse_powers[begins]


@functools.lru_cache(maxsize=8)
def _powers(bits: int) -> tuple[Hashes, Hashes]:
    """The powers 0 to 2^bits − 1 of the base, and of its inverse."""
    ones = np.ones(1 << bits, np.uint64)
    ones[1:] = BASE
    powers = np.cumprod(ones)
    ones[1:] = pow(int(BASE), -1, 1 << 64)
    return powers, np.cumprod(ones)


def record_hashes(data: bytes, end: int) -> Hashes:
    """A hash of the bytes of each record; the records stand one behind the other, each with its end, a byte."""
    values = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(values == end) + 1
    x = stretch_hashes(values + np.uint16(1), np.r_[0, ends[:-1]], ends)
    # The finalizer of MurmurHash3: the high bits, by which records are split, depend on all of them.
    for factor in (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)):
        x = (x ^ (x >> np.uint64(33))) * factor
    return x ^ (x >> np.uint64(33))
