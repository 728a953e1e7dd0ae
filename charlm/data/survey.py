"""The first pass over a text: its SHA-256, and how often each character occurs."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from charlm.data.background import in_background
from charlm.data.cache import Draft, check_room, find_entry, has_entry, store_entry, writable_folder
from charlm.data.progress import Progress
from charlm.data.reading import Symbols, Unit, changed, file_sizes, read_symbols, sha256_of
from charlm.data.sources import resolve
from charlm.data.vocabulary import CODE_POINTS, UNKNOWN, Level, Vocabulary
from charlm.errors import DataError
from charlm.native.utf8 import Decode, decoder
from charlm.system.console import say
from charlm.system.formatting import counted, format_bytes

FORMAT = 1  # part of every cache key: raise it when the content of cached files changes its meaning


@dataclass(frozen=True)
class Survey:
    """What one pass over a source finds."""

    source: str
    paths: list[Path]
    level: Level
    size_bytes: int
    sha256: str
    """Of the bytes of all files, one after another."""
    cache_key: str
    symbols: npt.NDArray[np.int64]
    """The code points (or bytes, at level byte) that occur, sorted."""
    counts: npt.NDArray[np.int64]
    """Occurrences of each of the `symbols`."""
    unit: Unit = "text"
    draft: Draft | None = None
    """The decoded text, if the caller wants to encode it."""

    @property
    def length(self) -> int:
        """Characters (or bytes) of the text."""
        return int(self.counts.sum())

    def unknown(self, vocabulary: Vocabulary) -> dict[str, int]:
        """Occurrences of each character that `vocabulary` lacks, the most frequent first."""
        if self.level == "byte":
            return {}
        lacking = vocabulary.id_of_code_point[self.symbols] == UNKNOWN
        found = zip(self.symbols[lacking].tolist(), self.counts[lacking].tolist(), strict=True)
        return {chr(code): count for code, count in sorted(found, key=lambda pair: (-pair[1], pair[0]))}

    def read(self) -> Iterator[Symbols]:
        """Yield the text in chunks, from the draft or else from the files; DataError if the files have changed."""
        if self.draft:
            yield from self.draft.read()
            return
        hasher = hashlib.sha256()
        decode = decoder(self.size_bytes)
        with in_background() as later:
            for path in self.paths:
                yield from read_symbols(path, self.level, partial(later, hasher.update), decode, self.unit)
        if hasher.hexdigest() != self.sha256:
            raise changed(self.source)


def survey_source(
    source: str, level: Level, drafts: ExitStack | None = None, unit: Unit = "text", *, to_encode: bool = False
) -> Survey:
    """Survey a source, or find its survey in the cache; DataError if it has no text or is not UTF-8.

    If lines are the unit, each file is whole lines, see `whole_lines`. With `drafts`, the survey of a new text keeps
    the decoded text until `drafts` closes. With `drafts` or `to_encode`, DataError at once if the disk of the cache has
    too little room for the encoded text.
    """
    paths = resolve(source)
    sizes = file_sizes(paths)
    # The sizes of the files are part of the key, because a byte order mark is dropped where a file starts.
    layout = short_digest(FORMAT, level, sizes, *(["line"] if unit == "line" else []))
    if has_entry(f"{layout}-"):
        sha256 = sha256_of(paths)
        key = f"{layout}-{sha256}"
        table = find_entry(key)
        if table is not None:
            return Survey(source, paths, level, sum(sizes), sha256, key, *np.array(table), unit=unit)

    if drafts is not None or to_encode:
        check_room(source, _least_bytes(sum(sizes), level))
    say("data", f"{source}: reading {format_bytes(sum(sizes))} in {counted(len(paths), 'file')}")
    draft, progress = None, Progress(sum(sizes), f"{source}: reading")
    with writable_folder() as folder:
        if drafts is not None and level == "char":
            draft = drafts.enter_context(closing(Draft(folder)))
        sha256, counts = _count_symbols(paths, level, decoder(sum(sizes)), draft, unit, progress)
    symbols = np.flatnonzero(counts)
    if not len(symbols):
        raise DataError(f"{source}: no text in {format_bytes(sum(sizes))}; at least one character is needed; add text")
    table = np.stack([symbols, counts[symbols]])
    key = f"{layout}-{sha256}"
    store_entry(key, table.shape, table.dtype, [table])
    return Survey(source, paths, level, sum(sizes), sha256, key, *table, unit=unit, draft=draft)


def _least_bytes(size_bytes: int, level: Level) -> int:
    """What the cache of a text takes at least: its ids and the draft.

    A character of UTF-8 has 1 to 4 bytes. Its id has 1 byte or more, and its code point, in the draft, half as many as
    its UTF-8 or more.
    """
    return size_bytes if level == "byte" else size_bytes // 4 + size_bytes // 2


def vocabulary_of(surveys: Sequence[Survey]) -> Vocabulary:
    """All 256 bytes, or the characters of all surveyed texts, sorted."""
    if surveys[0].level == "byte":
        return Vocabulary.of_bytes()
    return Vocabulary.of_code_points(np.unique(np.concatenate([survey.symbols for survey in surveys])))


def short_digest(*parts: object) -> str:
    """A part of a cache key: 16 hexadecimal digits that stand for `parts`."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _count_symbols(
    paths: Iterable[Path], level: Level, decode: Decode, draft: Draft | None, unit: Unit, progress: Progress
) -> tuple[str, npt.NDArray[np.int64]]:
    """SHA-256 of the bytes, and the occurrences of every code point (or byte); copies the text into `draft`."""
    # Freeing one block of this size makes glibc keep later blocks instead of returning them to the system; faulting
    # pages in again took a quarter of the time.
    np.empty(1 << 24, np.uint8)
    hasher = hashlib.sha256()
    counts = np.zeros(CODE_POINTS, np.int64)
    # Counting bytes in pairs is almost twice as fast: pairs[a, b] counts a next to b.
    pairs = np.zeros((256, 256), np.int64)

    def see(chunk: bytes) -> None:
        hash_later(hasher.update, chunk)
        progress.passed(len(chunk))

    def count(symbols: Symbols) -> None:
        if symbols.dtype == np.uint8 and len(symbols) >= pairs.size and len(symbols) % 2 == 0:
            pairs[:] += np.bincount(symbols.view(np.uint16), minlength=pairs.size).reshape(pairs.shape)
        else:
            found = np.bincount(symbols)
            counts[: len(found)] += found

    with in_background() as hash_later, in_background() as keep_later, in_background() as count_later:
        for path in paths:
            for symbols in read_symbols(path, level, see, decode, unit):
                if draft:
                    keep_later(draft.append, symbols)
                count_later(count, symbols)
    counts[:256] += pairs.sum(0) + pairs.sum(1)
    return hasher.hexdigest(), counts
