"""UTF-8 to code points: by Python's decoder, or for much text by a kernel that leaves other threads their turn."""

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
"""Bytes → their code points [N] and the bytes that these took; fewer than all where the last sequence is cut short.

Raises UnicodeDecodeError; its `object` ends where they end.
"""

MUCH_BYTES = 1 << 25
"""A text from this size on is worth importing torch and compiling the kernel, should that not have been done."""


def decoder(size_bytes: int) -> Decode:
    """The one for a text of that size."""
    return decode if size_bytes < MUCH_BYTES else decode_much


def decode(data: bytes) -> tuple[npt.NDArray[np.uint32], int]:
    """By Python's decoder; see `Decode`."""
    text, used = codecs.utf_8_decode(data, "strict", False)
    return code_points(text), used


def decode_much(data: bytes) -> tuple[npt.NDArray[np.uint32], int]:
    """By the kernel, if this machine can compile it; see `Decode`."""
    kernel = _kernel()
    if kernel is None:
        return decode(data)
    source, codes, counts = np.frombuffer(data, np.uint8), np.empty(len(data), np.uint32), np.empty(2, np.int64)
    addresses = {"bytes": source.ctypes.data, "codes": codes.ctypes.data, "counts": counts.ctypes.data}
    kernel("utf8_decode", size=len(data), **addresses)
    used, decoded = counts.tolist()
    _, more = decode(data[used:])  # raises if what stands there is not only cut short
    assert not more, data[used : used + 4]
    return codes[:decoded], used


@functools.cache
def _kernel() -> "Kernel | None":
    from charlm.native.call import Kernel  # torch comes with it

    kernel = Kernel(Path(__file__).with_suffix(".cpp"))
    return kernel if kernel.works() else None


def code_points(text: str) -> npt.NDArray[np.uint32]:
    """The code points of `text`, [N]; lone surrogates (from undecodable arguments) stay as they are."""
    # Three times as fast as the codec utf-32, which looks for surrogates.
    return np.array([text]).view(np.uint32) if text else np.empty(0, np.uint32)
