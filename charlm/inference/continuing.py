"""Continuations of a text while somebody writes it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from charlm.data.reading import NEWLINE
from charlm.inference.options import SamplingOptions
from charlm.inference.sampling import continued_text, prompt_ids, read_ids
from charlm.inference.texts import one_text
from charlm.inference.trained import TrainedModel
from charlm.layers import RecurrentState
from charlm.system.formatting import CONTROLS

OFFERED = 5
"""Continuations that are offered."""
_DRAWN = 12
"""Continuations that are drawn, because some are equal."""


class Continuer:
    """Draws continuations of one text after another.

    It stores the state after the last text: a text that begins with the last one costs only the characters that are
    new. For a model of lines every line begins with `prefix`, see `TrainedModel.label_prefix`, which the text does not
    contain. Not for several threads at once.
    """

    def __init__(self, trained: TrainedModel, options: SamplingOptions, prefix: str = "") -> None:
        self._network, self._vocabulary, self._options, self._prefix = (
            trained.network, trained.vocabulary, options, prefix,
        )  # fmt: skip
        self._ids: list[int] = []
        """What has been read."""
        self._after: tuple[Tensor, RecurrentState] | None = None
        """The last output and the state after it."""
        self.steps = 0
        """Characters read so far."""

    def __call__(self, text: str) -> list[str]:
        """Up to five different continuations of the text, without the characters that the model does not know.

        Each ends before the second line end; one that a model of lines would end at once is left out.
        """
        text = self._vocabulary.normalized(one_text(text, "text"))
        unknown = set(self._vocabulary.unknown(text))
        output, state = self._read("".join(c for c in text if c not in unknown))
        seeds = range(1, _DRAWN + 1)  # always the same: what is offered depends on the text alone
        pieces = continued_text(self._network, self._vocabulary, output, state, self._options, seeds)
        return _distinct(["".join(text) for text in zip(*pieces, strict=True)])

    def _read(self, text: str) -> tuple[Tensor, RecurrentState]:
        if self._network.is_line_model:  # the lines before do not matter
            text = self._prefix + text.rpartition(NEWLINE)[2]
        ids = prompt_ids(self._network, self._vocabulary, text)
        read = len(self._ids)
        if self._after is None or ids[:read] != self._ids:
            read, self._after = 0, None
        if self._after is None or read < len(ids):
            self._after = read_ids(self._network, ids[read:], self._after and self._after[1])
            self._ids = ids
            self.steps += len(ids) - read
        return self._after


def _distinct(drawn: Sequence[str]) -> list[str]:
    """The first different ones: their beginnings up to the second line end, and without control characters."""
    distinct = []
    for text in drawn:
        first = re.match(r"\n?[^\n]*", text)
        assert first is not None
        shown = CONTROLS.split(first[0])[0].rstrip(" ")
        if shown and shown not in distinct:
            distinct.append(shown)
    return distinct[:OFFERED]


@dataclass
class Offer:
    """The continuations that stand behind a text, one of which is shown.

    While the text grows by what is shown, the rest of it stays, so that nothing flickers until new ones are drawn.
    """

    text: str = ""
    options: list[str] = field(default_factory=list)
    index: int = 0

    @property
    def shown(self) -> str:
        """The continuation that is shown; "" if there is none."""
        return self.options[self.index] if self.options else ""

    @property
    def word(self) -> str:
        """Its first word, with the blanks before it."""
        word = re.match(r"\s*\S+", self.shown)
        return word[0] if word else self.shown

    def typed(self, text: str) -> None:
        """The text is another one now: go on offering what continues it, the shown one first."""
        shown_first = [self.shown, *self.options] if self.options else []
        self._offer(_after(self.text, shown_first, text))
        self.text = text

    def drawn(self, text: str, options: Sequence[str]) -> None:
        """Continuations of `text` were drawn, which may have grown meanwhile; the shown one stays."""
        self._offer([self.shown, *_after(text, options, self.text)])

    def choose(self, step: int) -> None:
        """Show the next continuation, or the one before for −1."""
        self.index = (self.index + step) % max(len(self.options), 1)

    def _offer(self, options: Sequence[str]) -> None:
        self.index = 0
        self.options = [each for each in dict.fromkeys(options) if each][:OFFERED]


def _after(old: str, options: Sequence[str], new: str) -> list[str]:
    """What is left of continuations of the old text if it has grown to the new one; nothing if it has not."""
    added = new.removeprefix(old)
    return [each.removeprefix(added) for each in options if each.startswith(added)] if new.startswith(old) else []
