"""Texts as training reads them, and records: each starts from the initial state, and ends with its own end.

The end of a record is one symbol: the separator, or RECORD_END for a separator of several bytes, see `end_of_record`.
"""

import codecs
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from charlm.data.cache import cached
from charlm.data.reading import arriving, check_text, text_name
from charlm.data.vocabulary import CodePoints, Ids, Level, Vocabulary, code_points
from charlm.errors import DataError

LINE_END = "\n"
"""The separator of records that are lines."""
RECORD_END = "\x1e"
"""The symbol that stands for a separator of several bytes: ASCII's record separator."""
_CHUNK = 1 << 18
"""Characters that are read at once; more if a record is longer."""


def end_of_record(separator: str) -> str:
    """The symbol that ends a record; without a separator the end of a line."""
    end = separator or LINE_END
    return end if len(end.encode()) == 1 else RECORD_END


def holds_end(text: str, separator: str) -> bool:
    """Whether the end of a record is in a text: its separator, or the symbol that stands for it."""
    return (separator or LINE_END) in text or end_of_record(separator) in text


# From bytes


def read_symbols(
    path: Path,
    level: Level,
    separator: str,
    see: Callable[[bytes], object],
    vocabulary: Vocabulary | None = None,
) -> Iterator[CodePoints]:
    """The code points of a file, or its bytes at level byte, in chunks as training reads them, see `as_in_training`.

    Calls `see` with the bytes of each chunk. vocabulary: in its Unicode forms, see `Vocabulary.canonical`. DataError
    unless the file is UTF-8 at level char.
    """
    chunks = as_in_training(_seen(arriving(path), see), level, separator, path)
    if level == "byte":
        yield from (np.frombuffer(chunk, np.uint8) for chunk in chunks)
        return
    texts = _decoded(chunks, path)
    if vocabulary is not None:
        texts = vocabulary.canonical_chunks(texts)
    yield from map(code_points, filter(None, texts))


def _decoded(chunks: Iterable[bytes], path: Path) -> Iterator[str]:
    decoder, line = codecs.getincrementaldecoder("utf-8")(), 1
    for chunk in itertools.chain(chunks, [b""]):
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            line += error.object.count(b"\n", 0, error.start)
            fault = f"byte 0x{error.object[error.start]:02X} is not UTF-8 ({error.reason})"
            advice = "data.level: char needs UTF-8 text; convert the file or set data.level: byte"
            raise DataError(f"{path}: line {line:,}: {fault}; {advice}") from None
        line += text.count("\n")
        yield text


def _seen(chunks: Iterable[bytes], see: Callable[[bytes], object]) -> Iterator[bytes]:
    for chunk in chunks:
        see(chunk)
        yield chunk


def as_in_training(chunks: Iterable[bytes], level: Level, separator: str, name: str | Path) -> Iterator[bytes]:
    """The bytes of a file or pipe as training reads them; DataError, at level char, for a known kind that is not text.

    At level char a byte order mark at the start is dropped. In records each separator becomes one symbol, see
    `end_of_record`, and CR LF a newline, unless the separator has a CR itself. The last record also gets an end: a
    partial separator at the end of the text counts as one.
    """
    mark = codecs.BOM_UTF8 if level == "char" else b""
    whole, end = separator.encode(), end_of_record(separator).encode()
    beginnings = [whole[:length] for length in range(len(whole) - 1, 0, -1)]
    waiting, carriage_return, last = b"", b"", end  # waiting: what may be the beginning of a CR LF, or of a separator
    for chunk in chunks:
        if mark:
            check_text(name, chunk)
        chunk, mark = waiting + chunk.removeprefix(mark), b""
        if separator:
            if whole != end and end in chunk:
                raise DataError(f"{name}: found the byte 0x1E, which marks the ends of records; allowed: other text")
            chunk, carriage_return = _without(chunk, [b"\r"])
            if b"\r" not in whole:
                chunk = chunk.replace(b"\r\n", b"\n")
            chunk, beginning = _without(chunk.replace(whole, end), beginnings)
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


def whole_records(blocks: Iterable[bytes], separator: str = "") -> Iterator[list[str]]:
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
    blocks = as_in_training(arriving(path), vocabulary.level, LINE_END if reads_lines else separator, text_name(path))
    return whole_records(blocks, separator)


# In ids


def end_id(vocabulary: Vocabulary, separator: str = "") -> int:
    """The id of the end of a record; VocabularyError if it has none."""
    return int(vocabulary.encode(end_of_record(separator))[0])


def reset_id_of(separator: str, vocabulary: Vocabulary) -> int | None:
    """The id before which a stream has its initial state, see `CharLM.reset_id`; None for running text."""
    return end_id(vocabulary, separator) if separator else None


def as_records(ids: Ids, reset_id: int | None, *, ended: bool = True) -> Ids:
    """Ids as a model of records reads them: an end before the first, and after the last if `ended`."""
    if reset_id is None:
        return ids
    end = np.array([reset_id], ids.dtype)
    return np.concatenate([end, ids, end] if ended else [end, ids])


def record_chunks(ids: Ids, end: int) -> Iterator[Ids]:
    """Whole records, some at a time; the last one has its end too."""
    start = stop = 0
    while start < len(ids):
        assert stop < len(ids), "the last record has no end"
        begin, stop = stop, min(stop + _CHUNK, len(ids))
        ends = record_ends(ids[begin:stop], end)
        if len(ends):
            yield np.asarray(ids[start : begin + int(ends[-1])])
            start = begin + int(ends[-1])


def record_ends(chunk: Ids, end: int) -> npt.NDArray[np.int64]:
    """Where the records of a chunk end, behind their end symbols."""
    return np.flatnonzero(chunk == end) + 1


def record_starts(ids: Ids, end: int, key: str) -> Ids:
    """Where each record of a split starts, and the last one ends, [records + 1]; key: of the split in the cache."""
    begins = range(0, len(ids), _CHUNK)
    blocks = (begin + record_ends(ids[begin : begin + _CHUNK], end) for begin in begins)
    return cached(f"{key}-starts", np.min_scalar_type(len(ids)), blocks)


def text_records(ids: Ids, vocabulary: Vocabulary, separator: str) -> Iterator[list[str]]:
    """The records of `ids` without their ends, some at a time; other bytes than UTF-8 as lone surrogates."""
    for chunk in record_chunks(ids, end_id(vocabulary, separator)):
        yield vocabulary.decode(chunk, "surrogateescape").split(end_of_record(separator))[:-1]
