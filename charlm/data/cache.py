"""Cached arrays on disk: the counts of a text, its ids, its lines.

An entry is a file of numbers beside a .json file with their type and checksum. Damaged entries count as missing.
"""

import json
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from charlm.errors import DataError
from charlm.system.cache import cache_dir, cache_folder, make_cache_folder, open_private
from charlm.system.cache_bound import limit_cache, use
from charlm.system.files import replace_file, replacing
from charlm.system.formatting import format_bytes

Array = npt.NDArray[Any]
Append = Callable[[Array], None]
"""Writes the next numbers of an entry."""


def has_entry(prefix: str) -> bool:
    """Whether the key of any entry begins with `prefix`."""
    return any(cache_folder("corpora").glob(f"{prefix}*.bin"))


def find_entry(key: str) -> Array | None:
    """The array of a cache entry, memory-mapped; None if it is missing, others may write it, or its checksum fails."""
    path = cache_folder("corpora") / f"{key}.bin"
    try:
        with open_private(path.with_suffix(".json")) as file:
            about = json.loads(file.read())
        with open_private(path) as file:
            use(file)
            checksum = 0
            while chunk := file.read(1 << 18):
                checksum = zlib.crc32(chunk, checksum)
            return np.memmap(file, about["dtype"], "r") if checksum == about["crc32"] else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


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
    checksum = 0
    with writable_folder() as folder:
        path = folder / f"{key}.bin"
        with replacing(path, 0o600) as file:

            def append(block: Array) -> None:
                nonlocal checksum
                data = np.ascontiguousarray(block, dtype).data
                file.write(data)
                checksum = zlib.crc32(data, checksum)

            yield append
        replace_file(path.with_suffix(".json"), json.dumps({"dtype": dtype.str, "crc32": checksum}).encode(), 0o600)
    limit_cache("corpora")


def map_entry(key: str, dtype: np.dtype) -> Array:
    """The array of an entry that this process has just written, memory-mapped."""
    path = cache_folder("corpora") / f"{key}.bin"
    try:
        with open_private(path) as file:
            use(file)
            return np.memmap(file, dtype, "r")
    except FileNotFoundError as error:
        raise DataError(
            f"{path}: found no file where one was just written; was the cache cleared? start again"
        ) from error


@contextmanager
def writable_folder() -> Iterator[Path]:
    """The folder of the entries, created if it is missing; an OSError in the block becomes a DataError."""
    try:
        yield make_cache_folder("corpora")
    except OSError as error:
        raise DataError(
            f"{cache_dir() / 'corpora'}: the cache cannot be written: {error.strerror}; any folder with room will do; "
            "name one in CHARLM_CACHE"
        ) from error


def check_room(source: str, needed_bytes: int) -> None:
    """DataError unless the disk of the cache has so much room for the text of `source`."""
    with writable_folder() as folder:
        free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise DataError(
            f"{source}: its cache needs at least {format_bytes(needed_bytes)}; {folder} has {format_bytes(free)} free; "
            "any folder with room will do; name one in CHARLM_CACHE, use a part of the text, or make room "
            "(`charlm data cache --clear`)"
        )
