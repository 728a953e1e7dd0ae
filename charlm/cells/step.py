"""What a step calls: parameters and functions, on symbols and on tensors."""

import functools
from typing import Any

from charlm.cells.program import EPSILON, Parameter, Size


class Parameters:
    """A layer's parameters, as a step uses them. The first use of a name declares the parameter."""

    square: bool
    """Whether the layer has as many inputs as hidden units, so that x and the states can be added."""

    def product(
        self,
        name: str,
        operand: Any,
        gates: int = 1,
        *,
        index: int | None = None,
        of: int = 0,
        size: Size = "H",
        start: Any = None,
    ) -> Any:
        """W v: a matrix times a vector. Several gates: the vectors of each, side by side.

        index, of: the parameter is a stack of matrices, and this is one of them. size: the result's units, "H", "I"
        for as many as the input has, or a number. start: the initial matrix, or one for each gate: "identity",
        "orthogonal", or a number for all entries; None: drawn at random.
        """
        return self._matrix(Parameter(name, gates, size, stack=of), operand, index, start)

    def vector(
        self,
        name: str,
        gates: int = 1,
        *,
        start: Any = None,
        bound: float | None = None,
        index: int | None = None,
        of: int = 0,
        size: Size = "H",
    ) -> Any:
        """A parameter with a number for each unit; several gates: one for each, side by side.

        start: the initial value, or one for each gate; None: drawn at random, from U(±bound) or like a bias. of: the
        parameter has a first dimension of this length; index: use this row of it, else all.
        """
        return self._vector(Parameter(name, gates, size, stack=of, bound=bound), index, start)

    def _matrix(self, parameter: Parameter, operand: Any, index: int | None, start: Any) -> Any:
        """`product`; the operand decides the number of columns."""
        raise NotImplementedError

    def _vector(self, parameter: Parameter, index: int | None, start: Any) -> Any:
        """`vector`."""
        raise NotImplementedError

    def note(self, **gates: Any) -> None:
        """Name gates and candidates, for people who watch a model at work."""

    def show(self, **states: Any) -> None:
        """Name values for people to watch besides a state, or in its place."""

    def linear(self, x: Any, h: Any, gates: int = 1, start: tuple[float | None, ...] | None = None) -> Any:
        """W x + b + R h + b', with torch.nn's names of the parameters. start: initial value of b + b'."""
        other = start and tuple(None if one is None else 0.0 for one in start)
        biases = self.vector("bias_ih", gates, start=start) + self.vector("bias_hh", gates, start=other)
        return self.product("weight_ih", x, gates) + biases + self.product("weight_hh", h, gates)

    def layer_norm(self, value: Any, name: str, of: int = 0, start: Any = 0.0) -> Any:
        """Layer normalization (Ba et al. 2016) of each vector over its units; of: how many, 0 for one alone."""
        gain = self.vector(f"weight_ln_{name}", of=of, start=1.0)
        return normalize(value) * gain + self.vector(f"bias_ln_{name}", of=of, start=start)


def sigmoid(v: Any) -> Any:
    """1 / (1 + e^−v)"""
    return v.sigmoid()


def tanh(v: Any) -> Any:
    return v.tanh()


def exp(v: Any) -> Any:
    return v.exp()


def log(v: Any) -> Any:
    return v.log()


def sqrt(v: Any) -> Any:
    return v.sqrt()


def relu(v: Any) -> Any:
    """max(v, 0)"""
    return v.relu()


def log_sigmoid(v: Any) -> Any:
    """log σ(v)"""
    return -v.tracing.apply("softplus", -v) if hasattr(v, "tracing") else _of_tensors().logsigmoid(v)


def softplus(v: Any) -> Any:
    """log(1 + eᵛ)"""
    return -log_sigmoid(-v)


def maximum(a: Any, b: Any) -> Any:
    """The greater of two vectors, or of a vector and a number."""
    return _extreme("maximum", a, b)


def minimum(a: Any, b: Any) -> Any:
    """The smaller of two vectors, or of a vector and a number."""
    return _extreme("minimum", a, b)


def where(condition: Any, a: Any, b: Any) -> Any:
    """a where the condition holds, else b; as in where(x > 0, x, 0.1 * x)."""
    if hasattr(condition, "tracing"):
        return condition.tracing.apply("where", condition, a, b)
    import torch

    return torch.where(condition, a, b)


def stop_gradient(v: Any) -> Any:
    """v, through which no gradient flows."""
    return v.tracing.over_units("stop", v) if hasattr(v, "tracing") else v.detach()


def normalize(v: Any, epsilon: float = EPSILON) -> Any:
    """(v − mean v) / √(var v + ε) over the units of each vector."""
    if hasattr(v, "tracing"):
        return v.tracing.over_units("normalize", v, epsilon)
    return _of_tensors().layer_norm(v, v.shape[-1:], eps=epsilon)


def rms_normalize(v: Any, epsilon: float = EPSILON) -> Any:
    """v / √(mean v² + ε) over the units of each vector."""
    if hasattr(v, "tracing"):
        return v.tracing.over_units("normalize", v, epsilon, 1)
    return _of_tensors().rms_norm(v, v.shape[-1:], eps=epsilon)


def _extreme(name: str, a: Any, b: Any) -> Any:
    if isinstance(a, int | float):
        a, b = b, a
    if isinstance(b, int | float):
        return a.clamp(min=b) if name == "maximum" else a.clamp(max=b)
    return getattr(a, name)(b)


@functools.cache
def _of_tensors() -> Any:
    """torch.nn.functional, imported only where a step runs on tensors or is traced: reading a config must be fast."""
    import torch.nn.functional

    return torch.nn.functional
