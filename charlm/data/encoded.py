"""A text as a model reads it, and what a score of it is of."""

import functools
import hashlib
from dataclasses import dataclass, replace

import numpy as np

from charlm.data.vocabulary import Ids, Vocabulary, utf8_decoder
from charlm.errors import DataError
from charlm.scored import ScoredText
from charlm.system.formatting import counted

_BLOCK = 1 << 20
_LONGEST = 4
"""Bytes of a character of UTF-8 at most."""


@dataclass(frozen=True, eq=False)
class EncodedText:
    """A text as a model reads it: the first character is given, all others are scored."""

    ids: Ids
    """[N]. For a model of records: the end of a record, and then whole records."""
    vocabulary: Vocabulary
    name: str = "the text"
    skipped: int = 0
    """Unknown characters that were left out."""
    seen: float | None = None
    """Share that the weights were trained on; None: unknown."""

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
        if self.vocabulary.level == "char" or not len(self.ids):
            return 1
        first = self.ids[:_LONGEST].tobytes().decode("utf-8", "surrogateescape")[0]
        return int(self.vocabulary.sizes(first)[0])

    @functools.cached_property
    def scored(self) -> ScoredText:
        """What a score of this text is of."""
        digest = hashlib.sha256(self.vocabulary.bytes_of(self.ids[: self.given]))
        decoder = utf8_decoder()
        chars = size_bytes = 0
        unknown = self.skipped
        for begin in range(self.given, len(self.ids), _BLOCK):
            data = self.vocabulary.bytes_of(self.ids[begin : begin + _BLOCK])
            digest.update(data)
            size_bytes += len(data)
            chars += len(decoder.decode(data))
        chars += len(decoder.decode(b"", final=True))
        if self.vocabulary.other:
            unknown += int(np.count_nonzero(self.ids == self.vocabulary.characters.index(self.vocabulary.other)))
        return ScoredText(self.name, digest.hexdigest(), chars, size_bytes, unknown, self.seen)

    def check_scorable(self, where: str) -> None:
        """DataError for a text without a character after the first."""
        if len(self.ids) <= self.given:
            found = counted(min(len(self.ids), 1), "character")
            raise DataError(f"{where}: found a text of {found}; allowed: 2 or more")
