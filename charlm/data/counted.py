"""The first pass over a source: its SHA-256, and how often each character occurs."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from charlm.data.cache import check_room, find_entry, has_entry, store_entry
from charlm.data.progress import Progress
from charlm.data.reading import Unit, changed, read_text, sha256_of, unreadable
from charlm.data.sources import resolve
from charlm.data.vocabulary import CODE_POINTS, UNKNOWN, CodePoints, Level, Vocabulary, code_points
from charlm.errors import DataError
from charlm.system.console import say
from charlm.system.formatting import counted, format_bytes

FORMAT = 2
"""Part of every cache key: raise it when the content of cached files changes its meaning."""


@dataclass(frozen=True)
class CountedSource:
    """The files of a source, and what they contain."""

    source: str
    paths: list[Path]
    level: Level
    unit: Unit
    size_bytes: int
    sha256: str
    """Of the bytes of all files, one after another."""
    cache_key: str
    symbols: npt.NDArray[np.int64]
    """The code points (or bytes, at level byte) that occur, sorted."""
    counts: npt.NDArray[np.int64]
    """Occurrences of each of the `symbols`."""

    @property
    def length(self) -> int:
        """Characters (or bytes) of the text."""
        return int(self.counts.sum())

    def count(self, character: str) -> int:
        """Occurrences of a character."""
        return int(self.counts[self.symbols == ord(character)].sum())

    def unknown(self, vocabulary: Vocabulary) -> dict[str, int]:
        """Occurrences of each character that `vocabulary` lacks, the most frequent first."""
        if self.level == "byte":
            return {}
        lacking = vocabulary.id_of_code_point[self.symbols] == UNKNOWN
        pairs = zip(self.symbols[lacking].tolist(), self.counts[lacking].tolist(), strict=True)
        return {chr(code): count for code, count in sorted(pairs, key=lambda pair: (-pair[1], pair[0]))}

    def read(self) -> Iterator[CodePoints]:
        """Yield the text in chunks; DataError if the files have changed."""
        hasher = hashlib.sha256()
        for path in self.paths:
            yield from map(code_points, read_text(path, self.level, self.unit, hasher.update))
        if hasher.hexdigest() != self.sha256:
            raise changed(self.source)


def count_source(source: str, level: Level, unit: Unit = "text") -> CountedSource:
    """Count the characters of a source, or find the counts in the cache; DataError if it has no text or is not UTF-8.

    DataError too, and at once, if the disk of the cache has too little room for the ids.
    """
    paths = resolve(source)
    sizes = _file_sizes(paths)
    # The sizes of the files are part of the key, because a byte order mark is dropped where a file starts.
    layout = short_digest(FORMAT, level, sizes, unit)
    sha256 = sha256_of(paths) if has_entry(f"{layout}-") else ""
    table = find_entry(f"{layout}-{sha256}")
    if table is None:
        # A character of UTF-8 has 4 bytes at most, and its id has 1 or more.
        check_room(source, sum(sizes) if level == "byte" else sum(sizes) // 4)
        say("data", f"{source}: reading {format_bytes(sum(sizes))} in {counted(len(paths), 'file')}")
        sha256, counts = _count(paths, level, unit, Progress(sum(sizes), f"{source}: reading"))
        symbols = np.flatnonzero(counts)
        if not len(symbols):
            raise DataError(
                f"{source}: no text in {format_bytes(sum(sizes))}; at least one character is needed; add text"
            )
        table = store_entry(f"{layout}-{sha256}", np.dtype(np.int64), [symbols, counts[symbols]])
    symbols, counts = np.array(table).reshape(2, -1)
    return CountedSource(source, paths, level, unit, sum(sizes), sha256, f"{layout}-{sha256}", symbols, counts)


def _count(paths: list[Path], level: Level, unit: Unit, progress: Progress) -> tuple[str, npt.NDArray[np.int64]]:
    """SHA-256 of the bytes, and the occurrences of every code point (or byte), [CODE_POINTS]."""
    hasher = hashlib.sha256()
    counts = np.zeros(CODE_POINTS, np.int64)

    def see(chunk: bytes) -> None:
        hasher.update(chunk)
        progress.passed(len(chunk))

    for path in paths:
        for text in read_text(path, level, unit, see):
            of_chunk = np.bincount(code_points(text))
            counts[: len(of_chunk)] += of_chunk
    return hasher.hexdigest(), counts


def _file_sizes(paths: list[Path]) -> list[int]:
    sizes = []
    for path in paths:
        try:
            sizes.append(path.stat().st_size)
        except OSError as error:
            raise unreadable(path, error) from error
    return sizes


def vocabulary_of(sources: Sequence[CountedSource]) -> Vocabulary:
    """All 256 bytes, or the characters of all sources, sorted."""
    if sources[0].level == "byte":
        return Vocabulary.of_bytes()
    return Vocabulary.of_code_points(np.unique(np.concatenate([source.symbols for source in sources])))


def short_digest(*parts: object) -> str:
    """A part of a cache key: 16 hexadecimal digits that stand for `parts`."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
