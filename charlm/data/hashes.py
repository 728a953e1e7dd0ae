"""Polynomial hashes of stretches of numbers, modulo 2⁶⁴ or 2³² (Karp & Rabin 1987).

    S_i = Σ_{j<i} x_j b^j        Σ_{j<n} x_{i+j} b^j = (S_{i+n} − S_i) b^{−i}

The running sums S give the hashes of all lines, or of all windows, of an array at once.
"""

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from charlm.data.vocabulary import Vocabulary

Numbers = npt.NDArray[np.integer[Any]]
Hashes = npt.NDArray[np.unsignedinteger[Any]]
Places = npt.NDArray[np.integer[Any]] | slice

BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so it has an inverse modulo 2⁶⁴; 2⁶⁴ divided by the golden ratio

_PIECE = 1 << 15
"""Symbols of lines that are hashed at once: all arrays then stay in a core's cache."""


def stretch_hashes(values: Numbers, begins: Places, ends: Places, base: np.unsignedinteger[Any] = BASE) -> Hashes:
    """Σ_j x_j b^j of each stretch values[begin : end], where j counts from its begin; of the type of `base`."""
    powers, inverse_powers = _powers(base, len(values).bit_length())
    sums = np.zeros(len(values) + 1, base.dtype)
    np.cumsum(values.astype(base.dtype) * powers[: len(values)], dtype=base.dtype, out=sums[1:])
    return (sums[ends] - sums[begins]) * inverse_powers[begins]


def window_hashes(values: Numbers, length: int, base: np.unsignedinteger[Any] = BASE) -> Hashes:
    """Σ_j x_j b^(length − 1 − j) of each window of `length` values; none if there are fewer values."""
    count = max(len(values) - length + 1, 0)
    modulus = 1 << (8 * base.itemsize)
    inverse = base.dtype.type(pow(int(base), -1, modulus))
    hashes = stretch_hashes(values, slice(count), slice(length, length + count), inverse)
    return hashes * base.dtype.type(pow(int(base), length - 1, modulus))


@functools.lru_cache(maxsize=8)
def _powers(base: np.unsignedinteger[Any], bits: int) -> tuple[Hashes, Hashes]:
    """The powers 0 to 2^bits − 1 of the base, and of its inverse."""
    inverse = base.dtype.type(pow(int(base), -1, 1 << (8 * base.itemsize)))
    powers = (np.cumprod(np.r_[base.dtype.type(1), np.full((1 << bits) - 1, each)]) for each in (base, inverse))
    up, down = (each.astype(base.dtype, copy=False) for each in powers)
    return up, down


def line_hashes(ids: Numbers, ends: Numbers, vocabulary: Vocabulary) -> npt.NDArray[np.uint64]:
    """A hash of the symbols of each line; the lines stand one behind the other and end at `ends`."""
    starts = np.r_[0, ends[:-1]]
    hashes = np.zeros(len(ends), np.uint64)
    for begin in range(0, len(ids), _PIECE):
        piece = vocabulary.symbols[ids[begin : begin + _PIECE]] + np.uint32(1)
        end = begin + len(piece)
        lines = slice(np.searchsorted(ends, begin, side="right"), np.searchsorted(starts, end))
        of_piece = stretch_hashes(
            piece, np.maximum(starts[lines] - begin, 0), np.minimum(ends[lines] - begin, len(piece))
        )
        before = max(begin - int(starts[lines][0]), 0)  # of the first line, in earlier pieces
        of_piece[:1] *= np.uint64(pow(int(BASE), before, 1 << 64))
        hashes[lines] += of_piece
    return scattered(hashes)


def scattered(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A hash of each number: the finalizer of MurmurHash3, modulo 2⁶⁴."""
    for factor in (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)):
        x = (x ^ (x >> np.uint64(33))) * factor
    return x ^ (x >> np.uint64(33))
