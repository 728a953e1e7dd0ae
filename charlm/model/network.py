"""A network: characters → embedding or one-hot → recurrent layers → dropout → logits; the loss of a window."""

import contextlib
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from charlm.config.schema import Dropout
from charlm.errors import DivergenceError
from charlm.layers import (
    NO_DROPOUT,
    Activations,
    Generator,
    Lookup,
    RecurrentLayers,
    RecurrentState,
    Selection,
    cross_entropy,
    drop_units,
    dropout_mask,
    linear,
    unit_mask,
)
from charlm.model.objective import kernel_objective
from charlm.native.kernels import OUTPUT
from charlm.native.loading import works
from charlm.native.operators import check_tensor
from charlm.native.recurrence import CpuDriver
from charlm.system.device import autocast, autocasts_to_bf16

NEVER = -1e30
"""The logit of a character that is not drawn: finite, and too low for any temperature."""


class WindowLoss(NamedTuple):
    """The loss of one window of B streams and T steps."""

    objective: Tensor
    """Cross-entropy plus penalties; call `backward` on this."""
    cross_entropy: Tensor
    """In nats, summed over the scored steps, averaged over streams; detached."""
    state: RecurrentState
    """The last state, detached."""


class CharLM(nn.Module):
    """A character-level language model.

    vocabulary_size V; embedding_size E, or 0 for one-hot input; `layers` take E (or V) features and have H units. With
    `tie_embeddings` the embedding and the logits share one weight [V, E] (Press & Wolf 2017, arXiv:1608.05859); where E
    differs from H, a `projection` P [E, H] comes first (Lan et al. 2020, arXiv:1909.11942, 3.1): logits = W P h + b.
    `precision` of matrix products: bf16; anything else means float32 (see `prepare_device`).

    In training mode it drops characters, units of the embedding and units of the output (`dropout.embedding`, `input`,
    `output`); with `dropout.variational` the same ones in all steps of a window.
    """

    def __init__(
        self,
        vocabulary_size: int,
        embedding_size: int,
        layers: RecurrentLayers,
        *,
        dropout: Dropout = NO_DROPOUT,
        tie_embeddings: bool = False,
        precision: str = "fp32",
    ) -> None:
        super().__init__()
        self.vocabulary_size = vocabulary_size
        self.dropout = dropout
        self.precision = precision
        self.reset_id: int | None = None
        """The stream has its initial state before this id, the end of a record; None: the text runs on."""
        self.embedding = nn.Embedding(vocabulary_size, embedding_size) if embedding_size else None
        self.layers = layers
        H = layers.hidden_size
        is_factored = tie_embeddings and embedding_size != H
        self.projection = nn.Linear(H, embedding_size, bias=False) if is_factored else None
        self.decoder = nn.Linear(embedding_size if is_factored else H, vocabulary_size)
        nn.init.zeros_(self.decoder.bias)
        if tie_embeddings:
            assert self.embedding is not None
            self.embedding.weight = self.decoder.weight
        own = (pair for pair in self.named_parameters(remove_duplicate=False) if not pair[0].startswith("layers."))
        self._shapes = {name: weight.shape for name, weight in own}

    # From ids to a loss. V vocabulary, E embedding, or V for one-hot input, H hidden units

    def forward(self, x_TB: Tensor, state: RecurrentState | None = None) -> tuple[Tensor, RecurrentState]:
        """Logits [T, B, V] of the character after each of the ids `x_TB`, and the last state."""
        features, last_state = self.features(x_TB, state)
        return self.logits(features), last_state

    def window_loss(
        self,
        x_TB: Tensor,
        y_TB: Tensor,
        state: RecurrentState | None,
        *,
        scored_steps: int | None = None,
        activation_penalty: float = 0.0,
        change_penalty: float = 0.0,
    ) -> WindowLoss:
        """Run one window and score the last `scored_steps` S of its targets `y_TB`; None: all T.

        The penalties are activation regularization and temporal activation regularization (Merity et al. 2017,
        arXiv:1708.01009): means over units, streams and all steps, times S, as the cross-entropy is a sum over S steps.
        """
        S = scored_steps or len(y_TB)
        first = len(y_TB) - S
        outputs, last_state = self.outputs(x_TB, state)  # [T, B, H]
        last_state = tuple(tensor.detach() for tensor in last_state)
        is_float32 = outputs.dtype == torch.float32
        if self.projection is None and outputs.is_cpu and is_float32 and works(OUTPUT):
            self.check_weights()
            p, mask, penalties = self.dropout.output, None, (activation_penalty, change_penalty)
            if self.training and p > 0:
                mask = unit_mask(outputs, p, variational=self.dropout.variational, shard=self.layers.shard)
            with self.autocast(outputs.device):
                bf16 = autocasts_to_bf16(outputs.device)
            weights = self.decoder.weight, self.decoder.bias
            objective, total = kernel_objective(outputs, mask, *weights, y_TB, S, penalties, bf16=bf16)
            return WindowLoss(objective, total, last_state)
        features = self._drop_units(outputs, self.dropout.output)  # [T, B, H]
        losses_SB = cross_entropy(self.logits(features[first:]), y_TB[first:])  # of logits [S, B, V]
        total = losses_SB.sum() / x_TB.shape[1]
        objective = total
        if activation_penalty:
            objective = objective + S * activation_penalty * F.mse_loss(features, torch.zeros_like(features))
        if change_penalty and len(outputs) > 1:
            objective = objective + S * change_penalty * F.mse_loss(outputs[1:], outputs[:-1])
        return WindowLoss(objective, total.detach(), last_state)

    def features(self, x_TB: Tensor, state: RecurrentState | None = None) -> tuple[Tensor, RecurrentState]:
        """The input of the logits, [T, B, H] after dropout, and the last state."""
        outputs, last_state = self.outputs(x_TB, state)
        return self._drop_units(outputs, self.dropout.output), last_state

    def outputs(self, x_TB: Tensor, state: RecurrentState | None = None) -> tuple[Tensor, RecurrentState]:
        """Outputs [T, B, H] of the last layer, and the last state."""
        with self.autocast(x_TB.device):
            inputs = self._embed(x_TB)  # [T, B, E]
            return self.layers(inputs, state, self._resets(x_TB))

    def outputs_and_activations(
        self, x_TB: Tensor, state: RecurrentState | None = None
    ) -> tuple[Tensor, RecurrentState, list[Activations]]:
        """`outputs` by the reference loop in the parameters' precision, and the activations of each layer."""
        activations = [Activations(list) for _ in range(self.layers.num_layers)]
        outputs, last_state = self.layers.forward_reference(
            self._embed(x_TB), state, self._resets(x_TB), activations=activations
        )
        return outputs, last_state, activations

    def outputs_and_inputs(self, x_TB: Tensor, state: RecurrentState | None) -> tuple[Tensor, list[Tensor]]:
        """`outputs` in the parameters' precision, and the input of each layer, [T, B, I], all with gradients."""
        vectors = self.lookup(x_TB).dense(self.layers.input_size, like=self.decoder.weight)  # [T, B, E]
        layer_inputs: list[Tensor] = []
        first = vectors.detach().requires_grad_()
        outputs, _ = self.layers(first, state, self._resets(x_TB), layer_inputs=layer_inputs)
        return outputs, layer_inputs

    def logits(self, features: Tensor) -> Tensor:
        """Logits [..., V] of features [..., H]."""
        self.check_weights()
        with self.autocast(features.device):
            if self.projection is not None:
                features = linear(features, self.projection.weight)  # [..., E]
            return linear(features, self.decoder.weight, self.decoder.bias)

    def lookup(self, ids: Tensor) -> Lookup:
        """The vectors of these ids before dropout."""
        return Lookup(ids, None if self.embedding is None else self.embedding.weight)

    def _embed(self, x_TB: Tensor) -> Tensor | Lookup:
        """The input of the layers: [T, B, E], or one-hot [T, B, V]."""
        self.check_weights()
        lookup = self.lookup(x_TB)
        if not self.training or self.dropout.embedding == self.dropout.input == 0:
            return lookup
        inputs = lookup.dense(self.layers.input_size, like=self.decoder.weight)
        inputs = self._drop_characters(inputs, x_TB)
        return self._drop_units(inputs, self.dropout.input)

    def _resets(self, x_TB: Tensor) -> Tensor | None:
        """Where a stream has its initial state before the step."""
        return None if self.reset_id is None else x_TB == self.reset_id

    def _drop_characters(self, inputs: Tensor, x_TB: Tensor) -> Tensor:
        """Drop whole characters; if variational, the same ids in all steps of a stream."""
        p = self.dropout.embedding
        if p == 0:
            return inputs
        if self.dropout.variational:
            keep_VB = dropout_mask((self.vocabulary_size, x_TB.shape[1]), p, inputs, shard=self.layers.shard)
            keep_TB = keep_VB.gather(0, x_TB)
        else:
            keep_TB = dropout_mask(tuple(x_TB.shape), p, inputs, shard=self.layers.shard)
        return inputs * keep_TB.unsqueeze(-1)

    def _drop_units(self, values: Tensor, p: float) -> Tensor:
        if not self.training or p == 0:
            return values
        return drop_units(values, p, variational=self.dropout.variational, shard=self.layers.shard)

    def autocast(self, device: torch.device) -> contextlib.AbstractContextManager[object]:
        """The context of the matrix products; weights, state and sums stay float32."""
        return autocast(device, self.precision)

    # What others ask of a network, see also `Members`

    @property
    def device(self) -> torch.device:
        return self.decoder.weight.device

    @property
    def feature_size(self) -> int:
        """H, the size of the features."""
        return self.layers.hidden_size

    @property
    def widths(self) -> tuple[int, int]:
        """Numbers that a character takes: its logits, and the widest other tensor."""
        rows = max(map(len, self.layers.layer_parameters(0).values()))
        return self.vocabulary_size, max(rows, self.layers.input_size)

    @property
    def reads_records(self) -> bool:
        """Whether each record is a sample of its own."""
        return self.reset_id is not None

    def initial_state(self, batch_size: int) -> RecurrentState:
        """The initial state of `batch_size` streams."""
        return self.layers.initial_state(batch_size)

    def select_backend(self, device: torch.device, training: bool = True) -> Selection:
        """The backend of the layers, see `RecurrentLayers.select_backend`."""
        with self.autocast(device):
            return self.layers.select_backend(device, training, resets=self.reads_records)

    def generator(self, state: RecurrentState, never: Sequence[int] = ()) -> Generator | None:
        """What generates characters in a kernel from `state` on, and never draws these ids; None if no kernel can."""
        return generator_of([(self, state)], never)

    def clipped_together(self) -> list[list[Tensor]]:
        """The parameters whose gradients are clipped by one norm."""
        return [list(self.parameters())]

    def check_weights(self) -> None:
        """ValueError for a parameter that was replaced by one of another shape, type or device; layers check theirs."""
        like = self.decoder.bias
        for name, shape in self._shapes.items():
            check_tensor(name, attrgetter(name)(self), shape, like.dtype, like.device)

    def logit_weights(self) -> Tensor:
        """The weights [V, H] of the logits, with the projection multiplied in; no gradients."""
        weight = self.decoder.weight.detach()
        return weight if self.projection is None else linear(weight, self.projection.weight.detach().t())

    def logit_bias(self, never: Sequence[int]) -> Tensor:
        """A copy of the bias [V] of the logits, by which these ids are never drawn; no gradients."""
        bias = self.decoder.bias.detach().clone()
        bias[[*never]] = NEVER
        return bias

    def init_uniform_(self, bound: float) -> None:
        """Draw all weights from U(±bound) and set biases to 0, except the special biases of the cell."""
        if self.embedding is not None:
            nn.init.uniform_(self.embedding.weight, -bound, bound)
        self.layers.init_uniform_(bound)
        if self.projection is not None:
            nn.init.uniform_(self.projection.weight, -bound, bound)
        nn.init.uniform_(self.decoder.weight, -bound, bound)

    def init_output_bias_(self, frequencies: Tensor) -> None:
        """Set the output bias to the logarithms of frequencies [V], which features of 0 then predict."""
        with torch.no_grad():
            self.decoder.bias.copy_(frequencies.log())


def generator_of(models: Sequence[tuple[CharLM, RecurrentState]], never: Sequence[int]) -> Generator | None:
    """What generates characters from the mean of the models' probabilities, each from its state on.

    never: ids that are not drawn. None if no kernel can compute all models.
    """
    layers, decoders, kernel = [], [], None
    for model, state in models:
        model.check_weights()
        backend = model.select_backend(model.device, training=False).backend
        driver, options = backend.driver, backend.options
        if not isinstance(driver, CpuDriver) or options is None or kernel not in (None, driver.kernel):
            return None
        kernel = driver.kernel
        decoders.append((model.logit_weights(), model.logit_bias(never)))
        characters = model.lookup(torch.arange(model.vocabulary_size))
        with model.autocast(model.device):
            layers += model.layers.generating_layers(driver, options, state, characters)
    first, _ = models[0]
    assert kernel is not None
    with first.autocast(first.device):
        return Generator(kernel, layers, decoders, residual=first.layers.residual)


def overflow() -> DivergenceError:
    """The error for logits that are not finite, although the weights are."""
    return DivergenceError(
        "logits: found numbers that are not finite; use another checkpoint of the run, or another text"
    )
