"""The text of a sample from its ids, as they come."""

import codecs
from collections import deque
from collections.abc import Iterator, Sequence

from charlm.data.vocabulary import Vocabulary


class SampleText:
    """A sample in progress: decodes its ids as they come, until it ends with one of `stops`, or at its line's end.

    line_end: the id that ends it, if it is a line.
    """

    def __init__(self, vocabulary: Vocabulary, stops: Sequence[str], line_end: int | None) -> None:
        self.done = False
        self._vocabulary, self._line_end = vocabulary, line_end
        self._stops = [vocabulary.encode(stop).tolist() for stop in stops if not vocabulary.unknown(stop)]
        self._tail: deque[int] = deque(maxlen=max(map(len, self._stops), default=0))
        self._bytes = codecs.getincrementaldecoder("utf-8")("surrogateescape")

    def append(self, id: int, last: bool) -> str:
        """The text that this id adds; nothing while the bytes of a character are incomplete."""
        if self.done:
            return ""
        self._tail.append(id)
        line_ends = id == self._line_end
        tail = [*self._tail]
        self.done = last or line_ends or any(tail[-len(stop) :] == stop for stop in self._stops)
        new = [] if line_ends else [id]
        if self._vocabulary.level == "byte":
            return self._bytes.decode(bytes(new), final=self.done)
        return self._vocabulary.decode(new)


def valid_text(pieces: Iterator[str]) -> Iterator[str]:
    """The pieces with U+FFFD for bytes that are not UTF-8, as `readable` would make of the whole text."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for piece in pieces:
        if valid := decoder.decode(piece.encode("utf-8", "surrogateescape")):
            yield valid
    if valid := decoder.decode(b"", final=True):
        yield valid
