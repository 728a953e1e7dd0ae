"""Many texts, or lines as they come: each is read by itself from the initial state, beside others of similar length."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from charlm.data.records import as_records, end_id
from charlm.data.vocabulary import Ids, Vocabulary
from charlm.inference.reader import STEPS, Reader, most_streams, window_steps
from charlm.model import Network
from charlm.system.arrays import Array, Bools, Floats, Floats32, Ints
from charlm.system.device import to_device
from charlm.system.formatting import nats_to_bits

_MISSING = ("None", "nan", "<NA>", "NaT")
"""How Python, numpy and pandas print a missing value."""
_LONG = 2**13
"""Characters of a window of long texts."""

Pool = Literal["last", "mean"]


def one_text(text: Any, name: str) -> str:
    """The text itself; TypeError for anything else, which is named by `name`."""
    if not isinstance(text, str):
        found = f"{text}, a missing value" if str(text) in _MISSING else type(text).__name__
        raise TypeError(f"{name}: found {found}; allowed: str")
    return text


def each_text(texts: Any, name: str) -> list[str]:
    """The texts of a list, an array, a column or a generator; TypeError unless all are texts."""
    if isinstance(texts, str):
        raise TypeError(f"{name}: found a string; allowed: a list of strings; put it into a list")
    # Tables are refused because they would give the names of their columns.
    if not isinstance(texts, Iterable) or isinstance(texts, bytes | Mapping) or getattr(texts, "ndim", 1) != 1:
        raise TypeError(f"{name}: found {type(texts).__name__}; allowed: a list of strings")
    texts = [*texts]
    missing = [place for place, text in enumerate(texts) if not isinstance(text, str) and str(text) in _MISSING]
    if missing:
        raise TypeError(
            f"{name}[{missing[0]}]: found {texts[missing[0]]}, a missing value ({len(missing):,} of {len(texts):,}); "
            "allowed: str; drop or fill missing values first"
        )
    return [one_text(text, f"{name}[{place}]") for place, text in enumerate(texts)]


def char_bits(
    model: Network, vocabulary: Vocabulary, texts: Sequence[str], known_ids: Sequence[Ids], unknown_bits: float
) -> list[Floats]:
    """The bits of the characters of each text, see `TrainedModel.char_surprise`. known_ids: without unknown ones."""
    found = []
    records = [as_records(ids, model.reset_id) for ids in known_ids]
    for text, nats in zip(texts, score_texts(model, records), strict=True):
        bits, scored = nats_to_bits(1) * nats.astype(np.float64), f"{text}\n"  # the end of a record is one symbol
        _, is_known = vocabulary.ids_of(text)
        if model.reads_records:
            bits = with_unknown(bits, np.append(is_known, True), unknown_bits)
        else:
            of_known = np.append(0.0, bits)[: np.count_nonzero(is_known)]  # the first symbol is given
            given = int(vocabulary.sizes(text[:1]).sum())  # the first character
            bits, scored = with_unknown(of_known, is_known, unknown_bits)[given:], text[1:]
        found.append(vocabulary.sums_of_characters(bits, scored))
    return found


def with_unknown(values: Array, is_known: Bools, unknown: float) -> Array:
    """The values of all symbols, [N], from those of the known ones."""
    all_values = np.full(len(is_known), unknown, values.dtype)
    all_values[is_known] = values
    return all_values


@torch.inference_mode()
def score_texts(model: Network, texts: Sequence[Ids]) -> list[Floats32]:
    """Nats of every character after the first of each text [N], given those before it: [N − 1] each.

    Texts of no or one character score none. The model must be in evaluation mode.
    """
    scored_N = np.array([max(len(ids) - 1, 0) for ids in texts], np.int64)
    nats = [np.zeros(length, np.float32) for length in scored_N]
    for reader, texts_B, offset, T in _windows(model, texts, scored_N):
        nats_BT = reader.nats(offset, T, len(texts_B)).t().float().cpu().numpy()
        for text, nats_T in zip(texts_B, nats_BT, strict=True):
            nats[text][offset : offset + T] = nats_T[: scored_N[text] - offset]
    return nats


def prefix_length(pattern: re.Pattern[str], text: str) -> int:
    """Characters at the beginning of a text that a pattern matches; 0 if it does not match there."""
    match = pattern.match(text)
    return match.end() if match else 0


def surprise_of(values: Array, worst: int | None = None) -> float:
    """The mean of values of a text's characters, or the largest mean of `worst` neighbors; nan for no characters."""
    if worst is None or worst >= len(values):
        return float(values.mean(dtype=np.float64)) if len(values) else math.nan
    sums = np.cumsum(np.append(0.0, values))
    return float((sums[worst:] - sums[:-worst]).max() / worst)


