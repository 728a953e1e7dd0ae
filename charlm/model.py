"""The model: characters → embedding or one-hot → recurrent layers → dropout → logits. Also its loss."""

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from charlm.config.schema import ModelConfig
from charlm.errors import CheckpointError, DivergenceError
from charlm.layers import (
    Activations,
    Generator,
    Lookup,
    RecurrentLayers,
    RecurrentState,
    Selection,
    cross_entropy,
    dropout_mask,
    linear,
)
from charlm.system.device import autocast


def map_state(function: Callable[[Tensor], Tensor], state: RecurrentState) -> RecurrentState:
    """Apply `function` to each tensor of a recurrent state."""
    if isinstance(state, Tensor):
        return function(state)
    return tuple(map(function, state))


class CharLM(nn.Module):
    """A character-level language model.

    vocabulary_size V; embedding_size E, or 0 for one-hot input; `layers` take E (or V) features and have H units. With
    `tie_embeddings` the embedding and the logits share one weight Parameter [V, E] (Press & Wolf 2017,
    arXiv:1608.05859); where E differs from H, a `projection` [E, H] of the outputs comes before it, as in Lan et al.
    2020 (arXiv:1909.11942, 3.1): logits = W P h + b. `precision` is that of the matrix products, in training and in
    use: bf16, or anything else for float32 (see `prepare_device`).

    In training mode, characters, units of the embedding and units of the output are dropped with these probabilities;
    if `variational`, the same in all steps of a window.
    """

    def __init__(
        self,
        vocabulary_size: int,
        embedding_size: int,
        layers: RecurrentLayers,
        *,
        character_dropout: float = 0.0,
        input_dropout: float = 0.0,
        output_dropout: float = 0.0,
        variational: bool = False,
        tie_embeddings: bool = False,
        precision: str = "fp32",
    ) -> None:
        super().__init__()
        self.vocabulary_size = vocabulary_size
        self.character_dropout = character_dropout
        self.input_dropout = input_dropout
        self.output_dropout = output_dropout
        self.variational = variational
        self.precision = precision
        self.reset_id: int | None = None
        """The state is set to zero before this id, the newline that begins a line; None: the text runs on."""
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

    @property
    def is_line_model(self) -> bool:
        """Whether each line is a sample of its own."""
        return self.reset_id is not None

    def init_uniform_(self, bound: float) -> None:
        """Draw all weights from U(±bound) and set biases to 0, except the special biases of the cell."""
        if self.embedding is not None:
            nn.init.uniform_(self.embedding.weight, -bound, bound)
        self.layers.init_uniform_(bound)
        if self.projection is not None:
            nn.init.uniform_(self.projection.weight, -bound, bound)
        nn.init.uniform_(self.decoder.weight, -bound, bound)

    def forward(self, x_TB: Tensor, state: RecurrentState | None = None) -> tuple[Tensor, RecurrentState]:
        """Logits [T, B, V] of the character after each of the ids `x_TB`, and the last state."""
        output, last_state = self.features(x_TB, state)
        return self.logits(output), last_state

    def logits(self, features: Tensor) -> Tensor:
        """Logits [..., V] of features [..., H]."""
        with self.autocast(features.device):
            if self.projection is not None:
                features = linear(features, self.projection.weight)
            return linear(features, self.decoder.weight, self.decoder.bias)

    def logit_weights(self) -> Tensor:
        """The weights [V, H] of the logits, with the projection multiplied in; no gradients."""
        weight = self.decoder.weight.detach()
        return weight if self.projection is None else linear(weight, self.projection.weight.detach().t())

    def features(self, x_TB: Tensor, state: RecurrentState | None = None) -> tuple[Tensor, RecurrentState]:
        """The input of the logits, [T, B, H] after dropout, and the last state."""
        outputs, last_state = self.outputs(x_TB, state)
        return self.drop_outputs(outputs), last_state

    def outputs(self, x_TB: Tensor, state: RecurrentState | None = None) -> tuple[Tensor, RecurrentState]:
        """Outputs [T, B, H] of the last layer, and the last state."""
        resets_TB = None if self.reset_id is None else x_TB == self.reset_id
        with self.autocast(x_TB.device):
            return self.layers(self._embed(x_TB), state, resets_TB)

    def select_backend(self, device: torch.device, training: bool = True) -> Selection:
        """The backend of the layers, see `RecurrentLayers.select_backend`."""
        with self.autocast(device):
            return self.layers.select_backend(device, training, resets=self.is_line_model)

    def outputs_and_activations(
        self, x_TB: Tensor, state: RecurrentState | None = None
    ) -> tuple[Tensor, RecurrentState, list[Activations]]:
        """`outputs` by the reference loop in the parameters' precision, and the activations of each layer."""
        resets_TB = None if self.reset_id is None else x_TB == self.reset_id
        activations = [Activations() for _ in range(self.layers.num_layers)]
        outputs, last_state = self.layers.forward_reference(self._embed(x_TB), state, resets_TB, activations)
        return outputs, last_state, activations

    def autocast(self, device: torch.device) -> contextlib.AbstractContextManager[object]:
        """The context of the matrix products; weights, state and sums stay float32."""
        return autocast(device, self.precision)

    def drop_outputs(self, outputs: Tensor) -> Tensor:
        """Apply dropout to outputs [T, B, H]."""
        return self._drop_units(outputs, self.output_dropout)

    def generator(self, state: RecurrentState) -> Generator | None:
        """Generates characters in a kernel, starting from `state`; None if no kernel can."""
        table, weight_VH = None if self.embedding is None else self.embedding.weight, self.logit_weights()
        with self.autocast(self.decoder.weight.device):
            return self.layers.generator(state, table, (weight_VH, self.decoder.bias))

    def _embed(self, x_TB: Tensor) -> Tensor | Lookup:
        """The input of the layers: [T, B, E], or one-hot [T, B, V]."""
        lookup = Lookup(x_TB, None if self.embedding is None else self.embedding.weight)
        if not self.training or self.character_dropout == self.input_dropout == 0:
            return lookup
        inputs = lookup.dense(self.layers.input_size, like=self.decoder.weight)
        inputs = self._drop_characters(inputs, x_TB)
        return self._drop_units(inputs, self.input_dropout)

    def _drop_characters(self, inputs: Tensor, x_TB: Tensor) -> Tensor:
        """Drop whole characters; if variational, the same ids in all steps of a stream."""
        p = self.character_dropout
        if p == 0:
            return inputs
        if self.variational:
            keep_VB = dropout_mask((self.vocabulary_size, x_TB.shape[1]), p, inputs, shard=self.layers.shard)
            keep_TB = keep_VB.gather(0, x_TB)
        else:
            keep_TB = dropout_mask(tuple(x_TB.shape), p, inputs, shard=self.layers.shard)
        return inputs * keep_TB.unsqueeze(-1)

    def _drop_units(self, values: Tensor, p: float) -> Tensor:
        """Drop units of [T, B, F]; if variational, the same units in all T steps."""
        if not self.training or p == 0:
            return values
        T, B, F_ = values.shape
        shape = (1 if self.variational else T, B, F_)
        return values * dropout_mask(shape, p, values, shard=self.layers.shard)


