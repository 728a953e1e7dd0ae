"""From logits to the next id, by temperature, top-k and top-p; and from ids to the text of a sample, as they come."""

import codecs
from collections import deque
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from charlm.data.vocabulary import Vocabulary
from charlm.inference.options import SamplingOptions


def choose(logits_NV: Tensor, options: SamplingOptions, draws_N: Tensor) -> Tensor:
    """The ids [N] where the cumulative probabilities first exceed the uniform draws in [0, 1)."""
    if options.temperature == 0:
        return logits_NV.argmax(-1)
    logits_NV, order_NV = logits_NV.sort(dim=-1, descending=True, stable=True)
    if options.top_k:
        logits_NV = logits_NV[:, : options.top_k]
    # Subtracting first: at temperatures below 1e-307 the quotients of logits are infinite.
    logits_NV = (logits_NV - logits_NV[:, :1]) / options.temperature
    cumulative_NV = logits_NV.softmax(-1).cumsum(-1)
    # Top-p keeps the first ids in the order. Scaling the draw to their mass draws among them alone.
    last_N1 = (cumulative_NV < options.top_p).sum(-1, keepdim=True).clamp(max=cumulative_NV.shape[-1] - 1)
    mass_N1 = cumulative_NV.gather(-1, last_N1)
    rank_N1 = torch.searchsorted(cumulative_NV, draws_N.unsqueeze(-1) * mass_N1, right=True)
    return order_NV.gather(-1, torch.minimum(rank_N1, last_N1)).squeeze(-1)


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
