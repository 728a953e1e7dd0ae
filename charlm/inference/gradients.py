"""What flows back: gradients of the loss after one step with respect to the layers' inputs at earlier steps."""

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from charlm.data.vocabulary import Ids
from charlm.errors import DataError
from charlm.inference.reader import Reader, evaluating, most_streams, windows_between
from charlm.model import CharLM
from charlm.system.formatting import counted

LONGEST = 100
"""Steps back for which norms are computed."""
_POSITIONS = 256


def gradient_norms(
    model: CharLM, ids: Ids, longest: int = LONGEST, positions: int = _POSITIONS
) -> npt.NDArray[np.float64]:
    """See `TrainedModel.gradient_norms`.

    Each position reads 2 K + 1 characters from the zero state, the first K of them without a gradient.
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
