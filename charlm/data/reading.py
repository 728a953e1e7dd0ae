"""Read text from files in chunks, and from pipes as it arrives."""

import codecs
import contextlib
import importlib
import io
import itertools
import lzma
import re
import select
import stat
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from charlm.data.vocabulary import CodePoints, Level, Vocabulary, code_points
from charlm.errors import DataError
from charlm.system.files import encoding_fault, regular
from charlm.system.formatting import escaped

CHUNK_BYTES = 1 << 18
"""As much is read at once; of a pipe, what there is."""

LINES = "\n"
"""The separator of records that are lines."""
RECORD_END = "\x1e"
"""The symbol that stands for a separator of several bytes: ASCII's record separator."""


def end_of_record(separator: str) -> str:
    """The symbol that ends a record."""
    return separator if len(separator.encode()) == 1 else RECORD_END


def read_symbols(path: Path, level: Level, separator: str, see: Callable[[bytes], object]) -> Iterator[CodePoints]:
    """The code points of a file, or its bytes at level byte, in chunks as training reads them, see `as_in_training`.

    Calls `see` with the bytes of each chunk. DataError unless the file is UTF-8 at level char.
    """
    chunks = as_in_training(_read_chunks(path, see), level, separator, path)
    if level == "byte":
        yield from (np.frombuffer(chunk, np.uint8) for chunk in chunks)
        return
    decoder, line = codecs.getincrementaldecoder("utf-8")(), 1
    for chunk in itertools.chain(chunks, [b""]):
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            line += error.object.count(b"\n", 0, error.start)
            raise DataError(
                f"{path}: line {line:,}: byte 0x{error.object[error.start]:02X} is not UTF-8 ({error.reason}); "
                "data.level: char needs UTF-8 text; convert the file or set data.level: byte"
            ) from None
        line += text.count("\n")
        if text:
            yield code_points(text)


def as_in_training(chunks: Iterable[bytes], level: Level, separator: str, name: str | Path) -> Iterator[bytes]:
    """The bytes of a file or pipe as training reads them; DataError, at level char, for a known kind that is not text.

    At level char a byte order mark at the start is dropped. In records CR LF becomes a newline, and each separator one
    symbol, see `end_of_record`. The last record also gets it: a partial separator at the end of the text counts as one.
    """
    mark = codecs.BOM_UTF8 if level == "char" else b""
    whole, end = separator.encode(), end_of_record(separator).encode()
    beginnings = [whole[:length] for length in range(len(whole) - 1, 0, -1)]
    waiting, carriage_return, last = b"", b"", end  # waiting: what may be the beginning of a CR LF, or of a separator
    for chunk in chunks:
        if mark:
            _check_text(name, chunk)
        chunk, mark = waiting + chunk.removeprefix(mark), b""
        if separator:
            if whole != end and end in chunk:
                raise DataError(f"{name}: found the byte 0x1E, which marks the ends of records; allowed: other text")
            chunk, carriage_return = _without(chunk, [b"\r"])
            chunk, beginning = _without(chunk.replace(b"\r\n", b"\n").replace(whole, end), beginnings)
            waiting = beginning + carriage_return
        if chunk:
            last = chunk[-1:]
            yield chunk
    if separator and (last != end or carriage_return):
        yield end


def text_in_training(chunks: Iterable[bytes], level: Level, separator: str, name: str | Path) -> str:
    """A whole text as training reads it, see `as_in_training`; bytes that are not UTF-8 as lone surrogates."""
    return b"".join(as_in_training(chunks, level, separator, name)).decode("utf-8", "surrogateescape")


def _without(chunk: bytes, endings: Iterable[bytes]) -> tuple[bytes, bytes]:
    """A chunk without the first of these that it ends with, and that."""
    for ending in endings:
        if chunk.endswith(ending):
            return chunk[: len(chunk) - len(ending)], ending
    return chunk, b""


def _read_chunks(path: Path, see: Callable[[bytes], object]) -> Iterator[bytes]:
    """Call `see`, which must not raise OSError, with each chunk of the file, then yield the chunk."""
    try:
        with open(path, "rb", buffering=0, opener=regular) as file, _unpacked(file, path) as text:
            while chunk := text.read(CHUNK_BYTES):
                see(chunk)
                yield chunk
    except _UNREADABLE as error:
        raise unreadable(path, error) from error


_UNREADABLE = (OSError, EOFError, lzma.LZMAError, zlib.error)
_COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma", ".zst": "compression.zstd"}
"""The ending of a compressed file, and the module of Python that reads it."""


