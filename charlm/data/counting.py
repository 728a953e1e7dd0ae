"""Which characters a source has, and how often: its files are read once, in chunks."""

import hashlib
import json
import shlex
import unicodedata
from collections import Counter

import numpy as np

from charlm.data.records import LINE_END, end_of_record, read_symbols
from charlm.data.sources import resolve
from charlm.data.vocabulary import CODE_POINTS, Level, Vocabulary, is_mark, utf8_decoder
from charlm.errors import DataError
from charlm.system.console import say_once
from charlm.system.formatting import format_bytes

_FORMAT = 6
"""Part of every cache key: raise it when the content of cached files changes its meaning."""


class CountedSource:
    """The files of a source, whose characters are counted. DataError if it is empty, or not UTF-8 at level char."""

    def __init__(self, source: str, level: Level, separator: str = "", vocabulary: Vocabulary | None = None) -> None:
        """separator: of records; "" for running text. vocabulary: in whose Unicode forms the text is read."""
        self.source = source
        self.level: Level = level
        self.separator = separator
        self.vocabulary = vocabulary
        self.paths = resolve(source)
        self.sizes = [path.stat().st_size for path in self.paths]
        """Bytes of each file."""
        self.lengths: list[int] = []
        """Symbols of each file: characters, or bytes at level byte."""
        self.chars = 0
        """Characters of the text; a byte that is not UTF-8 counts as one."""
        hasher = hashlib.sha256()
        of_code_points = np.zeros(CODE_POINTS, np.int64)
        for path in self.paths:
            length = 0
            decoder = utf8_decoder()
            for symbols in read_symbols(path, level, separator, hasher.update, vocabulary):
                of_chunk = np.bincount(symbols)
                of_code_points[: len(of_chunk)] += of_chunk
                length += len(symbols)
                if level == "byte":
                    self.chars += len(decoder.decode(symbols.tobytes()))
            self.chars += length if level == "char" else len(decoder.decode(b"", final=True))
            self.lengths.append(length)
        self.sha256 = hasher.hexdigest()
        """Of the bytes of all files, one after another."""
        self.counts = Counter({chr(code): int(of_code_points[code]) for code in np.flatnonzero(of_code_points)})
        """Occurrences of each character that there is, by code point; of each byte, at level byte, as a character."""
        # The sizes of the files are part of the key: a byte order mark is dropped where a file starts, and each is cut.
        forms = vocabulary and vocabulary.to_json()
        self.cache_key = f"{short_digest(_FORMAT, level, self.sizes, separator, forms)}-{self.sha256}"
        if not self.counts:
            found = f"no text in {format_bytes(sum(self.sizes))}"
            raise DataError(f"{source}: {found}; at least one character is needed; add text")
        files = len(self.paths)
        if separator == LINE_END and self.counts["\n"] <= files and self.counts["\r"] > files:
            found = "found lines that end with CR alone, as on an old Mac"
            convert = f"tr '\\r' '\\n' < {shlex.quote(source)} > lines.txt"
            raise DataError(f"{source}: {found}; allowed: LF or CR LF; convert it: {convert}")

    @property
    def length(self) -> int:
        """Symbols of the text."""
        return sum(self.lengths)

    @property
    def record_count(self) -> int:
        """How many there are; 0 in running text."""
        return self.counts[end_of_record(self.separator)] if self.separator else 0

    @property
    def digest(self) -> str:
        """What tells this text from others: its sha256; of several files, with their sizes, by which they are cut."""
        sizes = [size for size in self.sizes if size]
        return self.sha256 if len(sizes) == 1 else hashlib.sha256(f"{self.sha256} {sizes}".encode()).hexdigest()

    def in_forms_of(self, vocabulary: Vocabulary) -> "CountedSource":
        """The text in Unicode forms that a vocabulary knows, see `Vocabulary.canonical`; says so if that changes it."""
        lacking = vocabulary.without_own_id(self.counts)
        if not any(is_mark(each) or unicodedata.normalize("NFD", each) != each for each in lacking):
            return self
        found = CountedSource(self.source, self.level, self.separator, vocabulary)
        if found.counts == self.counts:
            return self
        say_other_form(self.source)
        return found

    def check_separated(self) -> None:
        """DataError for records, not lines, without a separator between them."""
        if self.separator not in ("", LINE_END) and self.record_count == 1:
            raise DataError(
                f"{self.source}: found no {self.separator!r}; allowed: two records or more, with this between them"
            )

    def unknown(self, vocabulary: Vocabulary) -> dict[str, int]:
        """Occurrences of each character that `vocabulary` lacks, the most frequent first."""
        lacking = "" if self.level == "byte" else vocabulary.unknown(self.counts)
        return {character: count for character, count in self.counts.most_common() if character in lacking}


def say_other_form(name: str) -> None:
    """Say once that a text is read in other Unicode forms than its own."""
    say_once("data", f"{name}: read in another Unicode form, which the model knows better")


def short_digest(*parts: object) -> str:
    """A part of a cache key: 16 hexadecimal digits that stand for `parts`."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
