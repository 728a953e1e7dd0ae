"""A program on PyTorch's tensors: the value of each operation. This file alone of the folder imports torch."""

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from charlm.cells.passes import Product
from charlm.cells.program import Node, Program, ordered
from charlm.cells.split import Split
from charlm.cells.step import maximum, minimum

OPERATORS: dict[str, Callable[..., Any]] = {
    **{op: getattr(torch, op) for op in ("exp", "log", "tanh", "sigmoid", "relu", "sqrt")},
    "softplus": lambda v: -F.logsigmoid(-v),  # torch's softplus is not exact above its threshold
    **{"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "greater": operator.gt},
    **{"max": maximum, "min": minimum, "where": torch.where, "stop": torch.detach},
}
"""The operations that a program does unit by unit. A constant may be a float."""


class TensorProgram:
    """The values of a program's nodes `ends`, as a function of its leaves.

    Several vectors side by side are one tensor [..., count · units].

    program: products may have a summand, see `with_sums_in_products`. one_hot_size: V if the input is all one-hot
    vectors, [V, V], which are not given. linear: products with a bias.
    """

    def __init__(
        self,
        program: Program,
        ends: Iterable[int],
        parameters: Mapping[str, Tensor],
        *,
        one_hot_size: int = 0,
        linear: Callable[..., Tensor] = F.linear,
    ) -> None:
        self.ends, self.parameters = tuple(ends), parameters
        self.nodes = list(program.nodes)
        if one_hot_size:
            for place, node in enumerate(program.nodes):
                if node.op == "product" and program.nodes[node.args[0]].op == "input":
                    self.nodes[place] = replace(node, op="columns", args=node.args[1:])
        # The order decides in which order autograd adds gradients.
        self.order = ordered(self.ends, lambda place: reversed(self.nodes[place].args))
        self.rows = {parameter.name: max(parameter.stack, 1) * parameter.gates for parameter in program.parameters}
        self.one_hot_size, self.linear = one_hot_size, linear
        self.like = next(iter(parameters.values()))

    def __call__(self, leaves: Mapping[str, Any]) -> list[Any]:
        """The values, each [..., count · units]; of a constant a float.

        leaves: values by their operation: "input" [..., I], "state" and "given" by name, others by index.
        """
        values: dict[int, Any] = {}
        for place in self.order:
            node = self.nodes[place]
            args = [values[arg] for arg in node.args]
            if node.op not in OPERATORS:
                values[place] = self._other(node, args, leaves)
                continue
            if node.op == "where" and isinstance(args[1], float):
                args[1] = torch.tensor(args[1], dtype=self.like.dtype)  # torch.where of two numbers gives float32
            if node.count > 1 and node.op != "stop":
                pairs = zip(args, node.args, strict=True)
                args = [_repeated(value, self.nodes[arg], node.count) for value, arg in pairs]
            values[place] = OPERATORS[node.op](*args)
        return [values[place] for place in self.ends]

    def _other(self, node: Node, args: list[Any], leaves: Mapping[str, Any]) -> Any:
        """The value of a node that is no operation unit by unit."""
        match node.op:
            case "input" if self.one_hot_size:
                return torch.eye(self.one_hot_size, dtype=self.like.dtype, device=self.like.device)
            case "input":
                return leaves["input"]
            case "state" | "given":
                return leaves[node.op][node.name]
            case "window" | "static":
                return leaves[node.op][node.index]
            case "constant":
                return node.number
            case "vector":
                return self._vector(node)
            case "product":
                return self._product(node, *args)
            case "columns":
                columns = self._weights(node).t()
                return columns + args[0] if args else columns
            case "part":
                count = self.nodes[node.args[0]].count
                return args[0].chunk(count, dim=-1)[node.index]
            case "normalize":
                return normalized(args[0].unflatten(-1, (node.count, -1)), node).flatten(-2)
        raise AssertionError(node.op)

    def _product(self, node: Node, v: Tensor, added: Tensor | None = None) -> Tensor:
        """added + v Wᵀ, in the state's dtype: under autocast the product is bfloat16, but nothing after it."""
        weights, dtype = self._weights(node), self.like.dtype
        if added is None or added.dim() == 1:
            return self.linear(v, weights, added).to(dtype)
        if v.dim() == 2:
            return torch.addmm(added, v, weights.t()).to(dtype)
        return self.linear(v, weights).to(dtype) + added

    def _weights(self, node: Node) -> Tensor:
        weights = matrix(self.parameters, node)
        return weights.view_as(weights)  # so that under autocast gradients add up over the steps in float32

    def _vector(self, node: Node) -> Tensor:
        count, parameter = self.rows[node.name], self.parameters[node.name].flatten()
        if node.count == count:
            return parameter
        H = len(parameter) // count
        return parameter[node.index * H : (node.index + node.count) * H]


def values_before_loop(
    split: Split,
    rows: Tensor | None,
    parameters: Mapping[str, Tensor],
    *,
    input_size: int = 0,
    linear: Callable[..., Tensor] = F.linear,
) -> tuple[list[Tensor], list[Tensor]]:
    """The windows and vectors that a loop reads.

    rows: of the input; None: all one-hot vectors, of this size. linear: products with a bias.
    """
    before = TensorProgram(
        split.with_sums,
        (*split.windows, *split.vectors),
        parameters,
        one_hot_size=input_size if rows is None else 0,
        linear=linear,
    )
    values = before({"input": rows})
    return values[: len(split.windows)], values[len(split.windows) :]


def _repeated(value: Any, node: Node, count: int) -> Any:
    """A value with `count` vectors: one vector serves all."""
    if node.count == count or node.size == "":
        return value
    repeats = [1] * (value.dim() - 1)
    return value.repeat(*repeats, count)


def array_of(start: bytes) -> Tensor:
    """An initial value that is an array, flat, see `Start`."""
    return torch.frombuffer(bytearray(start), dtype=torch.float64)


def normalized(v: Tensor, node: Node) -> Tensor:
    """The vectors v [..., units] normalized as the node says."""
    if not node.is_rms:
        return torch.native_layer_norm(v, v.shape[-1:], None, None, node.number)[0]
    # torch's own rms_norm takes twice as many operators.
    norm = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    return v * (norm.square() / v.shape[-1] + node.number).rsqrt()


def matrix(parameters: Mapping[str, Tensor], node: Node | Product) -> Tensor:
    """The matrix by which a product multiplies."""
    weights = parameters[node.name]
    weights = weights[node.index] if weights.dim() == 3 else weights
    return weights.t() if node.transposed else weights
