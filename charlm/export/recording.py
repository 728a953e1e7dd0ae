"""PyTorch's operators, recorded as the nodes of an ONNX graph.

    nodes = Nodes()
    x = Recorded(nodes, "x", torch.zeros(2, 3))
    torch.tanh(x) + 1      # records Tanh and Add

Each recorded tensor also has an example, with which PyTorch computes shapes. An operator between tensors that are not
recorded is computed now, and its result becomes a constant.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from charlm.errors import ExportError


class Nodes:
    """The nodes of a graph in the making, and the constants of it and of the graphs inside it."""

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

    def constant(self, value: Tensor | np.generic | np.ndarray[Any, Any]) -> str:
        """The name of a constant with this value."""
        from onnx import numpy_helper

        array = value.detach().contiguous().numpy() if isinstance(value, Tensor) else np.asarray(value)
        self.constants.append(numpy_helper.from_array(array, self._new("constant")))
        return self.constants[-1].name

    def taken(self) -> list[Any]:
        """The nodes since the last call."""
        nodes, self._nodes = self._nodes, []
        return nodes

    def _new(self, word: str) -> str:
        self._count += 1
        return f"{word}_{self._count}"


class Recorded:
    """A tensor of the graph: each operator of PyTorch on it adds nodes."""

    def __init__(self, nodes: Nodes, name: str, example: Tensor) -> None:
        self.nodes, self.name, self.example = nodes, name, example

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        record = _OPERATORS.get(func.__name__)
        if record is None:
            raise ExportError(f"onnx: this export does not know PyTorch's {func.__name__}; export --to torch")
        nodes = next(value.nodes for value in _flat((args, kwargs)) if isinstance(value, Recorded))
        example = func(*_examples(args), **_examples(kwargs))
        names = record(nodes, example, *args, **kwargs)
        if isinstance(example, Tensor):
            return cls(nodes, names[0], example)
        return tuple(cls(nodes, name, part) for name, part in zip(names, example, strict=True))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """The method of tensors with this name, as a function of torch."""
        if name.startswith("__"):
            raise AttributeError(name)
        method = getattr(Tensor, name)
        return lambda *args, **kwargs: self.__torch_function__(method, (), (self, *args), kwargs)

    @property
    def shape(self) -> torch.Size:
        return self.example.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.example.dtype

    def __len__(self) -> int:
        return len(self.example)

    def to(self, dtype: torch.dtype) -> "Recorded":
        """Itself: everything is float32."""
        assert dtype == self.dtype, dtype
        return self

    def __add__(self, other: Any) -> "Recorded":
        return self.add(other)

    def __sub__(self, other: Any) -> "Recorded":
        return self.sub(other)

    def __mul__(self, other: Any) -> "Recorded":
        return self.mul(other)

    def __truediv__(self, other: Any) -> "Recorded":
        return self.div(other)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: Any) -> "Recorded":
        return (self * -1.0) + other


def _flat(value: Any) -> Iterator[Any]:
    """The values in nested lists, tuples and mappings."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from _flat(each)
    else:
        yield value


def _examples(value: Any) -> Any:
    """The value with examples in place of what is recorded."""
    if isinstance(value, Recorded):
        return value.example
    if isinstance(value, dict):
        return {key: _examples(each) for key, each in value.items()}
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return type(value)(map(_examples, value))
    return value


# What each operator adds: (nodes, its example result, its arguments) → the names of its results.


def _name(nodes: Nodes, value: Any) -> str:
    if isinstance(value, Recorded):
        return value.name
    return nodes.constant(value if isinstance(value, Tensor) else np.float32(value))


def _node(nodes: Nodes, kind: str, *values: Any, **attributes: Any) -> Recorded:
    """One node with one result, for use by another; its example is not needed."""
    [name] = nodes.add(kind, [_name(nodes, value) for value in values], **attributes)
    return Recorded(nodes, name, torch.empty(0))


