"""A model as an ONNX graph: ids and state → logits and the new state, for any number of steps and streams.

    ids [T, B] int64, h [L, B, H] …  →  Scan over T { embedding → layers }  →  logits [T, B, V], new_h [L, B, H] …

Inputs and outputs are in the order of the states; a name that another one has ends with _.
The body of the scan computes the nodes of each layer's program (charlm/cells/program.py).
"""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from charlm.errors import CharlmError
from charlm.export.onnx_layer import Nodes, OnnxLayer
from charlm.inference.trained import TrainedModel
from charlm.model import CharLM

OPSET = 18
_IR_VERSION = 8
"""The first with this opset, which old runtimes read too."""
_MOST_BYTES = 2**31 - 2**20
"""Largest file of protobuf, less what is not weights."""

TOLERANCE = 1e-4
"""Largest difference of logits and states; relative where they are larger than 1."""
_STREAMS = 3
_STEPS = (40, 1, 7)
"""Windows that are compared, with the state carried from one to the next."""


def onnx_file(trained: TrainedModel) -> tuple[bytes, str]:
    """The file, and how far its logits are from charlm's when onnxruntime runs it.

    CharlmError if onnx or onnxruntime is missing, or the model is too large for one file.
    """
    onnx, runtime = _packages()
    network = trained.on_cpu_in_float32().network.first_member("export")
    size = 4 * trained.parameters
    if size > _MOST_BYTES:
        raise CharlmError(f"onnx: the weights are {size:,} bytes; allowed: {_MOST_BYTES:,}; train a smaller model")
    model = build_model(network)
    onnx.helper.set_model_props(
        model, {"charlm": json.dumps(trained.vocabulary.to_json() | {"unit": trained.config.data.unit})}
    )
    onnx.checker.check_model(model, full_check=True)
    data = model.SerializeToString()
    session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    names, _ = _names(network)

    def step(ids_TB: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        inputs = {name: tensor.numpy() for name, tensor in zip(names, state, strict=True)}
        logits, *last = session.run(None, {"ids": ids_TB.numpy(), **inputs})
        return torch.from_numpy(logits), tuple(map(torch.from_numpy, last))

    difference = check_agreement(network, step, "onnx")
    return data, f"logits differ by {difference:.1e} at most"


def _packages() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise CharlmError(f"onnx: {error.name or error} is not installed; pip install onnx onnxruntime") from None
    return onnx, onnxruntime


@torch.inference_mode()
def build_model(network: CharLM) -> Any:
    """The ONNX model of a network on the CPU."""
    from onnx import TensorProto, helper

    layers = network.layers
    shape = [layers.num_layers, "B", layers.hidden_size]

    def states(names: list[str]) -> list[Any]:
        return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names]

    nodes, (names, new) = Nodes(), _names(network)
    in_step = [f"/step/{name}" for name in names]
    body, outputs = _scan_body(network, nodes, in_step)
    ids_B = helper.make_tensor_value_info("/step/ids", TensorProto.INT64, ["B"])
    output_BH = helper.make_tensor_value_info(outputs[-1], TensorProto.FLOAT, ["B", layers.hidden_size])
    step = helper.make_graph(body, "step", [*states(in_step), ids_B], [*states(outputs[:-1]), output_BH])
    nodes.add("Scan", [*names, "ids"], [*new, "/outputs"], body=step, num_scan_inputs=1)
    features = "/outputs"
    if network.projection is not None:
        features = nodes.one("MatMul", features, nodes.constant(network.projection.weight.t()))
    weight = nodes.constant(network.decoder.weight.t())
    nodes.add("MatMul", [features, weight], ["/products"])
    nodes.add("Add", ["/products", nodes.constant(network.decoder.bias)], ["logits"])

    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["T", "B"])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["T", "B", network.vocabulary_size])
    graph = helper.make_graph(
        nodes.take_nodes(), "charlm", [ids, *states(names)], [logits, *states(new)], nodes.constants
    )
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(graph, producer_name="charlm", ir_version=_IR_VERSION, opset_imports=[opset])


def _names(network: CharLM) -> tuple[list[str], list[str]]:
    """The names of the states before and after a window, each another one."""
    used = {"ids", "logits"}

    def another(name: str) -> str:
        while name in used:
            name += "_"
        used.add(name)
        return name

    states = network.layers.state_names
    return [another(name) for name in states], [another(f"new_{name}") for name in states]


def _scan_body(network: CharLM, nodes: Nodes, states: list[str]) -> tuple[list[Any], list[str]]:
    """One step for B streams: its nodes, and the names of the new states and of the outputs [B, H]."""
    layers = network.layers
    if network.reset_id is not None:
        is_begin = nodes.one("Equal", "/step/ids", nodes.constant(np.int64(network.reset_id)))
        carry_B1 = nodes.one("Cast", nodes.one("Not", is_begin), to=1)
        carry_B1 = nodes.one("Unsqueeze", carry_B1, nodes.constant(np.array([1])))
        states = [nodes.one("Mul", name, carry_B1) for name in states]
    if network.embedding is None:
        depth, values = nodes.constant(np.int64(network.vocabulary_size)), nodes.constant(np.array([0, 1], np.float32))
        y = nodes.one("OneHot", "/step/ids", depth, values)
    else:
        y = nodes.one("Gather", nodes.constant(network.embedding.weight), "/step/ids")
    ones, axis = nodes.constant(np.ones(layers.num_layers, np.int64)), nodes.constant(np.array([0]))
    of_layers: list[list[str]] = [[] for _ in range(layers.num_layers)]
    for name in states:
        tensors = nodes.add("Split", [name, ones], layers.num_layers, axis=0)
        for layer_state, tensor in zip(of_layers, tensors, strict=True):
            layer_state.append(nodes.one("Squeeze", tensor, axis))
    last: list[list[str]] = []
    for layer, layer_state in enumerate(of_layers):
        new = OnnxLayer(layers, layer, y, layer_state, nodes).new_states()
        y = nodes.one("Add", y, new[0]) if layer and layers.residual else new[0]
        last.append([nodes.one("Unsqueeze", name, axis) for name in new])
    joined = [nodes.add("Concat", tensors, axis=0)[0] for tensors in zip(*last, strict=True)]
    output = nodes.one("Identity", y)  # a graph's outputs are distinct
    return nodes.take_nodes(), [*joined, output]


@torch.inference_mode()
def check_agreement(network: CharLM, step: Callable[..., tuple[Tensor, tuple[Tensor, ...]]], name: str) -> float:
    """The largest difference between the logits of step(ids_TB, state) and the network's, over carried windows.

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
