"""Read text from files in chunks, and from pipes as it arrives."""

import codecs
import contextlib
import itertools
import os
import select
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from charlm.data.file_types import check_text
from charlm.data.vocabulary import CodePoints, Level, code_points
from charlm.errors import DataError

CHUNK_BYTES = 1 << 18
"""As much is read at once; of a pipe, what there is."""

Unit = Literal["text", "line"]
NEWLINE = "\n"


def read_symbols(
    path: Path, level: Level, unit: Unit = "text", see: Callable[[bytes], object] = lambda chunk: None
) -> Iterator[CodePoints]:
    """The code points of a file, or its bytes at level byte, in chunks as training reads them, see `as_in_training`.

    `see` gets the bytes of each chunk. DataError unless the file is UTF-8 at level char, or if it changes meanwhile.
    """
    chunks = as_in_training(read_chunks(path, see), level, unit, path)
    if level == "byte":
        yield from (np.frombuffer(chunk, np.uint8) for chunk in chunks)
        return
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for chunk in itertools.chain(chunks, [b""]):
            if text := decoder.decode(chunk, final=not chunk):
                yield code_points(text)
    except UnicodeDecodeError:
        raise _not_utf8(path) from None


def as_in_training(chunks: Iterable[bytes], level: Level, unit: Unit, name: str | Path) -> Iterator[bytes]:
    """The bytes of a file or pipe as training reads them.

    At level char a byte order mark at the start is dropped, and a file of a known kind that is not text is a DataError,
    which begins with the name. If lines are the unit, every line ends with a newline: CR LF becomes one, and the last
    line gets one. Empty text stays empty.
    """
    mark = codecs.BOM_UTF8 if level == "char" else b""
    carriage_return, last = b"", b"\n"  # a CR at the end of a chunk waits for what follows it
    for chunk in chunks:
        if mark:
            check_text(name, chunk)
        chunk, mark = carriage_return + chunk.removeprefix(mark), b""
        if unit == "line":
            carriage_return = b"\r" if chunk.endswith(b"\r") else b""
            chunk = chunk[: len(chunk) - len(carriage_return)].replace(b"\r\n", b"\n")
        if chunk:
            last = chunk[-1:]
            yield chunk
    if unit == "line" and (carriage_return or last != b"\n"):
        yield b"\n"


def read_chunks(path: Path, see: Callable[[bytes], object] = lambda chunk: None) -> Iterator[bytes]:
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


def _not_utf8(path: Path) -> DataError:
    """Read the file again to find the first byte that is not UTF-8."""
    decoder, size = codecs.getincrementaldecoder("utf-8")(), 0
    for chunk in itertools.chain(read_chunks(path), [b""]):
        size += len(chunk)
        try:
            decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            offset = size - len(error.object) + error.start
            return DataError(
                f"{path}: byte 0x{error.object[error.start]:02X} at offset {offset} is not UTF-8 ({error.reason}); "
                "data.level: char needs UTF-8 text; convert the file or set data.level: byte"
            )
    return changed(path)


def unreadable(path: Path, error: OSError) -> DataError:
    """The error for a file or folder that cannot be read."""
    return DataError(
        f"{path}: cannot be read: {error.strerror}; a source needs all its files; make it readable or name another"
    )


def changed(source: str | Path) -> DataError:
    """The error for a source that has changed since charlm began to read it."""
    return DataError(f"{source}: changed while being read; a source must not change; run again when it is complete")


def arriving(path: str) -> Iterator[bytes]:
    """The bytes of a file, or of stdin for "-", as they come; DataError if they cannot be read."""
    try:
        with contextlib.ExitStack() as opened:
            if path == "-":
                file = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
            else:
                file = opened.enter_context(Path(path).open("rb", buffering=0))
            while (data := file.read(CHUNK_BYTES)) != b"":
                if data is None:  # a pipe in non-blocking mode, which a parent process may have set
                    select.select([file], [], [])
                else:
                    yield data
    except OSError as error:
        name = "stdin" if path == "-" else path
        raise DataError(f"{name}: {error.strerror}; allowed: a text file, or - for stdin") from None


def whole_lines(blocks: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The lines that end in each block, without their ends; at last the one that has none."""
    partial: list[bytes] = []  # parts of a line without its end
    for block in blocks:
        *whole, remainder = block.split(b"\n")
        if whole:
            whole[0] = b"".join([*partial, whole[0]])
            partial.clear()
            yield whole
        if remainder:
            partial.append(remainder)
    if partial:
        yield [b"".join(partial)]


def arriving_lines(path: str, level: Level, unit: Unit) -> Iterator[list[str]]:
    """The lines of a file, or of stdin for "-", without their ends: as many at a time as have come.

    At level byte, bytes that are not UTF-8 become lone surrogates, as from Python's "surrogateescape". DataError if the
    file cannot be read, or at level char is not UTF-8.
    """
    name, number = "stdin" if path == "-" else path, 0
    for lines in whole_lines(as_in_training(arriving(path), level, unit, name)):
        decoded = []
        for line in lines:
            number += 1
            try:
                decoded.append(line.decode("utf-8", "surrogateescape" if level == "byte" else "strict"))
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{name}: line {number:,}: found no UTF-8 at byte {error.start} of the line; allowed: UTF-8"
                ) from None
        yield decoded
