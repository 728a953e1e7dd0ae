"""What flows back: gradients of the loss of one character with respect to the states and inputs before it."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from charlm.data.vocabulary import Ids
from charlm.errors import DataError
from charlm.inference.evaluation import evaluating
from charlm.layers import Lookup, RecurrentState
from charlm.model import CharLM
from charlm.system.formatting import counted

LONGEST = 100
"""Steps back for which norms are computed."""
REACH = 64
"""Characters before a prediction whose influence is computed."""
_POSITIONS = 256
_AT_ONCE = 256
"""Predictions whose influences are computed together."""


def gradient_norms(
    model: CharLM, ids: Ids, longest: int = LONGEST, positions: int = _POSITIONS
) -> npt.NDArray[np.float64]:
    """The norm of ∂loss_t/∂h_{t−k} for each layer and k = 1 … K, averaged over positions t of the text: [L, K].

    loss_t is the cross-entropy, in nats, of the character that follows step t. h_{t−k} is the state that a layer
    carries from step t − k to the next: all its tensors that are not internal, side by side (an LSTM's h and c). K is
    `longest`, or less for a short text: each position reads 2 K characters from the zero state, the first K of them
    without a gradient. By autograd through the reference loop, in evaluation mode. DataError for a text of less than 3
    characters.
    """
    longest = min(longest, (len(ids) - 1) // 2)
    if longest < 1:
        raise DataError(f"gradients: found a text of {counted(len(ids), 'character')}; allowed: 3 or more")
    ends_P = np.unique(np.linspace(2 * longest, len(ids) - 1, positions).astype(np.int64))
    read_TP = _windows(model, ids, ends_P - 2 * longest, 2 * longest + 1)
    carried, outputs_1PH = [], torch.empty(0)
    with evaluating(model), torch.enable_grad():
        with torch.no_grad():
            _, state = model.outputs(read_TP[:longest])
        state = tuple(tensor.detach().requires_grad_() for tensor in state)
        for x_P in read_TP[longest:-1]:
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


def influences(model: CharLM, ids: Ids, reach: int = REACH) -> npt.NDArray[np.float32]:
    """How much each of the characters before it made a character of the text likelier, by gradient × input: [N, K].

    [n, k − 1] is the sum over x of x · ∂ log p_n / ∂x, where x is the input of character n − k (its embedding, or the
    one that stands for it in a one-hot vector): the change of log p_n for each per cent more of x, times 100. 0 before
    the text, and for the first character, which has no prediction. K is `reach`, or less for a short text.
    """
    N, reach = len(ids), min(reach, len(ids) - 1)
    found_NK = np.zeros((N, reach), np.float32)
    states, read = {0: model.layers.zero_state(1)}, 0
    for first in range(1, N, _AT_ONCE):
        targets_B = np.arange(first, min(first + _AT_ONCE, N))
        starts_B = np.maximum(targets_B - reach, 0)
        with torch.no_grad():
            while read < starts_B[-1]:
                _, state = model.outputs(_windows(model, ids, np.array([read]), 1), states[read])
                read += 1
                states[read] = state
        of_streams = zip(*(states[start] for start in starts_B.tolist()), strict=True)
        before = tuple(torch.cat(tensors, dim=1) for tensors in of_streams)
        states = {read: states[read]}
        values_TB = _gradient_times_input(model, ids, starts_B, targets_B, reach, before)
        for stream, (start, target) in enumerate(zip(starts_B, targets_B, strict=True)):
            found_NK[target, : target - start] = values_TB[: target - start, stream][::-1]
    return found_NK


def _gradient_times_input(
    model: CharLM, ids: Ids, starts_B: np.ndarray, targets_B: np.ndarray, steps: int, state: RecurrentState
) -> npt.NDArray[np.float32]:
    """x · ∂ log p / ∂x for each step and stream, [T, B]: streams read from `starts_B` on, and predict `targets_B`."""
    x_TB = _windows(model, ids, starts_B, steps)
    lookup = Lookup(x_TB, None if model.embedding is None else model.embedding.weight)
    with torch.enable_grad(), model.autocast(x_TB.device):
        inputs_TBE = lookup.dense(model.layers.input_size, like=model.decoder.weight).detach().requires_grad_()
        outputs_TBH, _ = model.layers(inputs_TBE, state, None if model.reset_id is None else x_TB == model.reset_id)
        last = torch.from_numpy(targets_B - starts_B - 1).to(x_TB.device)
        outputs_BH = outputs_TBH[last, torch.arange(len(last), device=x_TB.device)]
        true_B = torch.from_numpy(ids[targets_B].astype(np.int64)).to(x_TB.device)
        log_p = -F.cross_entropy(model.logits(outputs_BH), true_B, reduction="sum")
        (gradient_TBE,) = torch.autograd.grad(log_p, inputs_TBE)
    return (gradient_TBE * inputs_TBE.detach()).sum(-1).float().cpu().numpy()


def _windows(model: CharLM, ids: Ids, starts_B: np.ndarray, steps: int) -> Tensor:
    """`steps` ids from each of the starts on, [T, B]; past the end of the text its last one."""
    places_TB = np.minimum(starts_B[None] + np.arange(steps)[:, None], len(ids) - 1)
    return torch.from_numpy(ids[places_TB].astype(np.int64)).to(model.decoder.weight.device)
