"""Scores of lines as they come, each by itself, many side by side."""

import contextlib
import copy
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from charlm.data.arriving import as_in_training, turned_line, turned_lines
from charlm.data.reading import NEWLINE, Unit
from charlm.data.vocabulary import UNKNOWN, code_points, describe_characters
from charlm.errors import VocabularyError
from charlm.inference.dynamic import Adaptation
from charlm.inference.evaluation import WARMUP, Cut, Ids, line_sums, most_streams, scored_windows, sum_windows
from charlm.inference.line_learning import LineLearner
from charlm.inference.trained import TrainedModel
from charlm.model import CharLM
from charlm.system.formatting import counted, nats_to_bits


@dataclass(frozen=True)
class Unknown:
    """What becomes of characters that the model does not know."""

    skip: bool = False
    """They are left out."""
    nats: float | None = None
    """Each counts as a character of this score, and the model does not read it."""


@dataclass(frozen=True)
class TextScore:
    """The score of a text."""

    chars: int
    """Number of characters scored."""
    nats: float
    """Their cross-entropy, summed in float64."""
    per_char_nats: npt.NDArray[np.float32] | None
    """That of each, [chars]; None unless asked for."""

    @property
    def nats_per_char(self) -> float:
        return self.nats / self.chars

    @property
    def bits(self) -> float:
        return nats_to_bits(self.nats)

    @property
    def bits_per_char(self) -> float:
        return nats_to_bits(self.nats_per_char)


@dataclass(frozen=True)
class LineScore(TextScore):
    """The score of a line. Its characters are those of the line and its newline."""

    number: int
    """1 for the first line."""
    text: bytes | bytearray
    """Without its newline."""


class _Symbols(NamedTuple):
    """The characters of a block."""

    codes: npt.NDArray[np.unsignedinteger]
    ids: Ids
    """Of those that the model knows."""
    known: npt.NDArray[np.bool_]
    """Which of the characters these are."""


@dataclass
class _Open:
    """The line that the blocks so far have not ended."""

    text: bytearray
    ids: Ids
    """Its last ids, of which the first is a newline or warms the model up."""
    chars: int
    nats: float
    per_char: list[npt.NDArray[np.float32]]