def _plain(kind: str) -> Callable[..., list[str]]:
    """The node that does the same."""
    return lambda nodes, example, *values: [_node(nodes, kind, *values).name]


def _linear(nodes: Nodes, example: Tensor, x: Any, weight: Tensor, bias: Any = None) -> list[str]:
    product = _node(nodes, "MatMul", x, weight.t())
    return [(product if bias is None else _node(nodes, "Add", product, bias)).name]


def _addmm(nodes: Nodes, example: Tensor, a: Any, x: Any, weight: Any) -> list[str]:
    return [_node(nodes, "Add", a, _node(nodes, "MatMul", x, weight)).name]


def _addcmul(nodes: Nodes, example: Tensor, a: Any, b: Any, c: Any) -> list[str]:
    return [_node(nodes, "Add", a, _node(nodes, "Mul", b, c)).name]


def _lerp(nodes: Nodes, example: Tensor, start: Any, end: Any, weight: Any) -> list[str]:
    return _addcmul(nodes, example, start, _node(nodes, "Sub", end, start), weight)


def _log_sigmoid(nodes: Nodes, example: Tensor, x: Any) -> list[str]:
    return [_node(nodes, "Neg", _node(nodes, "Softplus", _node(nodes, "Neg", x))).name]


def _clamp(nodes: Nodes, example: Tensor, x: Any, *, min: float) -> list[str]:
    return [_node(nodes, "Max", x, min).name]


def _layer_norm(
    nodes: Nodes,
    example: Tensor,
    x: Any,
    normalized_shape: Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> list[str]:
    parameters = [torch.ones(*normalized_shape) if weight is None else weight, *([] if bias is None else [bias])]
    return [_node(nodes, "LayerNormalization", x, *parameters, axis=-len(normalized_shape), epsilon=eps).name]


def _split(nodes: Nodes, example: Sequence[Tensor], x: Any, sizes: Any, dim: int = 0) -> list[str]:
    """`chunk` and `split`: the example's parts have the sizes."""
    lengths = nodes.constant(np.array([part.shape[dim] for part in example]))
    return nodes.add("Split", [_name(nodes, x), lengths], len(example), axis=dim)


def _unbind(nodes: Nodes, example: Sequence[Tensor], x: Any, dim: int = 0) -> list[str]:
    ones, axis = nodes.constant(np.ones(len(example), np.int64)), nodes.constant(np.array([dim]))
    parts = nodes.add("Split", [_name(nodes, x), ones], len(example), axis=dim)
    return [nodes.add("Squeeze", [part, axis])[0] for part in parts]


def _stack(nodes: Nodes, example: Tensor, values: Sequence[Any], dim: int = 0) -> list[str]:
    axis = nodes.constant(np.array([dim]))
    parts = [nodes.add("Unsqueeze", [_name(nodes, value), axis])[0] for value in values]
    return nodes.add("Concat", parts, axis=dim)


def _reshape(nodes: Nodes, example: Tensor, x: Any, *_: Any) -> list[str]:
    """`flatten` and `unflatten` behind the first dimension, the streams, whose number stays open."""
    shape = nodes.constant(np.array([0, *example.shape[1:]]))
    return nodes.add("Reshape", [_name(nodes, x), shape])


_OPERATORS: dict[str, Callable[..., list[str]]] = {
    **{name: _plain(name.capitalize()) for name in ("add", "sub", "mul", "div", "sigmoid", "tanh", "relu", "exp")},
    "maximum": _plain("Max"),
    "linear": _linear,
    "addmm": _addmm,
    "addcmul": _addcmul,
    "lerp": _lerp,
    "log_sigmoid": _log_sigmoid,
    "clamp": _clamp,
    "layer_norm": _layer_norm,
    "chunk": _split,
    "split": _split,
    "unbind": _unbind,
    "stack": _stack,
    "flatten": _reshape,
    "unflatten": _reshape,
}
