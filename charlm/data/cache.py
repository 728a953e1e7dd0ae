"""Arrays of numbers in the cache: the ids of a text, and where its lines start. A key names text and type."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from charlm.errors import DataError
from charlm.system.cache import cache_folder, limit_cache, open_private, unwritable
from charlm.system.files import replacing

Array = npt.NDArray[Any]
Append = Callable[[Array], object]
"""Writes the next numbers of an entry."""


def find_entry(key: str, dtype: np.dtype) -> Array | None:
    """The array of a cache entry, memory-mapped; None if it is missing, or if others may write it."""
    try:
        with open_private(_path(key)) as file:
            return np.memmap(file, dtype, "r")
    except (OSError, ValueError):
        return None


def map_entry(key: str, dtype: np.dtype) -> Array:
    """The array of an entry that this process has just written, memory-mapped."""
    array = find_entry(key, dtype)
    if array is None:
        raise DataError(f"{_path(key)}: found no file where one was just written; was the cache cleared? start again")
    return array


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
            yield lambda block: file.write(np.ascontiguousarray(block, dtype).data)
    except OSError as error:
        raise unwritable(path.parent, error) from error
    limit_cache("corpora")


def _path(key: str) -> Path:
    return cache_folder("corpora") / f"{key}.bin"
