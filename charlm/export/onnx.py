"""A model as an ONNX graph: ids and state → logits and the new state, for any number of steps and streams.

    ids [T, B] int64, h [L, B, H] …  →  Scan over T { embedding → layers }  →  logits [T, B, V], new_h [L, B, H] …

Inputs and outputs follow the order of the states; a name that is already used gets a final _. The body of the scan
computes the nodes of each layer's program (charlm/cells/program.py).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from charlm.cells.on_tensors import TensorProgram, matrix
from charlm.cells.operations import OPERATIONS
from charlm.cells.program import STATIC, ordered, units, when
from charlm.errors import CharlmError
from charlm.inference.trained import TrainedModel
from charlm.layers.backend import LayerForm
from charlm.model import CharLM

Input = str | Tensor | np.generic | np.ndarray[Any, Any]

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


def exported(trained: TrainedModel) -> tuple[bytes, str]:
    """The file, and how far its logits are from charlm's when onnxruntime runs it.

    CharlmError if onnx or onnxruntime is missing, or the model is too large for one file.
    """
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise CharlmError(f"onnx: {error.name or error} is not installed; pip install onnx onnxruntime") from None
    network = trained.on_cpu_in_float32().single_network
    size = 4 * sum(parameter.numel() for parameter in network.parameters())
    if size > _MOST_BYTES:
        raise CharlmError(f"onnx: the weights are {size:,} bytes; allowed: {_MOST_BYTES:,}; train a smaller model")
    model = onnx_model(network)
    names, _ = _names(network)
    initial = zip(names, network.layers.initial_state(1), strict=True)
    start = {name: state[:, 0].tolist() for name, state in initial}
    facts = trained.vocabulary.to_json() | {"records": trained.config.data.records, "start": start}
    onnx.helper.set_model_props(model, {"charlm": json.dumps(facts)})
    onnx.checker.check_model(model, full_check=True)
    data = model.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])

    def step(ids_TB: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        inputs = {name: tensor.numpy() for name, tensor in zip(names, state, strict=True)}
        logits, *last = session.run(None, {"ids": ids_TB.numpy(), **inputs})
        return torch.from_numpy(logits), tuple(map(torch.from_numpy, last))

    difference = check_agreement(network, step)
    return data, f"logits differ by {difference:.1e} at most"


@torch.inference_mode()
def onnx_model(network: CharLM) -> Any:
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
        features = nodes.one("MatMul", features, network.projection.weight.t())
    products = nodes.one("MatMul", features, network.decoder.weight.t())
    nodes.add("Add", [products, network.decoder.bias], ["logits"])

    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["T", "B"])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["T", "B", network.vocabulary_size])
    graph = helper.make_graph(
        nodes.take_nodes(), "charlm", [ids, *states(names)], [logits, *states(new)], nodes.constants
    )
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(graph, producer_name="charlm", ir_version=_IR_VERSION, opset_imports=[opset])


def _names(network: CharLM) -> tuple[list[str], list[str]]:
    """The names of the states before and after a window, each another one."""
    names, states = ["ids", "logits"], network.layers.state_names
    for name in (*states, *(f"new_{state}" for state in states)):
        while name in names:
            name += "_"
        names.append(name)
    count = len(states)
    return names[2 : 2 + count], names[2 + count :]


def _scan_body(network: CharLM, nodes: "Nodes", states: list[str]) -> tuple[list[Any], list[str]]:
    """One step for B streams: its nodes, and the names of the new states and of the outputs [B, H]."""
    layers = network.layers
    if network.reset_id is not None:
        begins_B = nodes.one("Equal", "/step/ids", np.int64(network.reset_id))
        begins_B1 = nodes.one("Unsqueeze", begins_B, np.array([1]))
        initial = zip(states, layers.initial_state(1), strict=True)
        states = [nodes.one("Where", begins_B1, start_L1H, name) for name, start_L1H in initial]
    if network.embedding is None:
        y = nodes.one("OneHot", "/step/ids", np.int64(network.vocabulary_size), np.array([0, 1], np.float32))
    else:
        y = nodes.one("Gather", network.embedding.weight, "/step/ids")
    ones, axis = np.ones(layers.num_layers, np.int64), np.array([0])
    parts = [nodes.add("Split", [name, ones], layers.num_layers, axis=0) for name in states]
    last: list[list[str]] = []
    forms = layers.evaluation_forms()
    for layer, layer_parts in enumerate(zip(*parts, strict=True)):
        state = [nodes.one("Squeeze", part, axis) for part in layer_parts]
        new = OnnxLayer(forms[layer], layers.layer_parameters(layer), y, state, nodes).new_states()
        y = nodes.one("Add", y, new[0]) if layer and layers.residual else new[0]
        last.append([nodes.one("Unsqueeze", name, axis) for name in new])
    joined = [nodes.add("Concat", tensors, axis=0)[0] for tensors in zip(*last, strict=True)]
    output = nodes.one("Identity", y)  # a graph's outputs are distinct
    return nodes.take_nodes(), [*joined, output]


@torch.inference_mode()
def check_agreement(network: CharLM, step: Callable[..., tuple[Tensor, tuple[Tensor, ...]]]) -> float:
    """The largest difference between the logits of step(ids_TB, state) and the network's, over carried windows.

    CharlmError if a difference of logits or states is above TOLERANCE, or not a number.
    """
    generator = torch.Generator().manual_seed(1)
    state = network.layers.initial_state(_STREAMS)
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
                    f"onnx: its logits or states differ from charlm's by {difference:.2g}; allowed: {TOLERANCE:g}; "
                    "nothing was written; please report this with the run's config.yaml"
                )
        largest = max(largest, float((exported_logits - logits).abs().max()))
    return largest


class Nodes:
    """The nodes of a graph under construction, and the constants of it and of its inner graphs.

    A node's input is the name of a value, or a constant. Names begin with a slash, which no input or output of the
    graph has.
    """

    def __init__(self) -> None:
        self.constants: list[Any] = []
        self._nodes: list[Any] = []
        self._count = 0

    def add(self, kind: str, inputs: Sequence[Input], outputs: list[str] | int = 1, **attributes: Any) -> list[str]:
        """Add a node of this kind; returns the names of its outputs, which are new if only their number is given."""
        from onnx import helper

        if isinstance(outputs, int):
            outputs = [self._new(kind.lower()) for _ in range(outputs)]
        self._nodes.append(helper.make_node(kind, [*map(self.named, inputs)], outputs, **attributes))
        return outputs

    def one(self, kind: str, *inputs: Input, **attributes: Any) -> str:
        """Add a node with one output; returns its name."""
        return self.add(kind, inputs, **attributes)[0]

    def named(self, value: Input) -> str:
        """The name of a value; a constant gets one."""
        from onnx import numpy_helper

        if isinstance(value, str):
            return value
        array = value.detach().contiguous().numpy() if isinstance(value, Tensor) else np.asarray(value)
        self.constants.append(numpy_helper.from_array(array, self._new("constant")))
        return self.constants[-1].name

    def take_nodes(self) -> list[Any]:
        """The nodes since the last call."""
        nodes, self._nodes = self._nodes, []
        return nodes

    def _new(self, word: str) -> str:
        self._count += 1
        return f"/{word}_{self._count}"


class OnnxLayer:
    """One step of a layer. Values are [B, count · units]; those that depend on parameters only are constants."""

    def __init__(
        self, form: LayerForm, parameters: Mapping[str, Tensor], x: str, states: Sequence[str], nodes: Nodes
    ) -> None:
        program, self.hidden, self.inputs = form
        self.nodes, self.program, self.parameters = nodes, program, parameters
        self.x, self.states = x, dict(zip(program.states, states, strict=True))
        stages = when(program.nodes)
        # No recursion: a step may have thousands of operations.
        self.order = ordered(
            program.results, lambda place: () if stages[place] == STATIC else program.nodes[place].args
        )
        static = [place for place in self.order if stages[place] == STATIC]
        values = TensorProgram(program, static, parameters)({})
        self.static = dict(zip(static, values, strict=True))
        self.known: dict[tuple[int, int], str] = {}
        self.split: dict[int, list[str]] = {}

    def new_states(self) -> list[str]:
        """The names of the states after the step."""
        for place in self.order:
            if place not in self.static:
                self.value(place)
        return [self.value(place) for place in self.program.results]

    def value(self, place: int, count: int = 1) -> str:
        """The name of a value; of a single vector repeated for each of `count` if others have so many."""
        node = self.program.nodes[place]
        if node.count > 1 or node.size == "":
            count = 1
        if (place, count) not in self.known:
            if place in self.static:
                value = self.static[place]
                name = self.nodes.named(torch.tensor(value) if isinstance(value, float) else value.repeat(count))
            elif count > 1:
                name = self.nodes.one("Concat", *[self.value(place)] * count, axis=-1)
            else:
                name = self.computed(place)
            self.known[place, count] = name
        return self.known[place, count]

    def computed(self, place: int) -> str:
        node = self.program.nodes[place]
        match node.op:
            case "input":
                return self.x
            case "state":
                return self.states[node.name]
            case "product":
                weights = matrix(self.parameters, node)
                return self.nodes.one("MatMul", self.value(node.args[0]), weights.t())
            case "part":
                return self.parts(node.args[0])[node.index]
            case "normalize":
                return self.normalized(place)
        args = []
        for turn, arg in enumerate(node.args):
            value, is_condition = self.value(arg, node.count), node.op == "where" and turn == 0
            if self.program.nodes[arg].op == "greater" and not is_condition:
                value = self.nodes.one("Cast", value, to=1)
            args.append(value)
        return self.nodes.one(OPERATIONS[node.op].onnx or node.op.capitalize(), *args)

    def parts(self, whole: int) -> list[str]:
        if whole not in self.split:
            count = self.program.nodes[whole].count
            lengths = np.full(count, self.units(whole))
            self.split[whole] = self.nodes.add("Split", [self.value(whole), lengths], count, axis=-1)
        return self.split[whole]

    def units(self, place: int) -> int:
        return units(self.program.nodes[place].size, self.hidden, self.inputs)

    def normalized(self, place: int) -> str:
        node, nodes, units = self.program.nodes[place], self.nodes, self.units(place)
        v_BGU = nodes.one("Reshape", self.value(node.args[0]), np.array([-1, node.count, units]))
        if not node.is_rms:
            y_BGU = nodes.one("LayerNormalization", v_BGU, torch.ones(units), epsilon=node.number)
        else:
            mean_BG1 = nodes.one("ReduceMean", nodes.one("Mul", v_BGU, v_BGU), np.array([-1]))
            size_BG1 = nodes.one("Sqrt", nodes.one("Add", mean_BG1, np.float32(node.number)))
            y_BGU = nodes.one("Div", v_BGU, size_BG1)
        return nodes.one("Reshape", y_BGU, np.array([-1, node.count * units]))
