"""The labels of lines, from a model that was trained on `label<SEPARATOR>line`.

    p(label | line) = p(label, line) / Σ p(label′, line)
    p(label, line) = p(label) p(line | label) = the probability of `label<SEPARATOR>line` and its newline

The model reads the labels once; then it reads every line from the state after each label.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from charlm.data.vocabulary import Ids, Vocabulary
from charlm.inference.texts import score_texts
from charlm.layers import RecurrentState
from charlm.model import Network
from charlm.system.device import to_device
from charlm.system.formatting import nats_to_bits

_TOGETHER = 4096
"""Lines times labels that are scored at once; more labels than that are scored with one line."""

Nats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Classification:
    """What a model says about the labels of N lines."""

    labels: tuple[str, ...]
    """The K labels that the model knows."""
    nats: Nats
    """−ln p(label, line), [N, K]."""

    def __len__(self) -> int:
        return len(self.nats)

    @property
    def best(self) -> list[str]:
        """The likeliest label of each line."""
        return [self.labels[index] for index in self.nats.argmin(1)]

    @property
    def margin_bits(self) -> Nats:
        """How many bits likelier the likeliest label is than the second, [N]; infinite if there is no second."""
        if len(self.labels) == 1:
            return np.full(len(self), np.inf)
        likeliest = np.partition(self.nats, 1, axis=1)
        return nats_to_bits(1) * (likeliest[:, 1] - likeliest[:, 0])

    @property
    def probabilities(self) -> Nats:
        """p(label | line), [N, K]."""
        relative = np.exp(self.nats.min(1, keepdims=True) - self.nats)
        return relative / relative.sum(1, keepdims=True)

    def top(self, k: int) -> list[list[tuple[str, float]]]:
        """The k likeliest labels of each line with their p(label | line), the likeliest first."""
        order = self.nats.argsort(1, kind="stable")[:, :k]
        top_p = np.take_along_axis(self.probabilities, order, 1)
        return [
            [(self.labels[index], p) for index, p in zip(row, values, strict=True)]
            for row, values in zip(order.tolist(), top_p.tolist(), strict=True)
        ]


@torch.inference_mode()
def label_nats(
    model: Network, vocabulary: Vocabulary, prefixes: Sequence[str], lines: Sequence[Ids], device: torch.device
) -> Nats:
    """−ln p(label, line), [N, K], for each line, which must end with its newline.

    prefixes: the labels with their separators. The model must be in evaluation mode.
    """
    reset_id, K = model.reset_id, len(prefixes)
    assert reset_id is not None
    labels = [np.r_[reset_id, vocabulary.encode(prefix)].astype(np.int64) for prefix in prefixes]
    # Newlines before a shorter label change nothing: each sets the state to zero.
    ids_KT = np.full((K, max(map(len, labels))), reset_id, np.int64)
    for row_T, ids in zip(ids_KT, labels, strict=True):
        row_T[-len(ids) :] = ids
    outputs_TKH, state = model.features(to_device(np.ascontiguousarray(ids_KT.T), device))
    first_KV = model.logits(outputs_TKH[-1]).double().log_softmax(-1).cpu().numpy()  # of a line's first character
    label_nats_K = np.array([nats.sum(dtype=np.float64) for nats in score_texts(model, labels, device)])

    def after_label(texts_B: npt.NDArray[np.int64]) -> RecurrentState:
        index_B = to_device(texts_B % K, device)
        return tuple(layers[:, index_B] for layers in state)

    nats_NK = np.empty((len(lines), K))
    together = max(1, _TOGETHER // K)
    for begin in range(0, len(lines), together):
        some = lines[begin : begin + together]
        scores = score_texts(model, [line for line in some for _ in range(K)], device, after_label)
        rest_NK = np.array([nats.sum(dtype=np.float64) for nats in scores]).reshape(-1, K)
        nats_NK[begin : begin + together] = label_nats_K - first_KV[:, [line[0] for line in some]].T + rest_NK
    return nats_NK
