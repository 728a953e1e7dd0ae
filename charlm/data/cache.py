"""Arrays of numbers in the cache: the ids of a text, and where its lines start. A key names text and type."""

import os
import zlib
from collections.abc import Iterable
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from charlm.errors import DataError
from charlm.system.cache import cache_folder, limit_cache, open_private, unwritable
from charlm.system.files import replacing

Array = npt.NDArray[Any]
_BLOCK, _CRC_BYTES = 2**20, 4
_INTACT = 0x2144DF1C
"""The CRC-32 of any data that its own CRC-32 follows, as in every entry."""


def cached(key: str, dtype: np.dtype, blocks: Iterable[Array]) -> Array:
    """The array of a cache entry, see `find_entry`. `blocks` are read and stored where `find_entry` finds nothing."""
    if (entry := find_entry(key, dtype)) is not None:
        return entry
    folder = cache_folder("corpora")
    checksum = 0
    try:
        with replacing(folder / f"{key}.bin", 0o600) as file:
            for block in blocks:  # through a memory map, a full disk would be a SIGBUS
                data = np.ascontiguousarray(block, dtype).data
                checksum = zlib.crc32(data, checksum)
                file.write(data)
            file.write(checksum.to_bytes(_CRC_BYTES, "little"))
    except OSError as error:
        raise unwritable(folder, error) from error
    limit_cache("corpora")
    if (entry := find_entry(key, dtype, is_new=True)) is not None:
        return entry
    fault = "found no file where one was just written; was the cache cleared? start again"
    raise DataError(f"{folder / key}.bin: {fault}")


def find_entry(key: str, dtype: np.dtype, *, is_new: bool = False) -> Array | None:
    """The array of a cache entry; None if it is missing or damaged, or if others may write it.

    Memory-mapped, or in memory where the disk allows no maps.

    is_new: this process has just written it, so it need not be read for its checksum.
    """
    try:
        with open_private(cache_folder("corpora") / f"{key}.bin") as file:
            if not is_new and _checksum(file) != _INTACT:
                return None
            items = (os.fstat(file.fileno()).st_size - _CRC_BYTES) // dtype.itemsize
            try:
                return np.memmap(file, dtype, "r", shape=(items,))
            except OSError:  # some network disks have no memory maps
                file.seek(0)
                array = np.fromfile(file, dtype, items)
                array.flags.writeable = False
                return array
    except (OSError, ValueError):
        return None


def _checksum(file: BinaryIO) -> int:
    checksum = 0
    while block := file.read(_BLOCK):
        checksum = zlib.crc32(block, checksum)
    return checksum
