"""A config's model, its size, and loading weights into it."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from charlm.cells.program import Program, units
from charlm.cells.state_options import with_learned_start
from charlm.config.schema import ModelConfig
from charlm.errors import CheckpointError, ConfigError
from charlm.layers import RecurrentLayers
from charlm.model.members import Members, Network
from charlm.model.network import CharLM
from charlm.system.process_group import WHOLE_BATCH, Shard


def build_model(
    config: ModelConfig,
    vocabulary_size: int,
    precision: str = "fp32",
    shard: Shard = WHOLE_BATCH,
    *,
    reset_id: int | None = None,
) -> Network:
    """The model of a config, with products of this precision; it computes this shard of each batch.

    reset_id: see `CharLM.reset_id`. ConfigError if a step would need far more memory than the weights.
    """
    weights = count_weights(config, vocabulary_size)
    values = config.members * _sum_over_layers(config, vocabulary_size, _step_values)
    if values > weights + _MORE_VALUES:
        raise ConfigError(
            f"model: a step computes {values:,} numbers per stream; allowed: {weights + _MORE_VALUES:,} with "
            f"{weights:,} weights; choose fewer layers, units or states"
        )
    members = [_build_member(config, vocabulary_size, precision, shard) for _ in range(config.members)]
    network = members[0] if len(members) == 1 else Members(members)
    network.reset_id = reset_id
    return network


_MORE_VALUES = 2**22
"""How many numbers a step may compute per stream beyond the number of weights: 16 MiB."""


def _step_values(program: Program, hidden: int, inputs: int) -> int:
    """The numbers of all states and values of a step."""
    vectors = [node for node in program.nodes if node.size != ""]
    return sum(node.count * units(node.size, hidden, inputs) for node in vectors)


def _sum_over_layers(config: ModelConfig, vocabulary_size: int, of_layer: Callable[[Program, int, int], int]) -> int:
    """The sum of of_layer(program, H, I) over the layers; all above the first are alike."""
    H, I = config.cell.hidden, config.embedding or vocabulary_size  # noqa: E741

    def program(square: bool) -> Program:
        plain = config.cell.program(square)
        return with_learned_start(plain) if config.learned_start else plain

    total = of_layer(program(I == H), H, I)
    if config.layers > 1:
        total += (config.layers - 1) * of_layer(program(square=True), H, H)
    return total


def _build_member(config: ModelConfig, vocabulary_size: int, precision: str, shard: Shard) -> CharLM:
    layers = RecurrentLayers(
        config.cell,
        config.embedding or vocabulary_size,
        config.layers,
        dropout=config.dropout,
        zoneout=config.zoneout,
        residual=config.residual,
        learned_start=config.learned_start,
    )
    layers.shard = shard
    model = CharLM(
        vocabulary_size,
        config.embedding,
        layers,
        dropout=config.dropout,
        tie_embeddings=config.tie_embeddings,
        precision=precision,
    )
    if config.init_uniform is not None:
        model.init_uniform_(config.init_uniform)
    if config.orthogonal:
        model.layers.init_orthogonal_()
    return model


def uninitialized_model(config: ModelConfig, vocabulary_size: int, precision: str, *, reset_id: int | None) -> Network:
    """The model of a config, for weights that are loaded into it. Draws no random numbers: a thread may be training."""
    with _Uninitialized():
        plain = config.model_copy(update={"orthogonal": False, "init_uniform": None})
        return build_model(plain, vocabulary_size, precision, reset_id=reset_id)


class _Uninitialized(TorchFunctionMode):
    """Skips torch.nn.init: on meta tensors it would import torch._dynamo, which takes more than a second."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def parameters_by_part(config: ModelConfig, vocabulary_size: int) -> dict[str, int]:
    """Number of parameters that training changes in embedding, layers and logits; a tied matrix is in the logits."""
    V, H, E = vocabulary_size, config.cell.hidden, config.embedding
    projection = E * H if config.tie_embeddings and E != H else 0
    parts = {
        "embedding": 0 if config.tie_embeddings else V * E,
        "layers": _sum_over_layers(config, V, partial(_weights, fixed=False)),
        "logits": projection + V * (E if config.tie_embeddings else H) + V,
    }
    return {part: config.members * count for part, count in parts.items()}


def count_parameters(config: ModelConfig, vocabulary_size: int) -> int:
    """The number of a model's parameters that training changes."""
    return sum(parameters_by_part(config, vocabulary_size).values())


def count_weights(config: ModelConfig, vocabulary_size: int) -> int:
    """The number of all weights of a model, including those that a cell fixes."""
    fixed_weights = config.members * _sum_over_layers(config, vocabulary_size, partial(_weights, fixed=True))
    return count_parameters(config, vocabulary_size) + fixed_weights


def _weights(program: Program, hidden: int, inputs: int, *, fixed: bool) -> int:
    """The number of weights of a layer that its cell fixes, or of all others."""
    return sum(math.prod(one.shape(hidden, inputs)) for one in program.parameters if one.fixed == fixed)


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """The parameters of a model, and the weights that a cell fixes."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights by name; CheckpointError where names, shapes or types are not the model's."""
    parameters = named_weights(model)
    for name in sorted(weights.keys() | parameters.keys()):
        found, own = (_described(tensors.get(name)) for tensors in (weights, parameters))
        if found != own:
            raise CheckpointError(
                f"weights {name}: found {found}; the model has {own}; use a checkpoint of the same model section"
            )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])


def _described(tensor: Tensor | None) -> str:
    return "none" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"
