"""What formats share: the vocabulary that is written, and whether a copy computes what charlm does."""

from collections.abc import Callable

import torch
from torch import Tensor

from charlm.errors import CharlmError
from charlm.inference.trained import TrainedModel
from charlm.model import CharLM

TOLERANCE = 1e-4
"""Largest difference of logits and states; relative where they are larger than 1."""
_STREAMS = 3
_STEPS = (40, 1, 7)
"""Windows that are compared, with the state carried from one to the next."""

Step = Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor, tuple[Tensor, ...]]]
"""(ids [T, B], state) → logits [T, B, V] and the new state: a tensor [L, B, H] for each of `state_names`."""


def vocabulary_json(trained: TrainedModel) -> dict[str, str]:
    """Level, characters (a character's index is its id; none for bytes) and unit, as in the config."""
    return trained.vocabulary.to_json() | {"unit": trained.config.data.unit}


@torch.inference_mode()
def check_agreement(network: CharLM, step: Step, name: str) -> float:
    """The largest difference between the logits of `step` and the network's, over windows with carried state.

    CharlmError if a difference of logits or states is above TOLERANCE, or not a number.
    """
    generator = torch.Generator().manual_seed(1)
    state = network.layers.zero_state(_STREAMS)
    exported_state, largest = state, 0.0
    for steps in _STEPS:
        shape = (steps, _STREAMS)
        ids_TB = torch.randint(network.vocabulary_size, shape, generator=generator)
        if network.reset_id is not None:
            ids_TB[torch.rand(shape, generator=generator) < 0.2] = network.reset_id
        logits, state = network(ids_TB, state)
        exported_logits, exported_state = step(ids_TB, exported_state)
        for exported, expected in zip((exported_logits, *exported_state), (logits, *state), strict=True):
            difference = float((exported - expected).abs().max())
            if not difference <= TOLERANCE * max(1.0, float(expected.abs().max())):
                raise CharlmError(
                    f"{name}: its logits or states differ from charlm's by {difference:.2g}; allowed: {TOLERANCE:g}; "
                    "nothing was written; please report this with the run's config.yaml"
                )
        largest = max(largest, float((exported_logits - logits).abs().max()))
    return largest
