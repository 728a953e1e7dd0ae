"""Many texts at once: each is read by itself from the zero state, side by side with others of about its length."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from charlm.data.vocabulary import Ids
from charlm.inference.evaluation import STEPS, most_streams, window_steps
from charlm.layers import cross_entropy
from charlm.model import Network
from charlm.system.device import to_device

_LONG = 2**13
"""Characters of a window of long texts."""

Pool = Literal["last", "mean"]
Window = tuple[npt.NDArray[np.int64], int, npt.NDArray[np.int64], Tensor]
"""A stretch of B texts: which texts; where it starts in them; how many of its T characters belong to each text,
descending, 1 to T; outputs of the last layer, [T, B, H], where those past the end of a text mean nothing."""


def one_text(text: Any, name: str) -> str:
    """The text itself; TypeError for anything else, which is named by `name`."""
    if not isinstance(text, str):
        raise TypeError(f"{name}: found {type(text).__name__}; allowed: str")
    return text


def each_text(texts: Any, name: str = "texts") -> list[str]:
    """The texts of a list, an array, a column or a generator; TypeError unless all are texts."""
    if isinstance(texts, str):
        raise TypeError(f"{name}: found a string; allowed: a list of strings; put it into a list")
    # Tables are refused because they would give the names of their columns.
    if not isinstance(texts, Iterable) or isinstance(texts, bytes | Mapping) or getattr(texts, "ndim", 1) != 1:
        raise TypeError(f"{name}: found {type(texts).__name__}; allowed: a list of strings")
    return [one_text(text, f"{name}[{position}]") for position, text in enumerate(texts)]


@torch.inference_mode()
def score_texts(model: Network, texts: Sequence[Ids], device: torch.device) -> list[npt.NDArray[np.float32]]:
    """Nats of every character after the first of each text [N], given those before it in the text: [N − 1] each.

    A text of no character scores none, as does a text of one. The model must be in evaluation mode.
    """
    nats = [np.zeros(max(len(ids) - 1, 0), np.float32) for ids in texts]
    for texts_B, offset, lengths_B, outputs_TBH in _windows(model, [ids[:-1] for ids in texts], device):
        targets_TB = _side_by_side(texts, texts_B, offset + 1, len(outputs_TBH))
        nats_TB = cross_entropy(model.logits(outputs_TBH), to_device(targets_TB, device))
        nats_BT = nats_TB.t().float().cpu().numpy()
        for text, length, nats_T in zip(texts_B, lengths_B, nats_BT, strict=True):
            nats[text][offset : offset + length] = nats_T[:length]
    return nats


@torch.inference_mode()
def text_features(model: Network, texts: Sequence[Ids], device: torch.device, pool: Pool) -> npt.NDArray[np.float32]:
    """Outputs of the last layer, [texts, H]: after the last character, or their mean over the characters.

    A text of no character has nan. The model must be in evaluation mode.
    """
    pooled_NH = np.full((len(texts), model.feature_size), np.nan, np.float64)
    for texts_B, offset, lengths, outputs_TBH in _windows(model, texts, device):
        lengths_B = to_device(lengths, device)
        if pool == "last":
            streams_B = torch.arange(len(lengths_B), device=device)
            pooled_BH = outputs_TBH[lengths_B - 1, streams_B].double()
        else:
            steps_T1 = torch.arange(len(outputs_TBH), device=device).unsqueeze(1)
            inside_TB1 = (steps_T1 < lengths_B).unsqueeze(-1)
            pooled_BH = torch.where(inside_TB1, outputs_TBH, 0.0).sum(0, dtype=torch.float64)
        # A window that goes on replaces the last output of the one before it, or adds to its sum.
        before_BH = pooled_NH[texts_B] if pool == "mean" and offset else 0.0
        pooled_NH[texts_B] = before_BH + pooled_BH.cpu().numpy()
    if pool == "mean":
        pooled_NH /= np.array([max(len(ids), 1) for ids in texts], np.float64).reshape(-1, 1)
    return pooled_NH.astype(np.float32)


def _windows(model: Network, texts: Sequence[Ids], device: torch.device) -> Iterator[Window]:
    """Read the texts, the longest first, in windows with the state carried from one to the next.

    The texts of a batch have similar lengths, and those that have ended leave it, so little is read beyond their ends.
    """
    lengths_N = np.array([len(ids) for ids in texts], np.int64)
    order = np.argsort(-lengths_N, kind="stable")
    order = order[lengths_N[order] > 0]
    streams = most_streams(device)
    for first in range(0, len(order), streams):
        texts_B = order[first : first + streams]
        state, offset = None, 0
        while B := int((lengths_N[texts_B] > offset).sum()):
            if state is not None:  # the texts that have ended are the last ones
                texts_B = texts_B[:B]
                state = tuple(layers[:, :B].contiguous() for layers in state)
            longest = int(lengths_N[texts_B[0]]) - offset
            # Each window costs time, so a long text has long ones.
            longest_window = max(STEPS, min(longest // 16, _LONG // B))
            T = min(longest, window_steps(B, model, device, longest_window))
            ids_TB = to_device(_side_by_side(texts, texts_B, offset, T), device)
            outputs_TBH, state = model.features(ids_TB, state)
            yield texts_B, offset, (lengths_N[texts_B] - offset).clip(max=T), outputs_TBH
            offset += T


def _side_by_side(texts: Sequence[Ids], texts_B: npt.NDArray[np.int64], offset: int, T: int) -> npt.NDArray[np.int64]:
    """The ids [T, B] of these texts from `offset` on; 0 past the end of a text."""
    ids_TB = np.zeros((T, len(texts_B)), np.int64)
    for b, text in enumerate(texts_B):
        window = texts[text][offset : offset + T]
        ids_TB[: len(window), b] = window
    return ids_TB
