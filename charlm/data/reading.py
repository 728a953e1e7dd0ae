"""Read text from files in chunks, and from pipes as it arrives."""

import codecs
import contextlib
import itertools
import re
import select
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from charlm.data.vocabulary import CodePoints, Level, Vocabulary, code_points
from charlm.errors import DataError
from charlm.system.files import encoding_fault, regular

CHUNK_BYTES = 1 << 18
"""As much is read at once; of a pipe, what there is."""

Unit = Literal["text", "line"]
NEWLINE = "\n"


def read_symbols(path: Path, level: Level, unit: Unit, see: Callable[[bytes], object]) -> Iterator[CodePoints]:
    """The code points of a file, or its bytes at level byte, in chunks as training reads them, see `as_in_training`.

    `see` gets the bytes of each chunk. DataError unless the file is UTF-8 at level char.
    """
    chunks = as_in_training(_read_chunks(path, see), level, unit, path)
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
        line += text.count(NEWLINE)
        if text:
            yield code_points(text)


def as_in_training(chunks: Iterable[bytes], level: Level, unit: Unit, name: str | Path) -> Iterator[bytes]:
    """The bytes of a file or pipe as training reads them; DataError, at level char, for a known kind that is not text.

    At level char a byte order mark at the start is dropped. If lines are the unit, CR LF becomes a newline, and the
    last line gets one.
    """
    mark = codecs.BOM_UTF8 if level == "char" else b""
    carriage_return, last = b"", b"\n"  # a CR at the end of a chunk waits for what follows it
    for chunk in chunks:
        if mark:
            _check_text(name, chunk)
        chunk, mark = carriage_return + chunk.removeprefix(mark), b""
        if unit == "line":
            carriage_return = b"\r" if chunk.endswith(b"\r") else b""
            chunk = chunk[: len(chunk) - len(carriage_return)].replace(b"\r\n", b"\n")
        if chunk:
            last = chunk[-1:]
            yield chunk
    if unit == "line" and (carriage_return or last != b"\n"):
        yield b"\n"


def _read_chunks(path: Path, see: Callable[[bytes], object]) -> Iterator[bytes]:
    """Call `see`, which must not raise OSError, with each chunk of the file, then yield the chunk."""
    try:
        with open(path, "rb", buffering=0, opener=regular) as file:
            while chunk := file.read(CHUNK_BYTES):
                see(chunk)
                yield chunk
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> DataError:
    """The error for a file or folder that cannot be read."""
    return DataError(f"{path}: cannot be read: {error.strerror}; a source needs all its files; mend it or name another")


_KINDS = {
    "a gzip file": rb"\x1f\x8b",
    "a bzip2 file": rb"BZh[1-9]1AY&SY",
    "an xz file": rb"\xfd7zXZ\x00",
    "a Zstandard file": rb"\x28\xb5\x2f\xfd",
    "a zip archive or an office document": rb"PK\x03\x04|\xd0\xcf\x11\xe0",
    "a PDF document": rb"%PDF-",
    "an RTF document": rb"\{\\rtf",
}
"""How files begin that people take for text."""


def _check_text(name: str | Path, head: bytes) -> None:
    """DataError if a file that begins with `head` is of a known kind that is no text in UTF-8."""
    if fault := encoding_fault(name, head):
        raise DataError(fault)
    for kind, begin in _KINDS.items():
        if re.match(begin, head):
            raise DataError(
                f"{name}: found {kind}; allowed: text in UTF-8; unpack it, or save it as plain text in its program"
            )


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
                file = opened.enter_context(Path(path).open("rb", buffering=0))
            while (data := file.read(CHUNK_BYTES)) != b"":
                if data is None:  # a pipe in non-blocking mode, which a parent process may have set
                    select.select([file], [], [])
                else:
                    yield data
    except OSError as error:
        raise DataError(f"{text_name(path)}: {error.strerror}; allowed: a text file, or - for stdin") from None


def whole_lines(blocks: Iterable[bytes]) -> Iterator[list[str]]:
    """The lines that end in each block, without their ends; at last the one that has none. As by `text_lines`."""
    partial: list[bytes] = []  # parts of a line without its end
    for block in blocks:
        *whole, remainder = block.split(b"\n")
        if whole:
            whole[0] = b"".join([*partial, whole[0]])
            partial.clear()
            yield [line.decode("utf-8", "surrogateescape") for line in whole]
        if remainder:
            partial.append(remainder)
    if partial:
        yield [b"".join(partial).decode("utf-8", "surrogateescape")]


def arriving_lines(path: str, vocabulary: Vocabulary, unit: Unit) -> Iterator[list[str]]:
    """The lines of a file, or of stdin for "-", as they come. A CR LF ends one if the training text had none."""
    if vocabulary.unknown("\r"):
        unit = "line"
    return whole_lines(as_in_training(arriving(path), vocabulary.level, unit, text_name(path)))


def text_name(path: str) -> str:
    """What messages call a text: its path, or stdin for "-"."""
    return "stdin" if path == "-" else path
