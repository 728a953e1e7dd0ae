"""Whole samples: many of them; of a model of lines only new ones; and one with the surprise of its characters."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from charlm.data.lines import text_lines
from charlm.data.vocabulary import Vocabulary
from charlm.inference.options import SamplingOptions
from charlm.inference.sampling import prompt_ids, sample_text, sample_texts
from charlm.inference.texts import score_texts
from charlm.inference.trained import TrainedModel
from charlm.model import Network
from charlm.system.formatting import nats_to_bits

_TOGETHER = 64
"""Samples that are written side by side."""
_TRIES = 20
"""Lines that are written for each new one wanted, at most."""


def sample_many(
    trained: TrainedModel, prompt: str, options: SamplingOptions, seed: int, count: int
) -> Iterator[tuple[int, str]]:
    """Yield the seed of each sample, from `seed` on, and the sample without its prompt."""
    for first in range(seed, seed + count, _TOGETHER):
        seeds = range(first, min(first + _TOGETHER, seed + count))
        texts = sample_texts(trained.network, trained.vocabulary, prompt, options, seeds)
        yield from zip(seeds, texts, strict=True)


def sample_new_lines(
    trained: TrainedModel, prompt: str, options: SamplingOptions, seed: int, count: int, dropped: Counter[str]
) -> Iterator[tuple[int, str]]:
    """`sample_many` without repeats of a line and without those of the training text.

    Counts each "repeat" and each "copy" in `dropped`. There are fewer if 20 times as many lines do not hold them.
    DataError if the training text has changed or is gone.
    """
    known = _known_lines(trained)
    earlier = set[str]()
    for own_seed, text in sample_many(trained, prompt, options, seed, count * _TRIES):
        line = prompt + text
        if hash(line) in known:
            dropped["copy"] += 1
        elif line in earlier:
            dropped["repeat"] += 1
        else:
            yield own_seed, text
            earlier.add(line)
            if len(earlier) == count:
                return


def _known_lines(trained: TrainedModel) -> set[int]:
    """The hashes of the lines of the train split."""
    known = set[int]()
    for lines in text_lines(trained.training_splits("--new")["train"][1:], trained.vocabulary):
        known.update(map(hash, lines))
    return known


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
