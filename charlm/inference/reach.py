"""How far back a model looks: its loss by length of context, and the gradients that flow back."""

import math

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from charlm.data.vocabulary import Ids
from charlm.errors import DataError
from charlm.inference.reader import Reader, evaluating, most_streams, window_steps, windows_between
from charlm.model import CharLM, Network
from charlm.system.arrays import Floats
from charlm.system.formatting import bits_to_nats, counted

Curve = list[tuple[int, float]]
"""(symbols of context, nats per symbol), the shortest context first."""

_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Symbols of context."""
_PLACES = 256
"""How many symbols are scored with each length of context."""
_SAME_BITS = 0.02
"""A gain below this, in bits per symbol, does not count."""


@torch.inference_mode()
def context_curve(model: Network, ids: Ids, nats_N: npt.NDArray[np.floating]) -> Curve:
    """The mean loss over a text with only 1, 2, 3, 4, 6, 8, 12, … symbols of context.

    nats_N: the loss of every symbol after the first with the whole text before it. A length adds to their mean what
    the same symbols cost more with so little context, at 256 places; lengths within a quarter of it count too.

    Before a context, the model reads as much text at another place, so that no state is a cold start. The longest
    context is at most 256 characters and a quarter of the text. Empty for a text of fewer than 8 characters. The model
    must be in evaluation mode.
    """
    C = min(_LENGTHS[-1], len(ids) // 4)
    if C < 2:
        return []
    starts_B = np.unique(np.linspace(C, len(ids) - 1 - C, _PLACES).astype(np.int64))
    windows = [*windows_between(0, C, window_steps(len(starts_B), model))]
    others = Reader(model, ids, starts_B)
    for offset, steps in windows:
        others.features(offset, steps)
    # A context follows the text of the stretch half the places further on, about C characters away or more.
    state = tuple(layers.roll(len(starts_B) // 2, dims=1) for layers in others.state)
    reader = Reader(model, ids, starts_B, state)
    nats_CB = torch.cat([reader.nats(offset, steps) for offset, steps in windows]).double().cpu().numpy()
    excess_C = (nats_CB - nats_N[starts_B + np.arange(C)[:, None]]).mean(1)  # with 1 … C characters of context
    curve = []
    for length in _LENGTHS:
        if length <= C:
            near = excess_C[math.ceil(0.8 * length) - 1 : math.floor(1.25 * length)]
            curve.append((length, float(nats_N.mean() + near.mean())))
    return curve


def least_context(curve: Curve) -> int | None:
    """The least context, in characters, on which longer ones gain less than 0.02 bits; None without a curve."""
    enough = min((nats for _, nats in curve), default=0.0) + bits_to_nats(_SAME_BITS)
    return next((length for length, nats in curve if nats <= enough), None)


LONGEST = 100
"""Steps back for which norms are computed, unless the text is short."""


def gradient_norms(model: CharLM, ids: Ids, longest: int = LONGEST, positions: int = 256) -> Floats:
    """See `TrainedModel.gradient_norms`. positions: how many predictions the norms are averaged over.

    Each position reads 2 K + 1 characters from the initial state, the first K of them without a gradient.
    """
    K = min(longest, len(ids) // 2 - 1)
    if K < 1:
        raise DataError(f"gradients: found a text of {counted(len(ids), 'character')}; allowed: 4 or more")
    starts_P = np.unique(np.linspace(0, len(ids) - 2 * K - 2, positions).astype(np.int64))
    norms_LK = np.zeros((model.layers.num_layers, K))
    with evaluating(model), torch.enable_grad():
        for first, streams in windows_between(0, len(starts_P), most_streams(model)):
            reader = Reader(model, ids, starts_P[first : first + streams])
            with torch.no_grad():
                reader.features(0, K)
            read_TB = reader.ids(K, K + 2)
            outputs_TBH, layer_inputs = model.outputs_and_inputs(read_TB[:-1], reader.state)
            loss = F.cross_entropy(model.logits(outputs_TBH[-1]), read_TB[-1], reduction="sum")
            gradients = torch.autograd.grad(loss, layer_inputs, materialize_grads=True)
            for layer, dx_TBI in enumerate(gradients):
                norms_LK[layer] += dx_TBI[:-1].flip(0).double().norm(dim=-1).sum(1).cpu().numpy()
    return norms_LK / len(starts_P)
