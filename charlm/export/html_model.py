"""A model as JSON for the page that runs it (charlm/web/model), and what int8 weights cost it.

Each layer has the program of its cell, which the page interprets.

An int8 matrix has one scale per row: its weights are scale · q, with whole numbers q from −127 to 127. Vectors, such as
biases, stay float32.
"""

import base64
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from charlm.cells.javascript import program_json
from charlm.data.vocabulary import Ids
from charlm.export.check_export import vocabulary_json
from charlm.inference import TrainedModel
from charlm.inference.evaluation import evaluate
from charlm.inference.sampling import prompt_ids
from charlm.layers import RecurrentLayers
from charlm.model import CharLM
from charlm.web.page import packed

KERNEL = files("charlm.web") / "model" / "kernel.wasm"
LARGEST = 127
_CLIPPED = np.linspace(1.0, 0.95, 26)
"""Shares of a row's largest weight to try as the largest int8 value; larger weights are clipped. More clipping costs
more than finer steps gain, except in rows of tens of thousands of weights."""


class Int8(NamedTuple):
    """A matrix as whole numbers [rows, columns] times scales [rows]."""

    values: npt.NDArray[np.int8]
    scales: npt.NDArray[np.float32]

    @property
    def dense(self) -> npt.NDArray[np.float32]:
        return self.values * self.scales[:, None]


def int8_matrix(weights: npt.NDArray[np.float32]) -> Int8:
    """The matrix with the scale of each row that leaves the least squared error."""
    largest = np.abs(weights).max(axis=1)
    values, scales = np.zeros(weights.shape, np.int8), np.ones(len(weights), np.float32)
    smallest_error = np.full(len(weights), np.inf)
    for share in _CLIPPED:
        candidate = np.where(largest > 0, largest * share / LARGEST, 1).astype(np.float32)
        rounded = np.rint(weights / candidate[:, None]).clip(-LARGEST, LARGEST)
        error = np.square(rounded * candidate[:, None] - weights).sum(axis=1)
        better = error < smallest_error
        values[better], scales[better], smallest_error[better] = rounded[better], candidate[better], error[better]
    return Int8(values, scales)


def packed_model(trained: TrainedModel, *, int8: bool) -> dict[str, Any]:
    """The keys "model" and "vocabulary" of the page's JSON; int8: matrices are int8, not float32."""
    network = trained.on_cpu_in_float32().network.first_member("export")
    layers, embedding = network.layers, network.embedding
    tied = embedding is not None and embedding.weight is network.decoder.weight
    model = {
        "hidden": layers.hidden_size,
        "zoneout": layers.zoneout,
        "residual": layers.residual,
        "begins": network.reset_id,
        "programs": [
            program_json(layers.program(layer), layers.hidden_size, layers.layer_input_size(layer))
            for layer in range(min(2, layers.num_layers))  # all layers above the first have the same
        ],
        "layers": [_parameters(layers, layer, int8) for layer in range(layers.num_layers)],
        "embedding": None if embedding is None or tied else _matrix(embedding.weight, int8),
        "tied": tied,
        "projection": None if network.projection is None else _matrix(network.projection.weight, int8),
        "output": _matrix(network.decoder.weight, int8),
        "outputBias": packed(network.decoder.bias.detach().numpy()),
        "kernel": base64.b64encode(KERNEL.read_bytes()).decode("ascii"),
    }
    first, *_ = prompt_ids(network, trained.vocabulary, "")
    vocabulary = vocabulary_json(trained) | {"begins": network.reset_id, "firstRead": first}
    return {"model": model, "vocabulary": vocabulary}


def html_nats(trained: TrainedModel, ids: Ids, *, int8: bool) -> float:
    """Nats per character of these ids with the page's weights, computed by charlm in float32."""
    network = trained.on_cpu_in_float32().network.first_member("export")
    if int8:
        round_to_int8(network)
    return evaluate(network, ids, torch.device("cpu")).nats_per_char


@torch.no_grad()
def round_to_int8(network: CharLM) -> None:
    """Replace the weights by those that int8 matrices stand for."""
    layers = network.layers
    matrices = [network.decoder.weight] + ([] if network.projection is None else [network.projection.weight])
    if network.embedding is not None and network.embedding.weight is not network.decoder.weight:
        matrices.append(network.embedding.weight)
    for layer in range(layers.num_layers):
        declared = zip(layers.program(layer).parameters, layers.layer_parameters(layer).values(), strict=True)
        matrices += [tensor for parameter, tensor in declared if parameter.columns != ""]
    for matrix in matrices:
        dense = int8_matrix(matrix.flatten(end_dim=-2).numpy()).dense
        matrix.copy_(torch.from_numpy(dense).view_as(matrix))


def _parameters(layers: RecurrentLayers, layer: int, int8: bool) -> dict[str, Any]:
    """A layer's parameters by name: matrices, lists of them, or flat vectors."""
    parameters: dict[str, Any] = {}
    for declared, tensor in zip(layers.program(layer).parameters, layers.layer_parameters(layer).values(), strict=True):
        if declared.columns == "":
            parameters[declared.name] = packed(tensor.detach().numpy())
        elif declared.stack:
            parameters[declared.name] = [_matrix(each, int8) for each in tensor]
        else:
            parameters[declared.name] = _matrix(tensor, int8)
    return parameters


def _matrix(tensor: Tensor, int8: bool) -> dict[str, Any]:
    weights = tensor.detach().numpy()
    rows, columns = weights.shape
    values, scales = int8_matrix(weights) if int8 else (weights, None)
    return {
        "rows": rows,
        "columns": columns,
        "values": packed(values),
        "scales": None if scales is None else packed(scales),
    }
