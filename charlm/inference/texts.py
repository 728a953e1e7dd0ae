"""Many texts at once: each is read by itself from the zero state, side by side with others of about its length.

So are lines with their labels, for a model of lines such as label<TAB>record.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from charlm.data.lines import as_records
from charlm.data.vocabulary import Ids
from charlm.inference.reader import STEPS, Reader, most_streams, window_steps
from charlm.model import Network
from charlm.system.device import to_device

_LONG = 2**13
"""Characters of a window of long texts."""

Pool = Literal["last", "mean"]


def one_text(text: Any, name: str) -> str:
    """The text itself; TypeError for anything else, which is named by `name`."""
    if not isinstance(text, str):
        raise TypeError(f"{name}: found {type(text).__name__}; allowed: str")
    return text


def each_text(texts: Any, name: str) -> list[str]:
    """The texts of a list, an array, a column or a generator; TypeError unless all are texts."""
    if isinstance(texts, str):
        raise TypeError(f"{name}: found a string; allowed: a list of strings; put it into a list")
    # Tables are refused because they would give the names of their columns.
    if not isinstance(texts, Iterable) or isinstance(texts, bytes | Mapping) or getattr(texts, "ndim", 1) != 1:
        raise TypeError(f"{name}: found {type(texts).__name__}; allowed: a list of strings")
    return [one_text(text, f"{name}[{position}]") for position, text in enumerate(texts)]


@torch.inference_mode()
def score_texts(model: Network, texts: Sequence[Ids]) -> list[npt.NDArray[np.float32]]:
    """Nats of every character after the first of each text [N], given those before it in the text: [N − 1] each.

    A text of no character scores none, as does a text of one. The model must be in evaluation mode.
    """
    ids, starts_N, lengths_N = _end_to_end(texts)
    scored_N = (lengths_N - 1).clip(min=0)
    nats = [np.zeros(length, np.float32) for length in scored_N]
    for texts_B in _batches(scored_N, model):
        reader = Reader(model, ids, starts_N[texts_B])
        for offset, T, B in _windows(scored_N[texts_B], model):
            texts_B = texts_B[:B]
            nats_BT = reader.nats(offset, T, B).t().float().cpu().numpy()
            for text, nats_T in zip(texts_B, nats_BT, strict=True):
                nats[text][offset : offset + T] = nats_T[: scored_N[text] - offset]
    return nats


@torch.inference_mode()
def text_features(model: Network, texts: Sequence[Ids], pool: Pool) -> npt.NDArray[np.float32]:
    """Outputs of the last layer, [texts, H]: after the last character, or their mean over the characters.

    A text of no character has nan. The model must be in evaluation mode.
    """
    ids, starts_N, lengths_N = _end_to_end(texts)
    pooled_NH = np.full((len(texts), model.feature_size), np.nan, np.float64)
    for texts_B in _batches(lengths_N, model):
        reader = Reader(model, ids, starts_N[texts_B])
        for offset, T, B in _windows(lengths_N[texts_B], model):
            texts_B = texts_B[:B]
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


def label_probabilities(
    model: Network, lines: Sequence[Ids], labels: Sequence[Ids], newline: int, *, equal_priors: bool
) -> npt.NDArray[np.float64]:
    """p(label | line) for each line and label with its separator, [N, K]; see `TrainedModel.classify`."""
    starts = [len(label) if equal_priors else 0 for label in labels] * len(lines)
    records = [as_records(np.concatenate([label, line]), newline) for line in lines for label in labels]
    scored = score_texts(model, records)
    sums = [nats[start:].sum(dtype=np.float64) for nats, start in zip(scored, starts, strict=True)]
    nats_NK = np.array(sums).reshape(len(lines), len(labels))
    relative_NK = np.exp(nats_NK.min(1, keepdims=True) - nats_NK)
    return relative_NK / relative_NK.sum(1, keepdims=True)


def _end_to_end(texts: Sequence[Ids]) -> tuple[Ids, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The ids of all texts, one after the other; where each starts, and its length."""
    lengths_N = np.array([len(ids) for ids in texts], np.int64)
    ends_N = lengths_N.cumsum()
    return np.concatenate(texts or [np.zeros(0, np.uint8)]), ends_N - lengths_N, lengths_N


def _batches(lengths_N: npt.NDArray[np.int64], model: Network) -> Iterator[npt.NDArray[np.int64]]:
    """The numbers of the texts that are read side by side, the longest first: those of a batch have similar lengths."""
    order_N = np.argsort(-lengths_N, kind="stable")
    order_N = order_N[lengths_N[order_N] > 0]
    streams = most_streams(model)
    for first in range(0, len(order_N), streams):
        yield order_N[first : first + streams]


def _windows(lengths_B: npt.NDArray[np.int64], model: Network) -> Iterator[tuple[int, int, int]]:
    """(offset, steps, streams) of each window of a batch; texts that have ended, the last ones, leave it."""
    offset = 0
    while B := int((lengths_B > offset).sum()):
        longest = int(lengths_B[0]) - offset
        # Each window costs time, so a long text has long ones.
        longest_window = max(STEPS, min(longest // 16, _LONG // B))
        T = min(longest, window_steps(B, model, longest_window))
        yield offset, T, B
        offset += T
