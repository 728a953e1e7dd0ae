"""How far back a model looks: its loss on the same characters after reading 1, 2, 4, … characters before them."""

import numpy as np
import torch

from charlm.layers import cross_entropy
from charlm.look.reading import Ids
from charlm.model import CharLM
from charlm.system.formatting import nats_to_bits

LONGEST = 512
"""Characters of context at most."""
_TARGETS = 256
"""How many characters are scored for each length."""


@torch.inference_mode()
def memory_curve(model: CharLM, ids: Ids, longest: int = LONGEST) -> tuple[list[tuple[int, float]], np.ndarray]:
    """(characters of context, bits per character) for lengths 1, 2, 4, …, and the places of the scored characters.

    The state is zero before the context. The longest context is a quarter of the text at most, so the characters that
    are scored, the same for every length, come from the other three. Empty for a text of less than 8 characters.
    """
    longest = min(longest, len(ids) // 4)
    lengths = [2**power for power in range(longest.bit_length())] if longest >= 2 else []
    if not lengths:
        return [], np.zeros(0, np.int64)
    places = np.unique(np.linspace(lengths[-1], len(ids) - 1, _TARGETS).round().astype(np.int64))
    targets_1B = torch.from_numpy(ids[places].astype(np.int64))[None]
    curve = []
    for length in lengths:
        x_TB = torch.from_numpy(ids[places[None] + np.arange(-length, 0)[:, None]].astype(np.int64))
        outputs_TBH, _ = model.outputs(x_TB)
        nats_1B = cross_entropy(model.logits(outputs_TBH[-1:]), targets_1B)
        curve.append((length, nats_to_bits(float(nats_1B.double().mean()))))
    return curve, places
