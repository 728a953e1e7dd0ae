"""The tracer: what a step becomes, and what it says about steps that it cannot hold."""

import itertools
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import charlm.cells
from charlm.cells import Cell, tanh, where
from charlm.cells.cell import trace
from charlm.cells.on_tensors import TensorProgram
from charlm.cells.program import Program
from charlm.cells.stored import StoredCell, with_step_of_now
from charlm.cells.symbols import FUNCTIONS, Condition, Value
from charlm.errors import CellError
from charlm.layers import RecurrentLayers
from tests.cells.measure import TensorParameters

CALLED = {**vars(charlm.cells), "torch": torch, "F": F, "np": np, "math": math}
"""What the steps of these tests call."""


def cell_of(step: Callable[..., Any] | str) -> Cell:
    """A cell with this step, or with a step in own.py that returns this expression."""
    if isinstance(step, str):
        step = eval(compile(f"lambda self, p, x, h: {step}", "own.py", "eval"), dict(CALLED))
    return type("Own", (Cell,), {"step": step})()


def program_of(step: Callable[..., Any] | str) -> Program:
    return trace(cell_of(step), False)


def test_a_product_with_0_stays():
    """Of ∞ it is not a number, in every kernel as in the step."""
    program = program_of('log(0 * h) + sqrt(0 * h - 1) + 1 / (0 * h) + p.vector("b")')
    assert {"mul", "log", "sqrt", "div"} <= {node.op for node in program.nodes}


def test_initial_values_of_a_step_stay_as_the_config_sets_others():
    """A number is that of all entries; an array has its own for each."""
    tril, rates = np.tril(np.ones((7, 7))), np.linspace(0, 1, 7)

    def step(self, p, x, h):
        a, b = p.product("a", x, 2, start=(None, -0.5)) + p.vector("bias", 2, start=(rates, 3.0))
        kept = p.product("b", h, start="identity") + p.product("c", h, index=1, of=2, start="orthogonal")
        fixed = p.product("sum", h, start=tril, fixed=True) * p.vector("rates", start=[*rates])
        return h + a + b + kept + fixed + p.vector("d", bound=9.0)

    cell = with_step_of_now(cell_of(step).with_options({"kind": "./own.py:Own", "hidden": 7}))
    assert isinstance(cell, StoredCell)
    layers = RecurrentLayers(cell, 3)
    layers.init_uniform_(0.25)
    layers.init_orthogonal_()
    names = ("a", "bias", "b", "c", "d", "sum", "rates")
    a, bias, b, c, d, total, one = (layers.layer_parameters(0)[name].detach() for name in names)
    assert 0.2 < a[:7].abs().max() <= 0.25
    assert (a[7:] == -0.5).all()
    assert (bias[7:] == 3).all()
    assert torch.equal(bias[:7], torch.from_numpy(rates).float())
    assert torch.equal(one, bias[:7])
    assert torch.equal(total, torch.from_numpy(tril).float())
    assert [name for name, _ in layers.named_buffers()] == ["sum_l0"]
    assert torch.equal(b, torch.eye(7))
    torch.testing.assert_close(c @ c.mT, torch.eye(7).expand(2, 7, 7))
    assert 5 < d.abs().max() <= 9


class Form(Cell):
    """A cell with options of every type that are said to be initial."""

    initial: ClassVar = ("number", "flag", "word")
    number: float = 0.25
    flag: bool = False
    word: Literal["one", "two"] = "one"
    used: ClassVar[str] = "0.0"

    def step(self, p: Any, x: Any, h: Any) -> Any:
        start = (self.number, 2.0 * self.flag, float(self.word == "two"))
        return eval(self.used) * h + tanh(p.product("w", x, 3) + p.vector("b", 3, start=start))[0]


@pytest.mark.parametrize(
    ("option", "used"),
    [
        ("number", "p.vector('f', start=self.number, fixed=True)"),
        ("number", "2 * self.number"),
        ("flag", "float(self.flag)"),
        ("word", "float(self.word == 'one')"),
    ],
)
def test_an_option_in_the_equations_is_not_initial(option, used, monkeypatch):
    assert trace(Form(), square=False)
    monkeypatch.setattr(Form, "used", used)
    monkeypatch.setattr(Form, "initial", (option,))
    with pytest.raises(CellError, match=f"the option {option} is in `initial`, but the equations depend on it"):
        trace(Form(), square=False)