def build_model(config: ModelConfig, vocabulary_size: int, precision: str = "fp32") -> CharLM:
    """The model of a config, with products of this precision. Only this function turns config into modules."""
    layers = RecurrentLayers(
        config.cell,
        config.embedding or vocabulary_size,
        config.layers,
        dropout=config.dropout.between_layers,
        state_dropout=config.dropout.state,
        weight_dropout=config.dropout.weights,
        variational=config.dropout.variational,
        zoneout=config.zoneout,
        residual=config.residual,
    )
    model = CharLM(
        vocabulary_size,
        config.embedding,
        layers,
        character_dropout=config.dropout.embedding,
        input_dropout=config.dropout.input,
        output_dropout=config.dropout.output,
        variational=config.dropout.variational,
        tie_embeddings=config.tie_embeddings,
        precision=precision,
    )
    if config.init_uniform is not None:
        model.init_uniform_(config.init_uniform)
    if config.orthogonal:
        model.layers.init_orthogonal_()
    return model


def uninitialized_model(config: ModelConfig, vocabulary_size: int, precision: str = "fp32") -> CharLM:
    """The model of a config, for weights that are loaded into it: it draws no random numbers."""
    with _Uninitialized():
        plain = config.model_copy(update={"orthogonal": False, "init_uniform": None})
        return build_model(plain, vocabulary_size, precision)


