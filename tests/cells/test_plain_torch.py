"""Cells as someone writes them who knows PyTorch and nothing else of charlm, and random cells."""

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from charlm.cells import (  # noqa: F401 (expressions use them)
    Cell,
    exp,
    log,
    log_sigmoid,
    maximum,
    minimum,
    normalize,
    relu,
    sigmoid,
    softplus,
    sqrt,
    stop_gradient,
    tanh,
    where,
)
from charlm.cells.cell import trace
from charlm.cells.program import scalarized
from charlm.cells.symbols import FUNCTIONS as TORCH_FUNCTIONS
from charlm.cells.symbols import Condition, Value
from charlm.errors import CellError
from charlm.layers.reference import TensorProgram
from tests.cells.on_tensors import TensorParameters
from tests.cells.programs import assert_program_is_step, cells


class Peephole(Cell):
    """The LSTM with peepholes (Gers et al. 2002)."""

    states: ClassVar = ("h", "c")
    kind: Any = "peephole"

    def step(self, p: Any, x: Any, h: Any, c: Any) -> Any:
        i, f, g, o = p.product("w_x", x, 4) + p.product("w_h", h, 4) + p.vector("b", 4)
        v_i, v_f, v_o = p.vector("peepholes", 3)
        i = torch.sigmoid(i + v_i * c)
        f = torch.sigmoid(f + v_f * c)
        c = f * c + i * g.tanh()
        o = (o + v_o * c).sigmoid()
        return o * c.tanh(), c


class Coupled(Cell):
    """The LSTM whose input gate is 1 − f, with a clipped state."""

    states: ClassVar = ("h", "c")
    kind: Any = "coupled"
    clip: float = 3.0

    def step(self, p: Any, x: Any, h: Any, c: Any) -> Any:
        f, g, o = p.product("w_x", x, 3) + p.product("w_h", h, 3) + p.vector("b", 3, start=(1.0, None, None))
        f = torch.sigmoid(f)
        c = torch.clamp(f * c + (1 - f) * F.silu(g), min=-self.clip, max=self.clip)
        return torch.sigmoid(o) * torch.where(c > 0, c, torch.tanh(c)), c


class Residual(Cell):
    """Three residual layers within a step, the second with a softplus rate."""

    kind: Any = "residual"

    def step(self, p: Any, x: Any, h: Any) -> Any:
        first = h
        for d in range(3):
            a = p.product("w", h, index=d, of=3) + p.vector("b", index=d, of=3)
            if d == 0:
                a = a + p.product("w_x", x)
            scale = F.softplus(p.vector("scale")) if d == 1 else 0.5
            h = h + scale * torch.maximum(a.tanh(), 0.2 * a)
        return h / torch.sqrt(1 + h**2) + 0.1 * first


@pytest.mark.parametrize("inputs", [3, 4])
@pytest.mark.parametrize("cell", [Peephole, Coupled, Residual])
def test_a_strangers_cell(cell: type[Cell], inputs: int) -> None:
    assert_program_is_step(cell(hidden=4), inputs)


@settings(max_examples=60, deadline=None)
@given(cells(), st.sampled_from([3, 4]))
def test_a_random_cell(cell: Cell, inputs: int) -> None:
    assert_program_is_step(cell, inputs)
    program = scalarized(trace(cell, inputs == 4))
    assert scalarized(program) == program
    for node in program.nodes:
        assert node.count == 1 or node.op in ("vector", "product")
        several = [program.nodes[arg].count for arg in node.args if program.nodes[arg].count > 1]
        assert not several or node.op == "part"


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "F.relu": lambda a, b: F.relu(a),
    "F.silu": lambda a, b: F.silu(a, inplace=False),
    "F.softplus": lambda a, b: F.softplus(a),
    "F.logsigmoid": lambda a, b: F.logsigmoid(a),
    "F.sigmoid": lambda a, b: F.sigmoid(a) * F.tanh(b),
    "abs": lambda a, b: abs(a) + a.abs() + torch.abs(b),
    "add": lambda a, b: torch.add(a, b) - a.sub(b).mul(3).div(2) + torch.neg(a) + b.neg(),
    "clamp": lambda a, b: torch.clamp(a, min=-0.5) + a.clamp(max=0.7) + torch.clamp(b, -0.3, 0.4) + a.clamp(b, b + 0.1),
    "detach": lambda a, b: a.detach() * b + torch.exp(b).detach() * a,
    "max": lambda a, b: torch.max(a, b) - a.minimum(b) + a.max(b) * torch.minimum(b, a),
    "pow": lambda a, b: a**2 + torch.pow(b, 3) - a.pow(1) + (a**2 + 1) ** -0.5 + (b**2 + 1) ** 0.5 + (2 + a**2) ** -2,
    "sums": lambda a, b: 2 - a + (3 * b - 1) / 4,
    "numbers": lambda a, b: np.float32(0.5) * a + b * np.float64(0.25) + np.int64(2),
    "log": lambda a, b: torch.log(1 + a.exp()) + (1 + b**2).sqrt().log(),
    "where": lambda a, b: torch.where(a > b, a, 2 * b) + a.where(b < 0.1, b) + torch.where(a < b, 1.0, 0.25),
    "equality": lambda a, b: torch.where(a >= a, a, b) + torch.where(b <= b + 0, a, b) + torch.where(a > a, a, b),
    "and, or, not": lambda a, b: torch.where(((a > 0) & (b > 0)) | ~(a >= b), a, 2 * b),
    "comparisons": lambda a, b: (a > b) * a + torch.where(a >= b, a, 0.1) + torch.where(b.gt(0.2), b, 0.5 * a),
}


