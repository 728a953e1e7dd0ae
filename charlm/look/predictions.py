"""How a model reads a text: its predictions of every character."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from charlm.data.vocabulary import Ids
from charlm.inference.reader import START, Reader, windows_between
from charlm.model import Network, overflow
from charlm.system.formatting import nats_to_bits

Floats = npt.NDArray[np.floating[Any]]

TOP = 5
"""How many of the likeliest characters are kept."""
_STEPS = 256
"""Steps to read at once."""


Predictions = dict[str, npt.NDArray[Any]]
"""What a model predicts of the characters of a text, see `predict`."""


@torch.inference_mode()
def predict(model: Network, ids: Ids) -> Predictions:
    """The predictions of all characters of `ids` [N] by one stream, from the initial state on.

        bits     [N]     −log2 of the probability of the true character; nan for the first, which has no prediction
        entropy  [N]     expected bits under the model's own probabilities; nan for the first
        rank     [N]     1 if no other character was likelier; 0 for the first
        top, p   [N, K]  the likeliest characters, the likeliest first, and their probabilities

    The model is in evaluation mode on the CPU. Probabilities are computed in float64 from its logits; DivergenceError
    if those are not finite.
    """
    N, K = len(ids), min(TOP, model.vocabulary_size)
    bits_N, entropy_N = np.full((2, N), np.nan)
    rank_N, top_NK, p_NK = np.zeros(N, np.int64), np.zeros((N, K), np.int64), np.zeros((N, K))
    reader = Reader(model, ids, START)
    for start, steps in windows_between(0, N - 1, _STEPS):
        logits_T1V = model.logits(reader.features(start, steps))
        log_p_TV = logits_T1V[:, 0].double().log_softmax(-1)
        if log_p_TV.isnan().any():
            raise overflow()
        true_T1 = log_p_TV.gather(1, reader.ids(start + 1, steps))
        scored = slice(start + 1, start + 1 + steps)
        bits_N[scored] = nats_to_bits(1) * -true_T1[:, 0].numpy()
        p_TV = log_p_TV.exp()
        entropy_N[scored] = nats_to_bits(1) * torch.special.entr(p_TV).sum(-1).numpy()
        rank_N[scored] = 1 + (log_p_TV > true_T1).sum(-1).numpy()
        likeliest = p_TV.topk(K, dim=-1)
        top_NK[scored], p_NK[scored] = likeliest.indices.numpy(), likeliest.values.numpy()
    return {"bits": bits_N, "entropy": entropy_N, "rank": rank_N, "top": top_NK, "p": p_NK}