def _unpacked(file: io.RawIOBase, path: Path) -> contextlib.AbstractContextManager[Any]:
    """The file, or what is compressed in it."""
    if path.suffix not in _COMPRESSED:
        return file
    try:
        module = importlib.import_module(_COMPRESSED[path.suffix])
    except ImportError:
        raise DataError(f"{path}: found {path.suffix}; allowed: a text, or .gz, .bz2 or .xz; unpack it") from None
    return module.open(file)


def unreadable(path: Path, error: Exception) -> DataError:
    """The error for a file or folder that cannot be read."""
    return DataError(f"{path}: cannot be read: {_why(error)}; a source needs all its files; mend it or name another")


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


_KINDS = {
    "a gzip file": rb"\x1f\x8b",
    "a bzip2 file": rb"BZh[1-9]1AY&SY",
    "an xz file": rb"\xfd7zXZ\x00",
    "a Zstandard file": rb"\x28\xb5\x2f\xfd",
    "a zip archive or an office document": rb"PK\x03\x04|\xd0\xcf\x11\xe0",
    "a PDF document": rb"%PDF-",
    "an RTF document": rb"\{\\rtf",
    "a tar archive": rb"[\s\S]{257}ustar",
}
"""How files begin that people take for text."""


def _check_text(name: str | Path, head: bytes) -> None:
    """DataError if a file that begins with `head` is of a known kind that is no text in UTF-8."""
    if fault := encoding_fault(name, head):
        raise DataError(fault)
    for kind, begin in _KINDS.items():
        if re.match(begin, head):
            raise DataError(
                f"{name}: found {kind}{_listed(name)}; allowed: text in UTF-8, or compressed as .gz, .bz2 or .xz; "
                "unpack it, or save it as plain text"
            )


def _listed(name: str | Path) -> str:
    """The first texts in a zip archive, in words."""
    names: list[str] = []
    with contextlib.suppress(OSError, zipfile.BadZipFile):
        names = [entry for entry in zipfile.ZipFile(name).namelist() if entry.endswith((".txt", ".md"))]
    return f" with {', '.join(map(escaped, names[:3]))}" if names else ""


def is_pipe(source: str) -> bool:
    """Whether a text can be read only once: stdin, or another pipe."""
    if source == "-" or _DESCRIPTOR.fullmatch(source):
        return True
    with contextlib.suppress(OSError, ValueError):  # no path: the text's own error comes later
        return stat.S_ISFIFO(Path(source).stat().st_mode)
    return False


_DESCRIPTOR = re.compile(r"/dev/stdin|/dev/fd/\d+|/proc/self/fd/\d+")
"""Also of a file: it has this name only as long as it is open."""


def arriving(path: str) -> Iterator[bytes]:
    """The bytes of a file, or of stdin for "-", as they come; DataError if they cannot be read."""
    try:
        with contextlib.ExitStack() as opened:
            if path == "-":
                file = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
            else:
                raw = opened.enter_context(Path(path).open("rb", buffering=0))
                file = opened.enter_context(_unpacked(raw, Path(path)))
            while (data := file.read(CHUNK_BYTES)) != b"":
                if data is None:  # a pipe in non-blocking mode, which a parent process may have set
                    select.select([file], [], [])
                else:
                    yield data
    except _UNREADABLE as error:
        raise DataError(f"{text_name(path)}: {_why(error)}; allowed: a text file, or - for stdin") from None


def whole_records(blocks: Iterable[bytes], separator: str = LINES) -> Iterator[list[str]]:
    """The records that end in each block, without their ends; at last the one that has none. As by `text_records`."""
    end = end_of_record(separator).encode()
    partial: list[bytes] = []  # parts of a record without its end
    for block in blocks:
        *whole, remainder = block.split(end)
        if whole:
            whole[0] = b"".join([*partial, whole[0]])
            partial.clear()
            yield [record.decode("utf-8", "surrogateescape") for record in whole]
        if remainder:
            partial.append(remainder)
    if partial:
        yield [b"".join(partial).decode("utf-8", "surrogateescape")]


def arriving_records(path: str, vocabulary: Vocabulary, separator: str) -> Iterator[list[str]]:
    """The records of a file, or of stdin for "-", as they arrive; without a separator its lines.

    CR LF ends a line, too, if the training text had none.
    """
    reads_lines = vocabulary.unknown("\r") and not separator
    blocks = as_in_training(arriving(path), vocabulary.level, LINES if reads_lines else separator, text_name(path))
    return whole_records(blocks, separator or LINES)


def text_name(path: str) -> str:
    """What messages call a text: its path, or stdin for "-"."""
    return "stdin" if path == "-" else path
