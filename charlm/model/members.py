"""Several networks that predict together."""

import contextlib
import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from charlm.layers import Generator, Lookup, RecurrentState, Selection, as_tuple
from charlm.model.network import CharLM, map_state


class Members(nn.Module):
    """M models of the same kind and size that predict together, with what users of a CharLM need.

        p(next character) = 1/M Σ_m p_m(next character)

    Features are those of the members side by side, [T, B, M·H]. A state is [M·L, B, H]: all layers of the first member,
    then all of the second, and so on.
    """

    def __init__(self, members: Sequence[CharLM]) -> None:
        super().__init__()
        self.members = cast(Sequence[CharLM], nn.ModuleList(members))

    @property
    def vocabulary_size(self) -> int:
        return self.members[0].vocabulary_size

    @property
    def device(self) -> torch.device:
        return self.members[0].device

    @property
    def feature_size(self) -> int:
        """M·H, the size of the features."""
        return sum(member.feature_size for member in self.members)

    @property
    def precision(self) -> str:
        """See `CharLM`."""
        return self.members[0].precision

    @precision.setter
    def precision(self, precision: str) -> None:
        for member in self.members:
            member.precision = precision

    @property
    def reset_id(self) -> int | None:
        """See `CharLM`."""
        return self.members[0].reset_id

    @reset_id.setter
    def reset_id(self, reset_id: int | None) -> None:
        for member in self.members:
            member.reset_id = reset_id

    @property
    def is_line_model(self) -> bool:
        """Whether each line is a sample of its own."""
        return self.reset_id is not None

    def forward(self, x_TB: Tensor, state: RecurrentState | None = None) -> tuple[Tensor, RecurrentState]:
        """`logits` [T, B, V] of the character after each of the ids `x_TB`, and the last state."""
        features, last_state = self.features(x_TB, state)
        return self.logits(features), last_state

    def logits(self, features: Tensor) -> Tensor:
        """Logarithms of the mean probabilities, [..., V], of features [..., M·H]; in float32 at least."""
        log_p = []
        for member, own_features in zip(self.members, features.chunk(len(self.members), dim=-1), strict=True):
            logits = member.logits(own_features)
            log_p.append(logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1))
        return torch.stack(log_p).logsumexp(0) - math.log(len(log_p))

    def features(self, x_TB: Tensor, state: RecurrentState | None = None) -> tuple[Tensor, RecurrentState]:
        """The input of the logits, [T, B, M·H] after dropout, and the last state."""
        own_states = zip(self.members, self.split_state(state), strict=True)
        features, last_states = zip(*(member.features(x_TB, own) for member, own in own_states), strict=True)
        return torch.cat(features, dim=-1), self.join_states(last_states)

    def select_backend(self, device: torch.device, training: bool = True) -> Selection:
        """The backend of each member's layers, see `RecurrentLayers.select_backend`."""
        return self.members[0].select_backend(device, training)

    def zero_state(self, batch_size: int) -> RecurrentState:
        """The initial state of so many streams."""
        return self.join_states([member.zero_state(batch_size) for member in self.members])

    def split_state(self, state: RecurrentState | None) -> list[RecurrentState | None]:
        """The state of each member."""
        M = len(self.members)
        if state is None:
            return [None] * M
        return [map_state(lambda tensor, m=m: tensor.tensor_split(M)[m], state) for m in range(M)]

    def join_states(self, states: Sequence[RecurrentState]) -> RecurrentState:
        """The inverse of `split_state`."""
        joined = tuple(map(torch.cat, zip(*map(as_tuple, states), strict=True)))
        return joined[0] if len(joined) == 1 else joined

    def autocast(self, device: torch.device) -> contextlib.AbstractContextManager[object]:
        """See `CharLM`."""
        return self.members[0].autocast(device)

    @property
    def generates(self) -> bool:
        """See `CharLM`."""
        return self.members[0].generates


Network = CharLM | Members
"""What a run trains."""


def generator_of(model: Network, state: RecurrentState) -> Generator | None:
    """Generates characters in a kernel, starting from `state`; None if no kernel can."""
    if not model.generates:
        return None
    batch_size, layers = as_tuple(state)[0].shape[1], []
    decoders = [(member.logit_weights(), member.decoder.bias) for member in model.members]
    with model.autocast(model.device):
        for member, own_state in zip(model.members, model.split_state(state), strict=True):
            table_VE = None if member.embedding is None else member.embedding.weight
            characters = Lookup(torch.arange(model.vocabulary_size), table_VE)
            layers += member.layers.generating_layers(own_state, batch_size, characters)
        first = model.members[0].layers
        return Generator(first.cpu_driver, layers, decoders, residual=first.residual)
