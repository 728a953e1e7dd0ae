"""Cached arrays on disk: the survey of a text, and its ids. Also the draft, the decoded text between the two passes.

An entry is an .npy file beside a .json file with its checksum. Damaged entries count as missing.
"""

import io
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from charlm.data.background import in_background
from charlm.data.reading import Symbols
from charlm.errors import DataError
from charlm.system.cache import cache_dir, cache_folder, is_private, make_cache_folder
from charlm.system.files import remove_leftovers, temporary_beside
from charlm.system.formatting import format_bytes


def has_entry(prefix: str) -> bool:
    """Whether the key of any entry begins with `prefix`."""
    return any(_folder().glob(f"{prefix}*.npy"))


def find_entry(key: str) -> npt.NDArray[Any] | None:
    """The array of a cache entry, memory-mapped; None if it is missing, others may write it, or its checksum fails."""
    try:
        path = _folder() / f"{key}.npy"
        if not (is_private(path) and is_private(path.with_suffix(".json"))):
            return None
        noted = json.loads(path.with_suffix(".json").read_bytes())
        checksum = 0
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(1 << 20):
                checksum = zlib.crc32(chunk, checksum)
        return np.lib.format.open_memmap(path, mode="r") if noted == {"crc32": checksum} else None
    except (OSError, ValueError, RecursionError):
        return None


def store_entry(
    key: str, shape: tuple[int, ...], dtype: np.dtype, blocks: Iterable[npt.NDArray[Any]]
) -> npt.NDArray[Any]:
    """Write a cache entry block by block, and map it."""
    with open_entry(key, shape, dtype) as append:
        for block in blocks:
            append(block)
    return map_entry(key)


Append = Callable[[npt.NDArray[Any]], None]
"""Writes the next block of an entry."""


@contextmanager
def open_entry(key: str, shape: tuple[int, ...], dtype: np.dtype) -> Iterator[Append]:
    """A function that writes the blocks of a cache entry, which exists from the end of the `with` block on.

    Writing through a memory map instead would turn a full disk into a SIGBUS; here it is an OSError.
    """
    header = io.BytesIO()
    fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, fields)
    with writable_folder() as folder:
        path = folder / f"{key}.npy"
    remove_leftovers(path.parent)
    checksum = 0

    def append(file: BinaryIO, data: bytes | memoryview) -> None:
        nonlocal checksum
        file.write(data)
        checksum = zlib.crc32(data, checksum)

    with replacing(path) as file, in_background() as later:
        later(append, file, header.getvalue())
        yield lambda block: later(append, file, block.data)
    with replacing(path.with_suffix(".json")) as file:
        file.write(json.dumps({"crc32": checksum}).encode())


def map_entry(key: str) -> npt.NDArray[Any]:
    """The array of an entry that this process has just written, memory-mapped."""
    return np.lib.format.open_memmap(_folder() / f"{key}.npy", mode="r")


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
            "any folder with room will do; name one in CHARLM_CACHE, or use a part of the text"
        )


def _folder() -> Path:
    return cache_folder("corpora")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that replaces `path` in one step if the block ends without an error."""
    temporary = temporary_beside(path)
    with writable_folder():
        try:
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(0o600)
            temporary.replace(path)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


class Draft:
    """The decoded text, in an unnamed file in `folder`, so that encoding need not decode it again.

    Each block has the narrowest type that holds all but a few of its code points; the few are stored separately.
    """

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._blocks: list[tuple[np.dtype, int, int]] = []

    def append(self, symbols: Symbols) -> None:
        """Write the next block."""
        dtype, above = symbols.dtype, np.empty(0, np.int64)
        for narrower in map(np.dtype, (np.uint8, np.uint16)):
            outside = symbols > np.iinfo(narrower).max
            if narrower.itemsize < dtype.itemsize and np.count_nonzero(outside) <= len(symbols) // 16:
                dtype, above = narrower, np.flatnonzero(outside)
        for part in (symbols.astype(dtype, copy=False), above, symbols[above].astype(np.uint32)):
            self._file.write(part.data)
        self._blocks.append((dtype, len(symbols), len(above)))

    def read(self) -> Iterator[Symbols]:
        """Yield the blocks in the order in which they were written."""
        self._file.seek(0)
        for dtype, length, count_above in self._blocks:
            symbols = self._read(dtype, length)
            above = self._read(np.dtype(np.int64), count_above)
            values = self._read(np.dtype(np.uint32), count_above)
            if count_above:
                symbols = symbols.astype(np.uint32)
                symbols[above] = values
            yield symbols

    def _read(self, dtype: np.dtype, length: int) -> npt.NDArray[Any]:
        return np.frombuffer(self._file.read(length * dtype.itemsize), dtype)

    def close(self) -> None:
        """Delete the file."""
        with suppress(OSError):  # on a full disk the buffer cannot be written, and need not be
            self._file.close()
