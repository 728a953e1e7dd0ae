"""Lines of a file or of stdin as they arrive, for commands that answer line by line."""

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from io import BufferedReader
from pathlib import Path
from typing import cast

from charlm.data.vocabulary import Level
from charlm.errors import DataError

_BLOCK = 1 << 16
_BOM = b"\xef\xbb\xbf"


def arriving_lines(path: Path, level: Level) -> Iterator[list[str]]:
    """The lines of a file, or of stdin for "-", without their ends: as many at a time as one read has brought.

    At level byte, bytes that are not UTF-8 become lone surrogates, as from Python's "surrogateescape". DataError if the
    file cannot be read, or at level char is not UTF-8.
    """
    number = 0
    for lines in _raw_lines(path):
        if not number and level == "char":
            lines[0] = lines[0].removeprefix(_BOM)
        yield [_decoded(line, path, number + place, level) for place, line in enumerate(lines, start=1)]
        number += len(lines)


def _raw_lines(path: Path) -> Iterator[list[bytes]]:
    try:
        stdin = cast(BufferedReader, sys.stdin.buffer)
        with nullcontext(stdin) if str(path) == "-" else path.open("rb") as file:
            begun: list[bytes] = []  # parts of a line without its end
            while block := file.read1(_BLOCK):
                *whole, rest = block.split(b"\n")
                if whole:
                    whole[0] = b"".join([*begun, whole[0]])
                    begun.clear()
                    yield whole
                if rest:
                    begun.append(rest)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; allowed: a text file, or - for stdin") from None
    if begun:
        yield [b"".join(begun)]


def _decoded(line: bytes, path: Path, number: int, level: Level) -> str:
    try:
        return line.decode("utf-8", "surrogateescape" if level == "byte" else "strict")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: line {number:,}: found no UTF-8 at byte {error.start} of the line; allowed: UTF-8"
        ) from None
