"""A config's model, its size, and loading weights into it."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from charlm.config.schema import ModelConfig
from charlm.errors import CheckpointError
from charlm.layers import RecurrentLayers
from charlm.model.members import Members, Network
from charlm.model.network import CharLM


def build_model(config: ModelConfig, vocabulary_size: int, precision: str = "fp32") -> Network:
    """The model of a config, with products of this precision. Only this function turns config into modules."""
    members = [_build_member(config, vocabulary_size, precision) for _ in range(config.members)]
    return members[0] if len(members) == 1 else Members(members)


def _build_member(config: ModelConfig, vocabulary_size: int, precision: str) -> CharLM:
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


def uninitialized_model(config: ModelConfig, vocabulary_size: int, precision: str = "fp32") -> Network:
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
    return config.members * (of_layer(config.embedding or V) + others + count_vocabulary_parameters(config, V))


def count_vocabulary_parameters(config: ModelConfig, vocabulary_size: int) -> int:
    """The number of parameters in embedding and logits of one member."""
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


def parameters_by_part(model: Network) -> dict[str, int]:
    """Number of parameters in embedding, layers and logits; a tied matrix counts with the logits only."""
    parts = {"embedding": 0, "layers": 0, "logits": 0}
    for member in model.members:
        decoder = {id(p) for p in member.decoder.parameters()}
        for name, parameter in member.named_parameters():
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