OPERANDS = ("v", "two", "c", "cc", "half", "whole")
"""A vector, two vectors side by side, a comparison, two comparisons, and numbers."""
METHODS = sorted({*FUNCTIONS, "mul_", "clone", "sum", "mean", "sin"})
OWN = "sigmoid tanh exp log sqrt relu softplus log_sigmoid normalize stop_gradient F.silu F.logsigmoid"
FORMS = (
    [
        *(f"{{}}.{name}()" for name in METHODS), *(f"torch.{name}({{}})" for name in METHODS),
        *(f"{name}({{}})" for name in (*OWN.split(), "abs", "len", "sum", "-", "+", "~")),
        "{}[0]", "{}[-1]", "{}[:1]", "F.relu({}, inplace=True)", "F.silu({}, inplace=False)", "{}.clamp(max=0.7)",
        "np.float32(0.5) * {} + np.int64(2)", "({} * half + 1) ** -2", "2 - {} / 4",
    ],
    [
        *(f"{{}}.{name}({{}})" for name in METHODS), *(f"torch.{name}({{}}, {{}})" for name in METHODS),
        *(f"{{}} {sign} {{}}" for sign in ("+", "-", "*", "/", "**", ">", "<", ">=", "<=", "==", "&", "|", "//", "%")),
        "maximum({}, {})", "minimum({}, {})", "torch.clamp({}, max={})",
        "clamp({}, {}, 0.4)", "torch.clamp({}, -0.3, max={})", "where(({} >= 0.1) | ~({} <= 0.3), v, 2 * v)",
    ],
    ["where({}, {}, {})", "torch.where({}, {}, {})"],
)  # fmt: skip
"""What a step may try with one operand, with two and with three."""


class Tried(Cell):
    """A cell whose step tries an expression."""

    states: ClassVar = ("a", "b")
    code: Any

    def step(self, p: Any, x: Any, a: Any, b: Any) -> Any:
        two = p.product("w", b, 2)
        operands = {"v": a, "two": two, "c": a > b, "cc": two > a, "half": 0.5, "whole": 2}
        result = eval(self.code, CALLED, operands)
        if isinstance(result, Condition) or (isinstance(result, Tensor) and result.dtype == torch.bool):
            result = where(result, 1.0, 0.0)
        several = result.node.count if isinstance(result, Value) else result.dim() - 1
        return (result[0], result[-1]) if several == 2 else (result, result)


def expressions() -> Iterator[str]:
    for number, forms in enumerate(FORMS, 1):
        for form, operands in itertools.product(forms, itertools.product(OPERANDS, repeat=number)):
            yield form.format(*operands)


@pytest.fixture
def float64():
    """torch's default, in which torch.where of two numbers is."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("float64")
def test_what_a_trace_accepts_means_the_same_on_tensors():
    """Values and gradients; what it refuses, it says where."""
    a, b, w, x = (torch.randn(*shape, requires_grad=True) for shape in ((3, 5), (3, 5), (10, 5), (3, 4)))
    wrong, accepted = [], 0
    for text in expressions():
        cell = Tried(code=compile(text, "<expression>", "eval"))
        try:
            program = trace(cell, False)
        except CellError as error:
            if not re.match(r"test_trace\.py, line \d+, Tried\.step: ", str(error)):
                wrong.append(text)
            continue
        accepted += 1
        try:
            values = TensorProgram(program, program.results, {"w": w})({"input": x, "state": {"a": a, "b": b}})
            expected = cell.step(TensorParameters({"w": w}, square=False), x, a, b)
            for value, result in zip(values, expected, strict=True):
                torch.testing.assert_close(value, result, rtol=1e-12, atol=1e-12, equal_nan=True, check_dtype=False)
            torch.testing.assert_close(gradients(values[0], a, b), gradients(expected[0], a, b), equal_nan=True)
        except Exception as error:
            wrong.append(f"{text}: {str(error).splitlines()[0]}")
    assert wrong == []
    assert accepted > 400


def gradients(value: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
    total = value.sum() + 0 * sum(tensor.sum() for tensor in inputs)
    return torch.autograd.grad(total, inputs, materialize_grads=True)
