"""What a model writes while it is trained, with the surprise of every character."""

import html
import math
import textwrap
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from charlm.data.vocabulary import Vocabulary
from charlm.inference.options import SamplingOptions
from charlm.inference.sampling import prompt_ids, sample_text
from charlm.inference.texts import score_texts
from charlm.model import Network
from charlm.system.formatting import CONTROLS, columns_of, nats_to_bits

COLUMNS = 80
"""Where `shaded` wraps lines."""
_SURPRISING = 4.0
"""Bits from which on `shaded` prints a character in bold: a probability below 1/16."""
_BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Sample:
    """A text that a model wrote, and how surprised it was by each character."""

    text: str
    """Bytes that are not UTF-8 are U+FFFD each."""
    bits: list[float | None]
    """−log2 of the probability of each character of the text at temperature 1, to hundredths; None if not finite."""

    def as_json(self, step: int) -> dict[str, Any]:
        """One line of samples.jsonl."""
        return {"step": step, "text": self.text, "bits": self.bits}


def draw_sample(
    model: Network,
    vocabulary: Vocabulary,
    *,
    options: SamplingOptions,
    seed: int,
    device: torch.device,
    stops: Callable[[], object] = lambda: False,
) -> Sample | None:
    """Let a model in evaluation mode write from the start of a line, and then read what it wrote.

    stops: asked after every character; if true, there is no sample.
    """
    text = ""
    for [piece] in sample_text(model, vocabulary, "", options, [seed]):
        text += piece
        if stops():
            return None
    before = prompt_ids(model, vocabulary, "")
    ids = np.array([*before, *vocabulary.encode(text).tolist()], np.int64)
    [nats] = score_texts(model, [ids], device)
    bits = nats_to_bits(1) * nats[len(before) - 1 :].astype(np.float64)
    if vocabulary.level == "byte":
        bits = _of_characters(bits, text)
    shown = "".join("\ufffd" if "\udc80" <= character <= "\udcff" else character for character in text)
    return Sample(shown, [round(each, 2) if math.isfinite(each) else None for each in bits.tolist()])


def _of_characters(bits: np.ndarray, text: str) -> np.ndarray:
    """The bits of characters from those of their bytes."""
    lengths = [len(character.encode("utf-8", "surrogateescape")) for character in text]
    return np.add.reduceat(bits, np.cumsum([0, *lengths[:-1]])) if lengths else bits


# For TensorBoard


def shaded(sample: Sample) -> str:
    """The sample as HTML for TensorBoard's text tab: below every character a bar of its bits, up to 8.

    The tab sanitizes HTML and removes colors, so a monospaced font carries the shading. Characters of 4 bits or more
    are bold. A row with letters that are written from right to left has no bars, which would stand below other letters.
    """
    rows, start = ["Below each character: its surprise, from ▁ 1 bit to █ 8 bits or more. Bold: 4 bits or more.", ""], 0
    for line in sample.text.split("\n"):
        for characters in textwrap.wrap(line, COLUMNS, **_AS_WRITTEN) or [""]:
            bits = sample.bits[start : start + len(characters)]
            rows.append("".join(map(_marked, characters, bits)))
            if not any(unicodedata.bidirectional(character) in ("R", "AL") for character in characters):
                rows.append("".join(map(_bar, characters, bits)).rstrip())
            start += len(characters)
        start += 1
    text = "\n".join(rows)
    return f"<pre>{text}</pre>"


_AS_WRITTEN: Any = dict.fromkeys(
    ("expand_tabs", "replace_whitespace", "drop_whitespace", "fix_sentence_endings", "break_on_hyphens"), False
)


def _marked(character: str, bits: float | None) -> str:
    shown = "→" if character == "\t" else html.escape(CONTROLS.sub("\ufffd", character))
    return f"<strong>{shown}</strong>" if bits is not None and bits >= _SURPRISING else shown


def _bar(character: str, bits: float | None) -> str:
    """As wide as the character."""
    return columns_of(character) * _BARS[0 if bits is None else min(int(bits), len(_BARS) - 1)]
