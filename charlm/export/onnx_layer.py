"""One step of a recurrent layer as nodes of an ONNX graph, from the cell's program."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from charlm.cells.on_tensors import matrix
from charlm.cells.operations import OPERATIONS
from charlm.cells.program import STATIC, units, when
from charlm.layers import RecurrentLayers
from charlm.layers.reference import TensorProgram


class Nodes:
    """The nodes of a graph in the making, and the constants of it and of the graphs inside it.

    Names inside begin with a slash, which no input or output of the graph has.
    """

    def __init__(self) -> None:
        self.constants: list[Any] = []
        self._nodes: list[Any] = []
        self._count = 0

    def add(self, kind: str, inputs: Sequence[str], outputs: Sequence[str] | int = 1, **attributes: Any) -> list[str]:
        """Add a node of this kind; returns the names of its outputs, which are new if only their number is given."""
        from onnx import helper

        if isinstance(outputs, int):
            outputs = [self._new(kind.lower()) for _ in range(outputs)]
        self._nodes.append(helper.make_node(kind, list(inputs), list(outputs), **attributes))
        return list(outputs)

    def one(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output; returns its name."""
        return self.add(kind, inputs, **attributes)[0]

    def constant(self, value: Tensor | np.generic | np.ndarray[Any, Any]) -> str:
        """The name of a constant with this value."""
        from onnx import numpy_helper

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

    def __init__(self, layers: RecurrentLayers, layer: int, x: str, states: Sequence[str], nodes: Nodes) -> None:
        self.nodes, self.program = nodes, layers.program(layer)
        self.parameters = layers.layer_parameters(layer)
        self.hidden, self.inputs = layers.hidden_size, layers.layer_input_size(layer)
        self.when = when(self.program.nodes)
        self.x, self.states, self.zoneout = x, dict(zip(self.program.states, states, strict=True)), layers.zoneout
        self.known: dict[tuple[int, int], str] = {}
        self.split: dict[int, list[str]] = {}

    def new_states(self) -> list[str]:
        """The names of the states after the step."""
        return [self.zoned_out(*each) for each in zip(self.program.states, self.program.results, strict=True)]

    def zoned_out(self, state: str, place: int) -> str:
        """Zoneout (Krueger et al. 2017): the expected value of a unit."""
        new, old = self.value(place), self.states[state]
        if self.zoneout == 0 or state in self.program.internal:
            return new
        step = self.nodes.one("Mul", self.nodes.one("Sub", old, new), self.nodes.constant(np.float32(self.zoneout)))
        return self.nodes.one("Add", new, step)

    def value(self, place: int, count: int = 1) -> str:
        """The name of a value; of a single vector repeated for each of `count` if others have so many."""
        repeats = count if self.program.nodes[place].count == 1 and self.program.nodes[place].size != "" else 1
        if (place, repeats) not in self.known:
            if self.when[place] == STATIC:
                [value] = TensorProgram(self.program, [place], self.parameters)({})
                constant = torch.tensor(value) if isinstance(value, float) else value.repeat(repeats)
                self.known[place, repeats] = self.nodes.constant(constant)
            elif repeats > 1:
                self.known[place, repeats] = self.nodes.one("Concat", *[self.value(place)] * repeats, axis=-1)
            else:
                self.known[place, repeats] = self.computed(place)
        return self.known[place, repeats]

    def computed(self, place: int) -> str:
        node = self.program.nodes[place]
        match node.op:
            case "input":
                return self.x
            case "state":
                return self.states[node.name]
            case "product":
                weights = matrix(self.parameters[node.name], node.index)
                return self.nodes.one("MatMul", self.value(node.args[0]), self.nodes.constant(weights.t()))
            case "part":
                return self.parts(node.args[0])[node.index]
            case "normalize":
                return self.normalized(place)
        # A condition is a number wherever it is not that of `where`.
        args = [
            self.value(arg, node.count) if node.op == "where" and not turn else self.number(arg, node.count)
            for turn, arg in enumerate(node.args)
        ]
        return self.nodes.one(OPERATIONS[node.op].onnx or node.op.capitalize(), *args)

    def number(self, place: int, count: int) -> str:
        value = self.value(place, count)
        return self.nodes.one("Cast", value, to=1) if self.program.nodes[place].op == "greater" else value

    def parts(self, whole: int) -> list[str]:
        if whole not in self.split:
            count = self.program.nodes[whole].count
            lengths = self.nodes.constant(np.full(count, self.units(whole)))
            self.split[whole] = self.nodes.add("Split", [self.value(whole), lengths], count, axis=-1)
        return self.split[whole]

    def units(self, place: int) -> int:
        return units(self.program.nodes[place].size, self.hidden, self.inputs)

    def normalized(self, place: int) -> str:
        node, nodes, units = self.program.nodes[place], self.nodes, self.units(place)
        v_BGU = nodes.one("Reshape", self.value(node.args[0]), nodes.constant(np.array([-1, node.count, units])))
        if node.index == 0:
            y_BGU = nodes.one("LayerNormalization", v_BGU, nodes.constant(torch.ones(units)), epsilon=node.number)
        else:
            mean_BG1 = nodes.one("ReduceMean", nodes.one("Mul", v_BGU, v_BGU), nodes.constant(np.array([-1])))
            size_BG1 = nodes.one("Sqrt", nodes.one("Add", mean_BG1, nodes.constant(np.float32(node.number))))
            y_BGU = nodes.one("Div", v_BGU, size_BG1)
        return nodes.one("Reshape", y_BGU, nodes.constant(np.array([-1, node.count * units])))