def score_records(
    model: Network,
    vocabulary: Vocabulary,
    blocks: Iterable[list[str]],
    name: str,
    unknown_nats: float | None = None,
    after: re.Pattern[str] = re.compile(""),
) -> Iterator[list[tuple[str, Floats32, str]]]:
    """Yield (line, nats, unknown) for the lines of each block, in order.

    line: in Unicode forms that the model knows. nats: the cross-entropy of each character and of the end; a model of
    bytes adds up a character's bytes. unknown: the unknown characters, each once. Lines have no ends, see
    `whole_records`. Before each line the model reads the end of one from the initial state, even if it was trained on
    running text: there a newline.

    unknown_nats: the score of an unknown character, which the model skips; None: VocabularyError, which names the text
    `name`. after: the model reads what this pattern matches at the beginning of a line, but nats and unknown are of the
    characters after it. VocabularyError also for a model that knows no end.
    """
    number, after = 0, vocabulary.canonical_pattern(after)
    end = end_id(vocabulary) if model.reset_id is None else model.reset_id
    for block in blocks:
        lines, ids = [], []
        for line in map(vocabulary.canonical, block):
            number += 1
            line_ids, is_known = vocabulary.ids_of(line)
            begin = prefix_length(after, line)
            unknown = "" if is_known.all() else vocabulary.unknown(line[begin:])
            if unknown and unknown_nats is None:
                raise vocabulary.unknown_error(unknown, f"{name}, line {number}", "; --unknown-as BITS counts others")
            lines.append((line, is_known, begin, unknown))
            ids.append(as_records(line_ids[is_known].astype(vocabulary.dtype), end))
        scored = []
        for (line, is_known, begin, unknown), nats in zip(lines, score_texts(model, ids), strict=True):
            if not is_known.all():
                nats = with_unknown(nats, np.append(is_known, True), unknown_nats or 0.0)
            nats = vocabulary.sums_of_characters(nats, f"{line}\n")  # the end is one symbol
            scored.append((line, nats[begin:], unknown))
        yield scored


@torch.inference_mode()
def text_features(model: Network, texts: Sequence[Ids], pool: Pool) -> Floats32:
    """Outputs of the last layer, [texts, H]: after the last character, or their mean over the characters.

    nan for an empty text. The model must be in evaluation mode.
    """
    lengths_N = np.array([len(ids) for ids in texts], np.int64)
    pooled_NH = np.full((len(texts), model.feature_size), np.nan, np.float64)
    for reader, texts_B, offset, T in _windows(model, texts, lengths_N):
        B = len(texts_B)
        outputs_TBH = reader.features(offset, T, B)
        lengths_B = to_device((lengths_N[texts_B] - offset).clip(max=T), model.device)
        if pool == "last":
            streams_B = torch.arange(B, device=model.device)
            pooled_BH = outputs_TBH[lengths_B - 1, streams_B].double()
        else:
            steps_T1 = torch.arange(T, device=model.device).unsqueeze(1)
            inside_TB1 = (steps_T1 < lengths_B).unsqueeze(-1)
            pooled_BH = torch.where(inside_TB1, outputs_TBH, 0.0).sum(0, dtype=torch.float64)
        # A window that goes on replaces the last output of the one before it, or adds to its sum.
        before_BH = pooled_NH[texts_B] if pool == "mean" and offset else 0.0
        pooled_NH[texts_B] = before_BH + pooled_BH.cpu().numpy()
    if pool == "mean":
        pooled_NH /= lengths_N.clip(min=1).astype(np.float64).reshape(-1, 1)
    return pooled_NH.astype(np.float32)


def _windows(model: Network, texts: Sequence[Ids], lengths_N: Ints) -> Iterator[tuple[Reader, Ints, int, int]]:
    """(reader, texts [B], offset, steps) of each window: `steps` characters of each text, from `offset` on.

    The longest texts come first, so those read together have similar lengths; ended texts, the last ones, leave.
    """
    ids = np.concatenate([*texts, np.zeros(0, np.uint8)])
    starts_N = np.cumsum([0, *map(len, texts)])
    order_N = np.argsort(-lengths_N, kind="stable")
    order_N = order_N[lengths_N[order_N] > 0]
    streams = most_streams(model)
    for first in range(0, len(order_N), streams):
        texts_B, offset = order_N[first : first + streams], 0
        reader, lengths_B = Reader(model, ids, starts_N[texts_B]), lengths_N[texts_B]
        while B := int((lengths_B > offset).sum()):
            longest = int(lengths_B[0]) - offset
            # Each window costs time, so a long text has long ones.
            longest_window = max(STEPS, min(longest // 16, _LONG // B))
            T = min(longest, window_steps(B, model, longest_window))
            yield reader, texts_B[:B], offset, T
            offset += T
