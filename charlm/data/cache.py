"""Arrays of numbers in the cache: the ids of a text, and where its lines start. A key names text and type."""

import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from charlm.errors import DataError
from charlm.system.cache import cache_folder, limit_cache, open_private, unwritable
from charlm.system.files import replacing

Array = npt.NDArray[Any]
Append = Callable[[Array], object]
"""Writes the next numbers of an entry."""
_BLOCK, _CRC_BYTES = 2**20, 4
_INTACT = 0x2144DF1C
"""The CRC-32 of any data that its own CRC-32 follows, as in every entry."""


def find_entry(key: str, dtype: np.dtype) -> Array | None:
    """The array of a cache entry, memory-mapped; None if it is missing or damaged, or if others may write it."""
    try:
        with open_private(_path(key)) as file:
            checksum = 0
            while block := file.read(_BLOCK):
                checksum = zlib.crc32(block, checksum)
            return _mapped(file, dtype) if checksum == _INTACT else None
    except (OSError, ValueError):
        return None


def map_entry(key: str, dtype: np.dtype) -> Array:
    """The array of an entry that this process has just written, memory-mapped."""
    try:
        with open_private(_path(key)) as file:  # what was just written needs no second reading
            return _mapped(file, dtype)
    except (OSError, ValueError):
        fault = "found no file where one was just written; was the cache cleared? start again"
        raise DataError(f"{_path(key)}: {fault}") from None


def _mapped(file: BinaryIO, dtype: np.dtype) -> Array:
    return np.memmap(file, dtype, "r", shape=((os.fstat(file.fileno()).st_size - _CRC_BYTES) // dtype.itemsize,))


def store_entry(key: str, dtype: np.dtype, blocks: Iterable[Array]) -> Array:
    """Write a cache entry block by block, and map it."""
    with open_entry(key, dtype) as append:
        for block in blocks:
            append(block)
    return map_entry(key, dtype)


@contextmanager
def open_entry(key: str, dtype: np.dtype) -> Iterator[Append]:
    """A function that writes the blocks of a cache entry, which exists from the end of the `with` block on.

    Writing through a memory map instead would turn a full disk into a SIGBUS; here it is a DataError.
    """
    path = _path(key)
    try:
        with replacing(path, 0o600) as file:
            checksum = 0

            def append(block: Array) -> None:
                nonlocal checksum
                data = np.ascontiguousarray(block, dtype).data
                checksum = zlib.crc32(data, checksum)
                file.write(data)

            yield append
            file.write(checksum.to_bytes(_CRC_BYTES, "little"))
    except OSError as error:
        raise unwritable(path.parent, error) from error
    limit_cache("corpora")


def _path(key: str) -> Path:
    return cache_folder("corpora") / f"{key}.bin"
