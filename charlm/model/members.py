"""Several networks that learn side by side and predict together."""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from charlm.layers import Generator, RecurrentState
from charlm.model.network import CharLM, WindowLoss, generator_of


def _alike(name: str) -> Any:
    """An attribute or method of `CharLM` that is the same in all members."""

    def get(model: "Members") -> Any:
        return getattr(model.members[0], name)

    def set_all(model: "Members", value: Any) -> None:
        for member in model.members:
            setattr(member, name, value)

    return property(get, set_all)


class Members(nn.Module):
    """An ensemble of M models of the same kind and size, with the interface of one `CharLM`.

        p(next character) = 1/M Σ_m p_m(next character)

    Features [T, B, M·H] and states hold the first member's values, then the second's, and so on.
    """

    def __init__(self, members: Sequence[CharLM]) -> None:
        super().__init__()
        self.members = cast(Sequence[CharLM], nn.ModuleList(members))

    vocabulary_size = _alike("vocabulary_size")
    device = _alike("device")
    precision = _alike("precision")
    reset_id = _alike("reset_id")
    reads_records = _alike("reads_records")
    select_backend = _alike("select_backend")
    autocast = _alike("autocast")

    @property
    def feature_size(self) -> int:
        """M·H, the size of the features."""
        return sum(member.feature_size for member in self.members)

    @property
    def widths(self) -> tuple[int, int]:
        """See `CharLM`. Members compute one after the other, but all logits are kept."""
        logits, widest = self.members[0].widths
        return len(self.members) * logits, widest

    def init_output_bias_(self, frequencies: Tensor) -> None:
        for member in self.members:
            member.init_output_bias_(frequencies)

    def clipped_together(self) -> list[list[Tensor]]:
        """The parameters of each member: each has a norm of its own."""
        return [list(member.parameters()) for member in self.members]

    def forward(self, x_TB: Tensor, state: RecurrentState | None = None) -> tuple[Tensor, RecurrentState]:
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
        states = self._with_states(state or self.initial_state(x_TB.shape[1]))
        features, last_states = zip(*(member.features(x_TB, own_state) for member, own_state in states), strict=True)
        return torch.cat(features, dim=-1), sum(last_states, ())

    def window_loss(self, x_TB: Tensor, y_TB: Tensor, state: RecurrentState | None, **options: Any) -> WindowLoss:
        """Each member learns as if alone: the objective is the sum over members, the cross-entropy their mean."""
        states = self._with_states(state or self.initial_state(x_TB.shape[1]))
        losses = [member.window_loss(x_TB, y_TB, own_state, **options) for member, own_state in states]
        objectives, entropies, last_states = zip(*losses, strict=True)
        return WindowLoss(torch.stack(objectives).sum(), torch.stack(entropies).mean(), sum(last_states, ()))

    def initial_state(self, batch_size: int) -> RecurrentState:
        return sum((member.initial_state(batch_size) for member in self.members), ())

    def generator(self, state: RecurrentState, never: Sequence[int] = ()) -> Generator | None:
        return generator_of(self._with_states(state), never)

    def _with_states(self, state: RecurrentState) -> list[tuple[CharLM, RecurrentState]]:
        """Each member with its part of the state."""
        count = len(state) // len(self.members)
        return [(member, state[m * count : (m + 1) * count]) for m, member in enumerate(self.members)]


Network = CharLM | Members
"""What a run trains."""