class LineScorer:
    """Scores lines, each by itself: every character counts, the newline that ends the line too.

    The model reads a newline before each line, from the zero state, even if it was trained on running text.
    VocabularyError if it has never seen one.

    label: score the lines given that this is their label; LabelError if the model does not know it.
    where: the name of the text, for errors. adaptation: learn from the lines that have been scored, see `LineLearner`;
    DataError if the training text has changed or is gone.
    """

    def __init__(
        self,
        trained: TrainedModel,
        where: str,
        unknown: Unknown,
        *,
        label: str | None = None,
        per_char: bool = False,
        adaptation: Adaptation | None = None,
    ) -> None:
        self._prefix = "" if label is None else trained.label_prefix(label)
        self._network, self._device, self._vocabulary = line_network(trained), trained.device, trained.vocabulary
        self._unit: Unit = trained.config.data.unit
        self._where, self._unknown, self._wants_per_char = where, unknown, per_char
        self._per_char = per_char or bool(self._prefix)
        self._newline = self._vocabulary.encode(NEWLINE)
        is_byte = self._vocabulary.level == "byte"
        self._id_of = np.arange(256, dtype=np.uint32) if is_byte else self._vocabulary.id_of_code_point
        self._learner = None
        if adaptation:
            train_ids = trained.training_splits("--dynamic")["train"]
            self._learner = LineLearner(self._network, train_ids, self._device, adaptation)
        self._lines = 0
        self._open = self._new_line()

    def scores(self, blocks: Iterable[bytes]) -> Iterator[list[LineScore]]:
        """Yield the scores of the lines that end in each block, in order. For blocks see `Arriving.blocks`.

        VocabularyError, after the lines before it, for a line with characters that the model does not know.
        """
        with self._learner.restoring() if self._learner else contextlib.nullcontext():
            for block in self._as_read(as_in_training(blocks, self._vocabulary.level, self._unit, self._where)):
                for part in self._learner.segments(block) if self._learner else [block]:
                    for lines in self._scored(part):
                        yield [*map(self._as_written, lines)]
            if self._open.text:
                for lines in self._scored(b"\n"):
                    yield [*map(self._as_written, lines)]

    def _as_read(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """The blocks as the model reads them: each line with its label, or from its end."""
        return turned_lines(blocks) if self._vocabulary.backward else self._labeled(blocks)

    def _labeled(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """The blocks with the label before each line."""
        prefix, is_start = self._prefix.encode("utf-8", "surrogateescape"), True
        for block in blocks:
            ends = block.endswith(b"\n")
            inner = block[: len(block) - ends].replace(b"\n", b"\n" + prefix)
            yield prefix * is_start + inner + b"\n" * ends
            is_start = ends

    def _as_written(self, line: LineScore) -> LineScore:
        """The score of a line as it was written, given its label."""
        per_char = line.per_char_nats
        if self._vocabulary.backward:
            turned = None if per_char is None else per_char[::-1]
            return LineScore(line.chars, line.nats, turned, line.number, turned_line(line.text))
        if not self._prefix:
            return line
        assert per_char is not None
        chars, size = len(self._vocabulary.encode(self._prefix)), len(self._prefix.encode("utf-8", "surrogateescape"))
        nats = line.nats - float(per_char[:chars].sum(dtype=np.float64))
        kept = per_char[chars:] if self._wants_per_char else None
        return LineScore(line.chars - chars, nats, kept, line.number, line.text[size:])

    def _scored(self, block: bytes) -> Iterator[list[LineScore]]:
        symbols = self._symbols_of(block)
        if not (self._unknown.skip or self._unknown.nats is not None or symbols.known.all()):
            before = block[: self._start_of_line(block, symbols)]
            if before:
                yield self._lines_of(before, self._symbols_of(before))
            raise self._lacking(symbols)
        yield self._lines_of(block, symbols)

    def _lines_of(self, block: bytes, symbols: _Symbols) -> list[LineScore]:
        """Score a block's characters, and return the lines that end in it."""
        ids = np.concatenate([self._open.ids, symbols.ids])
        read = len(self._open.ids)
        found = self._nats(ids, read)
        if self._learner:
            self._learner.has_read(ids, read)
        ends = np.flatnonzero(symbols.codes == ord(NEWLINE)) + 1
        if self._unknown.nats is None:
            ends = np.cumsum(symbols.known, dtype=np.int64)[ends - 1]
        else:
            nats = np.full(len(symbols.codes), self._unknown.nats, np.float32)
            nats[symbols.known] = found
            found = nats
        *texts, rest = block.split(b"\n")
        lines = self._ended(texts, found, ends) if texts else []
        self._go_on(rest, ids, found[ends[-1] if len(ends) else 0 :])
        return lines

    def _nats(self, ids: Ids, read: int) -> npt.NDArray[np.float32]:
        """Nats of the ids [N] after the first `read` ones."""
        if len(ids) == read:
            return np.zeros(0, np.float32)
        cut = Cut.of_lines(ids, read, most_streams(self._device), self._newline[0])
        with torch.inference_mode():
            windows = scored_windows(self._network, ids, self._device, cut)
            nats = sum_windows(windows, cut, per_char=True).per_char_nats
        assert nats is not None
        return nats

    def _ended(self, texts: list[bytes], nats: npt.NDArray[np.float32], ends: npt.NDArray[np.int64]) -> list[LineScore]:
        """The lines that end at `ends`; the first is the open one."""
        chars, sums, before = np.diff(ends, prepend=0), line_sums(nats, ends), self._open
        chars[0] += before.chars
        sums[0] += before.nats
        parts: Iterable[npt.NDArray[np.float32] | None] = itertools.repeat(None)
        if self._per_char:
            first, *others = np.split(nats, ends)[:-1]
            parts = [np.concatenate([*before.per_char, first]), *others]
        before.text += texts[0]
        whole = [before.text if len(before.text) > len(texts[0]) else texts[0], *texts[1:]]
        self._open = self._new_line()
        numbers = range(self._lines + 1, self._lines + 1 + len(texts))
        self._lines += len(texts)
        rows = zip(chars.tolist(), sums.tolist(), parts, numbers, whole, strict=False)
        return [LineScore(*row) for row in rows]

    def _go_on(self, text: bytes, ids: Ids, nats: npt.NDArray[np.float32]) -> None:
        """Add what a block holds of a line that it does not end."""
        line = self._open
        line.text += text
        line.chars += len(nats)
        line.nats += float(nats.sum(dtype=np.float64))
        # The line begins behind the last newline that was read, unless it began too long ago.
        begins = np.flatnonzero(ids == self._newline[0])
        line.ids = ids[max(int(begins[-1]) if len(begins) else 0, len(ids) - 1 - WARMUP) :].copy()
        if self._per_char:
            line.per_char.append(nats)

    def _new_line(self) -> _Open:
        return _Open(bytearray(), self._newline, 0, 0.0, [])

    # Characters

    def _symbols_of(self, block: bytes) -> _Symbols:
        codes: npt.NDArray[np.unsignedinteger]
        if self._vocabulary.level == "byte" or block.isascii():
            codes = np.frombuffer(block, np.uint8)
        else:
            codes = code_points(block.decode("utf-8", "surrogateescape"))
        ids = self._id_of.take(codes)
        known = ids != UNKNOWN
        return _Symbols(codes, ids[known].astype(self._newline.dtype), known)

    def _start_of_line(self, block: bytes, symbols: _Symbols) -> int:
        """Where the line of the first unknown character starts in the block; 0 if it is the open one."""
        whole = np.count_nonzero(symbols.codes[: np.argmin(symbols.known)] == ord(NEWLINE))
        return sum(len(line) + 1 for line in block.split(b"\n")[:whole])

    def _lacking(self, symbols: _Symbols) -> VocabularyError:
        """The error that lists the unknown characters of the first line that has some."""
        first = int(np.argmin(symbols.known))
        end = first + int(np.argmax(np.append(symbols.codes[first:], ord(NEWLINE)) == ord(NEWLINE)))
        unknown = np.unique(symbols.codes[first:end][~symbols.known[first:end]])
        return VocabularyError(
            f"{self._where}, line {self._lines + 1}: found {_described(unknown)}, which the model has never seen; "
            f"allowed: its {counted(len(self._vocabulary), 'character')}; --skip-unknown leaves others out, "
            f"--unknown-as BITS counts them{self._vocabulary.advice(map(chr, unknown.tolist()))}"
        )


def _described(codes: npt.NDArray[np.unsignedinteger]) -> str:
    """Characters for people; "surrogateescape" has made U+DC80 … U+DCFF of bytes that are not UTF-8."""
    raw = [f"byte 0x{code - 0xDC00:02X} (not UTF-8)" for code in codes.tolist() if 0xDC80 <= code <= 0xDCFF]
    others = [chr(code) for code in codes.tolist() if not 0xDC80 <= code <= 0xDCFF]
    more = f" and {len(raw) - 8} more such bytes" if len(raw) > 8 else ""
    return ", ".join([*([describe_characters(others)] if others else []), *raw[:8]]) + more


def line_network(trained: TrainedModel) -> CharLM:
    """The network, which resets its state at every newline; a copy with the same weights if it did not.

    VocabularyError if it has never seen one.
    """
    if trained.network.begins is not None:
        return trained.network
    if trained.vocabulary.unknown(NEWLINE):
        raise VocabularyError(
            f"{trained.path}: the model has never seen a newline, where a line begins; allowed: a model of a text of "
            "several lines; leave out --lines"
        )
    network = copy.copy(trained.network)
    network.begins = int(trained.vocabulary.encode(NEWLINE)[0])
    return network
