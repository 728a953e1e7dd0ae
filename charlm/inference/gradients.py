"""What flows back: gradients of the loss of one character with respect to the states before it."""

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from charlm.data.vocabulary import Ids
from charlm.errors import DataError
from charlm.inference.reader import Reader, evaluating
from charlm.model import CharLM
from charlm.system.formatting import counted

LONGEST = 100
"""Steps back for which norms are computed."""
_POSITIONS = 256


def gradient_norms(
    model: CharLM, ids: Ids, longest: int = LONGEST, positions: int = _POSITIONS
) -> npt.NDArray[np.float64]:
    """See `TrainedModel.gradient_norms`; h: all tensors of a state that are not internal, as an LSTM's h and c.

    Each position reads 2 K characters from the zero state, the first K of them without a gradient. By autograd through
    the reference loop.
    """
    longest = min(longest, (len(ids) - 1) // 2)
    if longest < 1:
        raise DataError(f"gradients: found a text of {counted(len(ids), 'character')}; allowed: 3 or more")
    ends_P = np.unique(np.linspace(2 * longest, len(ids) - 1, positions).astype(np.int64))
    reader = Reader(model, ids, ends_P - 2 * longest)
    read_TP = reader.ids(longest, longest + 1)
    carried, outputs_1PH = [], torch.empty(0)
    with evaluating(model), torch.enable_grad():
        with torch.no_grad():
            reader.features(0, longest)
        state = tuple(tensor.requires_grad_() for tensor in reader.state)
        for x_P in read_TP[:-1]:
            named = zip(model.layers.state_names, state, strict=True)
            carried += [tensor for name, tensor in named if name not in model.layers.cell.internal]
            outputs_1PH, state, _ = model.outputs_and_activations(x_P[None], state)
            # Copies are for the next step alone: a gradient of c does not pass through h, which was computed from it.
            state = tuple(tensor.clone() for tensor in state)
        loss = F.cross_entropy(model.logits(outputs_1PH[0]), read_TP[-1], reduction="sum")
        gradients = torch.autograd.grad(loss, carried, materialize_grads=True, allow_unused=True)
    squares_KLP = torch.stack([gradient.double().square().sum(-1) for gradient in gradients])
    squares_KLP = squares_KLP.unflatten(0, (longest, -1)).sum(1)
    return squares_KLP.sqrt().mean(-1).flip(0).t().cpu().numpy()
