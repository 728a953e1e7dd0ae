"""The lines of a file or pipe as they come."""

import select
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from charlm.data.kinds import check_text
from charlm.data.reading import Unit
from charlm.data.vocabulary import Level
from charlm.errors import DataError

MOST_BYTES = 1 << 20
"""Size of a block at most, and of the parts of a line that is longer."""
_FEWEST_BYTES = 1 << 14
"""Size of a block at most while lines come slowly: its lines wait for one another."""
_READ_BYTES = 1 << 16
_BOM = b"\xef\xbb\xbf"


class _Reads(Protocol):
    def read(self, size: int, /) -> bytes | None: ...
    def fileno(self) -> int: ...


def as_in_training(blocks: Iterable[bytes], level: Level, unit: Unit, name: str) -> Iterator[bytes]:
    """The blocks without what training leaves out: a byte order mark, and with lines as the unit the CR of CR LF.

    DataError, which begins with the name, for a file of a known kind that is no text.
    """
    mark, held = _BOM if level == "char" else b"", b""
    for number, block in enumerate(blocks):
        if level == "char" and number == 0:
            check_text(name, block)
        block = held + block.removeprefix(mark)
        mark = b""
        if unit == "line":
            held = b"\r" if block.endswith(b"\r") else b""
            block = block[: len(block) - len(held)].replace(b"\r\n", b"\n")
        if block:
            yield block


def arriving_lines(path: str, level: Level, unit: Unit) -> Iterator[list[str]]:
    """The lines of a file, or of stdin for "-", without their ends: as many at a time as a block has.

    At level byte, bytes that are not UTF-8 become lone surrogates, as from Python's "surrogateescape". DataError if the
    file cannot be read, or at level char is not UTF-8.
    """
    arriving, number = open_arriving(path), 0
    for lines in whole_lines(as_in_training(arriving.blocks(), level, unit, arriving.name)):
        yield [_decoded(line, arriving.name, number + place, level) for place, line in enumerate(lines, start=1)]
        number += len(lines)


def whole_lines(blocks: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The lines that end in each block, without their ends; at last the one that has none."""
    begun: list[bytes] = []  # parts of a line without its end
    for block in blocks:
        *whole, rest = block.split(b"\n")
        if whole:
            whole[0] = b"".join([*begun, whole[0]])
            begun.clear()
            yield whole
        if rest:
            begun.append(rest)
    if begun:
        yield [b"".join(begun)]


def _decoded(line: bytes, name: str, number: int, level: Level) -> str:
    try:
        return line.decode("utf-8", "surrogateescape" if level == "byte" else "strict")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}: line {number:,}: found no UTF-8 at byte {error.start} of the line; allowed: UTF-8"
        ) from None


def open_arriving(path: str) -> "Arriving":
    """The lines of a file, or of stdin for "-"; DataError if it cannot be opened."""
    if path == "-":
        return Arriving(getattr(sys.stdin.buffer, "raw", sys.stdin.buffer), "stdin")
    try:
        file = Path(path).open("rb", buffering=0)  # noqa: SIM115
    except OSError as error:
        raise _unreadable(path, error) from None
    return Arriving(file, path, file.close)


class Arriving:
    """The bytes of an unbuffered file, read ahead by a thread in constant memory.

    file: `read` returns what there is, and waits only where there is nothing yet, or returns None there.
    """

    def __init__(self, file: _Reads, name: str, at_end: Callable[[], object] = lambda: None) -> None:
        """at_end: what the thread calls after it has read everything."""
        self.name = name
        self._file, self._at_end = file, at_end
        self._waiting = bytearray()
        self._changed = threading.Condition()
        self._ended = False
        self._fault: OSError | None = None
        # A daemon: the process may end while the thread waits for a line that never comes.
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while (data := self._file.read(_READ_BYTES)) != b"":
                if data is None:  # a pipe in non-blocking mode, which a parent process may have set
                    select.select([self._file], [], [])
                    continue
                with self._changed:
                    self._changed.wait_for(lambda: len(self._waiting) < 2 * MOST_BYTES)
                    self._waiting += data
                    self._changed.notify_all()
        except OSError as error:
            self._fault = error
        self._at_end()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def blocks(self) -> Iterator[bytes]:
        """Yield what has come, as soon as there is a whole line: whole lines, or a part of a long one.

        A block ends with a newline unless its last line goes on in the next one, or the input ends without a newline.
        Parts of a line do not end inside a character of UTF-8. DataError if the file cannot be read.

        Blocks grow while lines come faster than they are taken: few large ones cost less time.
        """
        most = _FEWEST_BYTES
        while True:
            with self._changed:
                while not (length := self._length(most)) and not self._ended:
                    self._changed.wait()
                block = bytes(self._waiting[: length or len(self._waiting)])
                del self._waiting[: len(block)]
                most = min(2 * most, MOST_BYTES) if len(self._waiting) >= most else max(most // 2, _FEWEST_BYTES)
                self._changed.notify_all()
            if not block:
                break
            yield block
        if self._fault:
            raise _unreadable(self.name, self._fault)

    def _length(self, most: int) -> int:
        """Length of the next block; 0 if no line is whole yet."""
        waiting = self._waiting
        if length := waiting.rfind(b"\n", 0, most) + 1 or waiting.find(b"\n", most, MOST_BYTES) + 1:
            return length
        return 0 if len(waiting) < MOST_BYTES else _before_character(waiting)


def _before_character(data: bytearray) -> int:
    """At most MOST_BYTES: where the last character that begins there or earlier does not go on."""
    tail = data[MOST_BYTES - 3 : MOST_BYTES]
    leads = [at for at, byte in enumerate(tail) if byte >= 0xC0]
    return MOST_BYTES - 3 + leads[-1] if leads else MOST_BYTES


def _unreadable(name: str, error: OSError) -> DataError:
    return DataError(f"{name}: {error.strerror}; allowed: a text file, or - for stdin")