class OfTwo(Cell):
    """A cell for a function of two vectors."""

    states: ClassVar = ("a", "b")
    kind: Any = "of two"
    function: Callable[..., Any]

    def step(self, p: Any, x: Any, a: Any, b: Any) -> Any:
        return self.function(a, b), p.product("w", b)

    def of(self, a: Tensor, b: Tensor) -> Tensor:
        """What the program computes."""
        program = trace(self, False)
        return TensorProgram(program, program.results[:1], {"w": b})({"state": {"a": a, "b": b}})[0]


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_and_their_gradients(function: Callable[..., Any]) -> None:
    a, b = (torch.randn(7, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def results(value: Tensor) -> tuple[Tensor, ...]:
        gradients = torch.autograd.grad(value.sum(), [a, b], allow_unused=True, materialize_grads=True)
        return value, *gradients

    for one, other in zip(results(OfTwo(function=function).of(a, b)), results(function(a, b)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)


NAMES = sorted({*TORCH_FUNCTIONS, "mul_", "clone", "sum", "mean", "sin"})
OWN = "sigmoid tanh exp log sqrt relu softplus log_sigmoid normalize stop_gradient F.silu F.softplus"
FORMS = (
    [
        *(f"{{}}.{name}()" for name in NAMES), *(f"torch.{name}({{}})" for name in NAMES),
        *(f"{name}({{}})" for name in (*OWN.split(), "abs", "len", "sum", "-", "+", "~")),
        "{}[0]", "{}[-1]", "{}[:1]", "F.relu({}, inplace=True)",
    ],
    [
        *(f"{{}}.{name}({{}})" for name in NAMES), *(f"torch.{name}({{}}, {{}})" for name in NAMES),
        *(f"{{}} {sign} {{}}" for sign in ("+", "-", "*", "/", "**", ">", "<", ">=", "<=", "==", "&", "|", "//", "%")),
        "maximum({}, {})", "minimum({}, {})", "torch.clamp({}, max={})",
    ],
    ["where({}, {}, {})", "torch.where({}, {}, {})", "torch.clamp({}, {}, {})"],
)  # fmt: skip
"""What a step may try with one operand, with two and with three."""


def expressions() -> Iterator[str]:
    """The forms of a vector, two vectors side by side, a comparison, two comparisons, and numbers."""
    for count, forms in enumerate(FORMS, 1):
        for form, operands in itertools.product(forms, itertools.product(OPERANDS, repeat=count)):
            yield form.format(*operands)


OPERANDS = ("v", "two", "c", "cc", "half", "whole")


class Tried(Cell):
    """A cell whose step tries an expression."""

    states: ClassVar = ("a", "b")
    kind: Any = "tried"
    code: Any

    def step(self, p: Any, x: Any, a: Any, b: Any) -> Any:
        two = p.product("w", b, 2)
        result = eval(self.code, globals(), {"v": a, "two": two, "c": a > b, "cc": two > a, "half": 0.5, "whole": 2})
        if isinstance(result, Condition) or (isinstance(result, Tensor) and result.dtype == torch.bool):
            result = where(result, 1.0, 0.0)
        count = result.node.count if isinstance(result, Value) else result.dim() - 1
        return result[0] if count == 2 else result, result[-1] if count == 2 else result


def test_what_a_trace_accepts_means_the_same_on_tensors() -> None:
    torch.set_default_dtype(torch.float64)  # in which torch.where of two numbers is
    torch.manual_seed(0)
    a, b, w, x = torch.randn(3, 5), torch.randn(3, 5), torch.randn(10, 5), torch.randn(3, 4)
    wrong, accepted = [], 0
    try:
        for text in expressions():
            cell = Tried(code=compile(text, "<expression>", "eval"))
            try:
                program = trace(cell, False)
            except CellError as error:
                wrong += [] if re.match(r"test_plain_torch\.py, line \d+, Tried\.step: ", str(error)) else [text]
                continue
            accepted += 1
            try:
                values = TensorProgram(program, program.results, {"w": w})({"input": x, "state": {"a": a, "b": b}})
                expected = cell.step(TensorParameters({"w": w}, square=False), x, a, b)
                for value, result in zip(values, expected, strict=True):
                    torch.testing.assert_close(value, result, rtol=1e-12, atol=1e-12, equal_nan=True, check_dtype=False)
            except Exception as error:
                wrong.append(f"{text}: {str(error).splitlines()[0]}")
    finally:
        torch.set_default_dtype(torch.float32)
    assert wrong == []
    assert accepted > 400


def test_numbers_have_the_precision_of_the_state() -> None:
    """torch.where of two numbers gives float32."""
    a = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    assert OfTwo(function=lambda a, b: torch.where(a > 0, 0.3, 0.1)).of(a, a).tolist() == [[0.3, 0.1]]
