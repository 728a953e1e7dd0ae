"""A program on PyTorch's tensors: the value of each operation. This file alone of the folder imports torch."""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from charlm.cells.passes import Product
from charlm.cells.program import Node
from charlm.cells.step import maximum, minimum

OPERATORS: dict[str, Callable[..., Any]] = {
    **{op: getattr(torch, op) for op in ("exp", "log", "tanh", "sigmoid", "relu", "sqrt")},
    "softplus": lambda v: -logsigmoid(-v),  # torch's softplus is not exact above its threshold
    **{"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "greater": operator.gt},
    **{"max": maximum, "min": minimum, "where": torch.where, "stop": torch.detach},
}
"""The operations that a program does unit by unit. A constant may be a float."""


def evaluate(
    nodes: Sequence[Node], order: Iterable[int], leaf: Callable[[int, list[Any]], Any], dtype: torch.dtype
) -> dict[int, Any]:
    """The values of nodes, by place. Several vectors side by side are one tensor [..., count · units].

    order: each node after its arguments, see `ordered`. leaf(place, args): the value of any other node than a function
    unit by unit or a part: of leaves, products and normalizations.
    """
    values: dict[int, Any] = {}
    for place in order:
        node = nodes[place]
        args = [values[arg] for arg in node.args]
        if node.op == "part":
            count = nodes[node.args[0]].count
            values[place] = args[0].chunk(count, dim=-1)[node.index]
        elif node.op not in OPERATORS:
            values[place] = leaf(place, args)
        else:
            if node.op == "where" and isinstance(args[1], float):
                args[1] = torch.tensor(args[1], dtype=dtype)  # torch.where of two numbers gives float32
            if node.count > 1 and node.op != "stop":
                pairs = zip(args, node.args, strict=True)
                args = [_repeated(value, nodes[arg], node.count) for value, arg in pairs]
            values[place] = OPERATORS[node.op](*args)
    return values


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
    """The vectors v [..., units] normalized as the node says.

    (v − mean) / √(var v + ε) or, without a mean, v / √(mean v² + ε).
    """
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
