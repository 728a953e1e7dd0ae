"""Read files in chunks, as bytes or as the code points of UTF-8 text."""

import codecs
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from charlm.data.kinds import check_text
from charlm.data.vocabulary import Level
from charlm.errors import DataError
from charlm.native import utf8
from charlm.native.utf8 import Decode

# At half this size, handing chunks to threads takes 10 % of the time; twice the size is no faster.
CHUNK_BYTES = 1 << 19

Symbols = npt.NDArray[np.unsignedinteger[Any]]  # code points at level char, bytes at level byte
Unit = Literal["text", "line"]
NEWLINE = "\n"
_RETURN = "\r"


def file_sizes(paths: Iterable[Path]) -> list[int]:
    """The size of each file in bytes."""
    sizes = []
    for path in paths:
        try:
            sizes.append(path.stat().st_size)
        except OSError as error:
            raise unreadable(path, error) from error
    return sizes


def sha256_of(paths: Iterable[Path]) -> str:
    """SHA-256 of the bytes of all files, one after another."""
    hasher = hashlib.sha256()
    for path in paths:
        for _ in read_chunks(path, hasher.update):
            pass
    return hasher.hexdigest()


def read_chunks(path: Path, see: Callable[[bytes], object]) -> Iterator[bytes]:
    """Call `see` with each chunk of the file, then yield it; DataError if the file changes meanwhile.

    `see` must not raise OSError, which would be reported as an error of the file.
    """
    try:
        with path.open("rb", buffering=0) as file:
            before = os.fstat(file.fileno())
            while chunk := file.read(CHUNK_BYTES):
                see(chunk)
                yield chunk
            after = os.fstat(file.fileno())
    except OSError as error:
        raise unreadable(path, error) from error
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise changed(path)


def read_symbols(
    path: Path, level: Level, see: Callable[[bytes], object], decode: Decode = utf8.decode, unit: Unit = "text"
) -> Iterator[Symbols]:
    """Yield the file's code points (level char) or bytes in chunks of any length; DataError if it is not UTF-8.

    Calls `see` with the bytes of each chunk. At level char, a byte order mark at the start of the file is dropped.
    Line ends are changed only if lines are the unit, see `whole_lines`.
    """
    symbols = _symbols(path, level, see, decode)
    return whole_lines(symbols) if unit == "line" else symbols


def whole_lines(text: Iterable[Symbols]) -> Iterator[Symbols]:
    """The text of a file, in chunks, with a newline at the end of every line: CR LF becomes one, the last gets one.

    Text that is empty stays empty.
    """
    newline, carriage_return = ord(NEWLINE), ord(_RETURN)
    # The symbol before, and whether a CR at the end of the chunk before waits for what follows it.
    last, held = newline, False
    for symbols in text:
        if not len(symbols):
            continue
        if held:
            symbols = np.concatenate([np.array([carriage_return], symbols.dtype), symbols])
        if (symbols == carriage_return).any():
            kept = np.append((symbols[:-1] != carriage_return) | (symbols[1:] != newline), True)
            kept[-1] = symbols[-1] != carriage_return
            held = not kept[-1]
            symbols = symbols[kept]
        else:
            held = False
        if len(symbols):
            last = symbols[-1]
            yield symbols
    if held or last != newline:
        yield np.array([newline], np.uint8)


def _symbols(path: Path, level: Level, see: Callable[[bytes], object], decode: Decode) -> Iterator[Symbols]:
    if level == "byte":
        yield from (np.frombuffer(chunk, np.uint8) for chunk in read_chunks(path, see))
        return
    at_start = True
    for symbols in _decoded(path, see, decode):
        if at_start and len(symbols):
            at_start = False
            if symbols[0] == ord("\ufeff"):
                symbols = symbols[1:]
        yield symbols


def _decoded(path: Path, see: Callable[[bytes], object], decode: Decode) -> Iterator[Symbols]:
    """Yield the code points of a UTF-8 file; `pending` holds a sequence that a chunk's end has cut."""
    pending = b""
    read = 0
    try:
        for chunk in read_chunks(path, see):
            if not read:
                check_text(path, chunk)
            read += len(chunk)
            if not pending and chunk.isascii():
                yield np.frombuffer(chunk, np.uint8)
                continue
            pending += chunk
            symbols, used = decode(pending)
            pending = pending[used:]
            yield symbols
        codecs.utf_8_decode(pending, "strict", True)
    except UnicodeDecodeError as error:
        offset = read - len(error.object) + error.start
        raise DataError(
            f"{path}: byte 0x{error.object[error.start]:02X} at offset {offset} is not UTF-8 ({error.reason}); "
            "data.level: char needs UTF-8 text; convert the file or set data.level: byte"
        ) from error


def unreadable(path: Path, error: OSError) -> DataError:
    """The error for a file or folder that cannot be read."""
    return DataError(
        f"{path}: cannot be read: {error.strerror}; a source needs all its files; make it readable or name another"
    )


def changed(source: str | Path) -> DataError:
    """The error for a source that has changed since charlm began to read it."""
    return DataError(f"{source}: changed while being read; a source must not change; run again when it is complete")
