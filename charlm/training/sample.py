"""What a model writes while it is trained, with the surprise of every character."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from charlm.data.vocabulary import Vocabulary
from charlm.inference.options import SamplingOptions
from charlm.inference.sampling import prompt_ids, sample_text
from charlm.inference.texts import score_texts
from charlm.model import Network
from charlm.system.formatting import nats_to_bits


def draw_sample(
    model: Network,
    vocabulary: Vocabulary,
    *,
    options: SamplingOptions,
    seed: int,
    stops: Callable[[], object] = lambda: False,
) -> dict[str, Any] | None:
    """Let a model in evaluation mode write from the start of a line, and then read what it wrote.

    Returns "text", in which bytes that are not UTF-8 are U+FFFD each, and "bits": −log2 of the probability of each of
    its characters at temperature 1, to hundredths; None where that is not finite. stops: asked after every character;
    if true, there is no sample.
    """
    text = ""
    for [piece] in sample_text(model, vocabulary, "", options, [seed]):
        text += piece
        if stops():
            return None
    before = prompt_ids(model, vocabulary, "")
    ids = np.array([*before, *vocabulary.encode(text).tolist()], np.int64)
    [nats] = score_texts(model, [ids])
    bits = nats_to_bits(1) * nats[len(before) - 1 :].astype(np.float64)
    if vocabulary.level == "byte":
        bits = _of_characters(bits, text)
    shown = "".join("\ufffd" if "\udc80" <= character <= "\udcff" else character for character in text)
    rounded = [round(each, 2) if math.isfinite(each) else None for each in bits.tolist()]
    return {"text": shown, "bits": rounded}


def _of_characters(bits: np.ndarray, text: str) -> np.ndarray:
    """The bits of characters from those of their bytes."""
    lengths = [len(character.encode("utf-8", "surrogateescape")) for character in text]
    return np.add.reduceat(bits, np.cumsum([0, *lengths[:-1]])) if lengths else bits
