"""UTF-8 to code points: with Python's decoder, or for large texts with a kernel that releases the GIL."""

import codecs
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from charlm.native.call import Kernel

Decode = Callable[[bytes], tuple[npt.NDArray[np.uint32], int]]
"""Bytes → code points [N], and the number of bytes decoded: less than all if the last sequence is incomplete.

Raises UnicodeDecodeError for invalid bytes. Its `object` may be only the last part of the input.
"""

MUCH_BYTES = 1 << 25
"""From this size on, the kernel saves more time than importing torch and compiling it can take."""


def decoder(size_bytes: int) -> Decode:
    """The faster decoder for a text of this size."""
    return decode if size_bytes < MUCH_BYTES else decode_much


def decode(data: bytes) -> tuple[npt.NDArray[np.uint32], int]:
    """Decode with Python; see `Decode`."""
    text, used = codecs.utf_8_decode(data, "strict", False)
    return code_points(text), used


def decode_much(data: bytes) -> tuple[npt.NDArray[np.uint32], int]:
    """Decode with the kernel, compiled at first use, or with Python if it does not compile; see `Decode`."""
    kernel = _kernel()
    if kernel is None:
        return decode(data)
    source, codes, counts = np.frombuffer(data, np.uint8), np.empty(len(data), np.uint32), np.empty(2, np.int64)
    addresses = {"bytes": source.ctypes.data, "codes": codes.ctypes.data, "counts": counts.ctypes.data}
    kernel("utf8_decode", size=len(data), **addresses)
    used, decoded = counts.tolist()
    _, more = decode(data[used:])  # raises unless the rest is an incomplete sequence
    assert not more, data[used : used + 4]
    return codes[:decoded], used


@functools.cache
def _kernel() -> "Kernel | None":
    from charlm.native.call import Kernel  # imports torch

    kernel = Kernel(Path(__file__).with_suffix(".cpp"))
    return kernel if kernel.works() else None


def code_points(text: str) -> npt.NDArray[np.uint32]:
    """The code points of `text`, [N]. Lone surrogates (from undecodable arguments) are kept."""
    # Three times as fast as the utf-32 codec, which checks for surrogates.
    return np.array([text]).view(np.uint32) if text else np.empty(0, np.uint32)
