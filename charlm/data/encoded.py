"""A text as a model reads it, and what a score of it is of."""

import codecs
import functools
import hashlib
from dataclasses import dataclass, replace

import numpy as np

from charlm.data.vocabulary import Ids, Vocabulary
from charlm.scored import ScoredText

_BLOCK = 1 << 20
_CONTINUATIONS = bytes(range(0x80, 0xC0))
"""The bytes of a character of UTF-8 after its first; three at most."""


@dataclass(frozen=True, eq=False)
class EncodedText:
    """A text as a model reads it: the first character is given, all others are scored."""

    ids: Ids
    """[N]. For a model of records: the end of a record, and then whole records."""
    vocabulary: Vocabulary
    name: str = "the text"
    skipped: int = 0
    """Unknown characters that were left out."""

    def first(self, length: int) -> "EncodedText":
        """The first `length` ids."""
        if length >= len(self.ids):
            return self
        name = f"first {length:,} {self.vocabulary.unit}s of {self.name}"
        return replace(self, ids=self.ids[:length], name=name)

    def in_vocabulary(self, vocabulary: Vocabulary) -> "EncodedText":
        """The same text in other ids; VocabularyError if the vocabulary does not know it all."""
        return replace(self, ids=vocabulary.encode(self.text), vocabulary=vocabulary)

    @property
    def text(self) -> str:
        """The text itself; other bytes than UTF-8 as lone surrogates."""
        return self.vocabulary.decode(self.ids, "surrogateescape")

    @property
    def given(self) -> int:
        """Symbols of the first character: several bytes, or one."""
        if self.vocabulary.level == "char":
            return 1
        rest = self.ids[1:4].tobytes()
        return 1 + len(rest) - len(rest.lstrip(_CONTINUATIONS))

    @functools.cached_property
    def scored(self) -> ScoredText:
        """What a score of this text is of."""
        digest, is_utf8 = hashlib.sha256(self.vocabulary.bytes_of(self.ids[: self.given])), Utf8Check()
        chars, size_bytes, unknown = 0, 0, self.skipped
        for begin in range(self.given, len(self.ids), _BLOCK):
            data = self.vocabulary.bytes_of(self.ids[begin : begin + _BLOCK])
            digest.update(data)
            is_utf8.update(data)
            size_bytes += len(data)
            chars += count_characters(data)
        if not is_utf8.holds:
            chars = size_bytes
        if self.vocabulary.other:
            unknown += int(np.count_nonzero(self.ids == self.vocabulary.characters.index(self.vocabulary.other)))
        return ScoredText(self.name, digest.hexdigest(), chars, size_bytes, unknown)


def count_characters(data: bytes) -> int:
    """The characters of UTF-8 that begin in `data`: its bytes that do not continue a character."""
    return int(np.count_nonzero((np.frombuffer(data, np.uint8) & 0xC0) != 0x80))


class Utf8Check:
    """Whether bytes are UTF-8; they may end inside a character."""

    def __init__(self) -> None:
        self.holds = True
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def update(self, data: bytes) -> None:
        """Check the next bytes."""
        if self.holds:
            try:
                self._decoder.decode(data)
            except UnicodeDecodeError:
                self.holds = False