def count_parameters(config: ModelConfig, vocabulary_size: int) -> int:
    """The number of a model's parameters."""
    V, H = vocabulary_size, config.cell.hidden

    def of_layer(inputs: int) -> int:
        return sum(math.prod(one.shape(H, inputs)) for one in config.cell.program(inputs == H).parameters)

    others = (config.layers - 1) * of_layer(H) if config.layers > 1 else 0
    return of_layer(config.embedding or V) + others + count_vocabulary_parameters(config, V)


def count_vocabulary_parameters(config: ModelConfig, vocabulary_size: int) -> int:
    """The number of parameters in embedding and logits."""
    V, H, E = vocabulary_size, config.cell.hidden, config.embedding
    if not config.tie_embeddings:
        return V * E + V * H + V
    return V * E + V + (0 if E == H else E * H)


class _Uninitialized(TorchFunctionMode):
    """Skips torch.nn.init: on meta tensors it would import torch._dynamo, which takes more than a second."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def parameters_by_part(model: CharLM) -> dict[str, int]:
    """Number of parameters in embedding, layers and logits; a tied matrix counts with the logits only."""
    parts = {"embedding": 0, "layers": 0, "logits": 0}
    decoder = {id(p) for p in model.decoder.parameters()}
    for name, parameter in model.named_parameters():
        module = name.split(".")[0]
        parts["logits" if id(parameter) in decoder or module == "projection" else module] += parameter.numel()
    return parts


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights by name; CheckpointError where names, shapes or types are not the model's."""
    parameters = dict(model.named_parameters())
    kinds: tuple[Callable[[Tensor], object], ...] = lambda tensor: tuple(tensor.shape), lambda tensor: tensor.dtype
    for describe in kinds:
        theirs, ours = ({name: describe(tensor) for name, tensor in each.items()} for each in (weights, parameters))
        for name in sorted(theirs.keys() | ours.keys()):
            if theirs.get(name) != ours.get(name):
                raise CheckpointError(
                    f"weights {name}: found {theirs.get(name, 'none')}; the model has {ours.get(name, 'none')}; "
                    "use a checkpoint of the same model section"
                )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])


def overflow() -> DivergenceError:
    """The error for logits that are not finite, although the weights are."""
    return DivergenceError(
        "logits: found numbers that are not finite; use another checkpoint of the run, or another text"
    )


class WindowLoss(NamedTuple):
    """The loss of one window of B streams and T steps."""

    objective: Tensor
    """Cross-entropy plus penalties; call `backward` on this."""
    cross_entropy: Tensor
    """In nats, summed over the scored steps, averaged over streams; detached."""
    state: RecurrentState
    """The last state, detached."""


class _MeanSquare(torch.autograd.Function):
    """The mean of the squares. Its backward pass reads the values once; composed of operators, three times."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        return torch.linalg.vector_norm(values).square() / values.numel()

    @staticmethod
    def backward(ctx: Any, d_mean: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        (values,) = ctx.saved_tensors
        return values * (2 * d_mean / values.numel())


def mean_square(values: Tensor) -> Tensor:
    """The mean of the squares."""
    mean: Tensor = _MeanSquare.apply(values)  # type: ignore[assignment]
    return mean


def window_loss(
    model: CharLM,
    x_TB: Tensor,
    y_TB: Tensor,
    state: RecurrentState | None,
    *,
    last_only: bool = False,
    activation_penalty: float = 0.0,
    change_penalty: float = 0.0,
) -> WindowLoss:
    """Run one window and score its targets `y_TB`, those of all steps or of the last only.

    The penalties are activation regularization and temporal activation regularization (Merity et al. 2017,
    arXiv:1708.01009). They are means over units, streams and steps, multiplied by the number of scored steps to
    match the cross-entropy, which is a sum over these.
    """
    outputs, last_state = model.outputs(x_TB, state)
    features = model.drop_outputs(outputs)
    scored = features
    if last_only:
        scored, y_TB = features[-1:], y_TB[-1:]
    losses_TB = cross_entropy(model.logits(scored), y_TB)
    total = losses_TB.sum() / x_TB.shape[1]
    objective = total
    if activation_penalty:
        objective = objective + len(losses_TB) * activation_penalty * mean_square(features)
    if change_penalty and len(outputs) > 1:
        objective = objective + len(losses_TB) * change_penalty * mean_square(outputs.diff(dim=0))
    return WindowLoss(objective, total.detach(), map_state(Tensor.detach, last_state))
