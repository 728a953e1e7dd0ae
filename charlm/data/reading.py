"""Read files in chunks: as bytes, or as text."""

import codecs
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

from charlm.data.kinds import check_text
from charlm.data.vocabulary import Level
from charlm.errors import DataError

CHUNK_BYTES = 1 << 18

Unit = Literal["text", "line"]
NEWLINE = "\n"


def read_text(
    path: Path, level: Level, unit: Unit = "text", see: Callable[[bytes], object] = lambda chunk: None
) -> Iterator[str]:
    """The characters of a file in chunks; at level byte each character stands for a byte.

    At level char, DataError unless the file is UTF-8, and a byte order mark at its start is dropped. Line ends are
    changed only if lines are the unit, see `whole_lines`. `see` gets the bytes of each chunk.
    """
    chunks = read_chunks(path, see)
    text = _decoded(path, chunks) if level == "char" else (chunk.decode("latin-1") for chunk in chunks)
    return whole_lines(text) if unit == "line" else text


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


def sha256_of(paths: Iterable[Path]) -> str:
    """SHA-256 of the bytes of all files, one after another."""
    hasher = hashlib.sha256()
    for path in paths:
        for _ in read_chunks(path, hasher.update):
            pass
    return hasher.hexdigest()


def _decoded(path: Path, chunks: Iterable[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    read, at_start = 0, True
    try:
        for chunk in itertools.chain(chunks, [b""]):
            if not read:
                check_text(path, chunk)
            read += len(chunk)
            text = decoder.decode(chunk, final=not chunk)
            if text and at_start:
                text, at_start = text.removeprefix("\ufeff"), False
            yield text
    except UnicodeDecodeError as error:
        offset = read - len(error.object) + error.start
        raise DataError(
            f"{path}: byte 0x{error.object[error.start]:02X} at offset {offset} is not UTF-8 ({error.reason}); "
            "data.level: char needs UTF-8 text; convert the file or set data.level: byte"
        ) from error


def whole_lines(text: Iterable[str]) -> Iterator[str]:
    """The text of a file, in chunks, with a newline at the end of every line: CR LF becomes one, the last gets one.

    Text that is empty stays empty.
    """
    last, carriage_return = NEWLINE, ""  # a CR at a chunk's end waits for what follows it
    for chunk in text:
        chunk = carriage_return + chunk
        carriage_return = "\r" if chunk.endswith("\r") else ""
        if "\r" in chunk:  # many times as fast as replacing
            chunk = chunk.removesuffix("\r").replace("\r\n", NEWLINE)
        if chunk:
            last = chunk[-1]
            yield chunk
    if carriage_return or last != NEWLINE:
        yield NEWLINE


def unreadable(path: Path, error: OSError) -> DataError:
    """The error for a file or folder that cannot be read."""
    return DataError(
        f"{path}: cannot be read: {error.strerror}; a source needs all its files; make it readable or name another"
    )


def changed(source: str | Path) -> DataError:
    """The error for a source that has changed since charlm began to read it."""
    return DataError(f"{source}: changed while being read; a source must not change; run again when it is complete")
