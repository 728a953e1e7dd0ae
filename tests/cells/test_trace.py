"""The tracer: what a step becomes, how it is split, and what it says about steps that it cannot hold."""

import math
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from charlm.cells import (
    GRU,
    LSTM,
    RHN,
    RNN,
    SLSTM,
    SRU,
    Cell,
    MinGRU,
    MinLSTM,
    Mogrifier,
    log,
    normalize,
    sigmoid,
    sqrt,
    tanh,
    where,
)
from charlm.cells.cell import trace
from charlm.cells.program import WINDOW, Program, when
from charlm.cells.split import split
from charlm.cells.stored import as_json, restored
from charlm.errors import CellError
from charlm.layers import RecurrentLayers
from tests.cells.measure import CASES, Case

Step = Callable[..., Any]


def cell_of(step: Step, *states: str) -> Cell:
    """A cell with this step."""
    return type("Own", (Cell,), {"step": step, "states": states or ("h",)})()


def program_of(step: Step, *states: str) -> Program:
    return trace(cell_of(step, *states), False)


def count(program: Program, op: str) -> int:
    return sum(node.op == op for node in program.nodes)


# Nodes


def test_equal_values_are_one_node() -> None:
    program = program_of(
        lambda self, p, x, h: tanh(h) * sigmoid(p.product("w", h)) + tanh(h) * sigmoid(p.product("w", h))
    )
    assert [count(program, op) for op in ("tanh", "sigmoid", "product", "mul", "add")] == [1, 1, 1, 1, 1]
    different = program_of(lambda self, p, x, h: p.product("w", h, index=0, of=2) + p.product("w", h, index=1, of=2))
    assert count(different, "product") == 2


@pytest.mark.parametrize("of", [lambda h: 0 + h - 0.0, lambda h: 1 * h / 1 + 0])
def test_sums_with_0_and_products_with_1_are_left_out(of: Callable[[Any], Any]) -> None:
    program = program_of(lambda self, p, x, h: of(p.product("w", h)))
    assert program.nodes[program.results[0]].op == "product"


def test_a_product_with_0_stays_and_a_whole_number_is_an_epsilon() -> None:
    """So of ∞ it is not a number, in every kernel as in the step."""
    program = program_of(lambda self, p, x, h: log(0 * h) + sqrt(0 * h - 1) + 1 / (0 * h) + p.vector("b"))
    assert [count(program, op) for op in ("mul", "log", "sqrt", "div")] == [1, 1, 1, 1]
    program = program_of(lambda self, p, x, h: normalize(h, 0) + p.vector("b"))
    [node] = [node for node in program.nodes if node.op == "normalize"]
    assert repr(node.number) == "0.0"


def test_several_vectors_unpack_and_combine_with_one() -> None:
    def step(self: Any, p: Any, x: Any, h: Any) -> Any:
        a = p.product("w", x, 3) * tanh(h) + p.vector("b", 3)
        assert len(a) == 3
        first, *rest = a
        assert a[0].place == first.place
        return first + rest[0] * rest[1]

    several = {(node.op, node.count) for node in program_of(step).nodes if node.count > 1}
    assert several == {("product", 3), ("mul", 3), ("vector", 3), ("add", 3)}


# When values are computed


def shape(cell: Cell, square: bool = False) -> tuple[Any, ...]:
    """Gates of the products before the loop and inside it, other values of all steps, vectors of parameters."""
    program = trace(cell, square)
    parts = split(program)
    window = [program.nodes[place] for place in parts.windows]
    before = [
        node.count
        for node, kind in zip(program.nodes, when(program.nodes), strict=True)
        if kind == WINDOW and node.op == "product"
    ]
    inside = [node.count for node in parts.loop.nodes if node.op == "product"]
    return before, inside, [(node.op, node.count) for node in window], len(parts.vectors)


@pytest.mark.parametrize(
    ("cell", "square", "expected"),
    [
        (RNN(), False, ([1], [1], [("add", 1)], 0)),
        (LSTM(), False, ([4], [4], [("add", 4)], 0)),
        # Gain and bias of four gates and of the cell state.
        (LSTM(layer_norm=True), False, ([4], [4], [("add", 4)], 4)),
        # The recurrent bias of n stays inside: r multiplies it.
        (GRU(), False, ([3], [3], [("add", 3)], 1)),
        (RHN(depth=3), False, ([2], [2, 2, 2], [("add", 2)], 2)),
        (RHN(depth=2, couple_gates=False), False, ([3], [3, 3], [("add", 3)], 1)),
        (SLSTM(), False, ([4], [4], [("add", 4)], 0)),
        # Functions unit by unit are inside.
        (MinGRU(), False, ([2], [], [("add", 2)], 0)),
        (MinGRU(positive=True), False, ([2], [], [("add", 2)], 0)),
        (MinLSTM(), False, ([3], [], [("add", 3)], 0)),
        # Biases and peepholes; with as many inputs as hidden units x itself is read.
        (SRU(), False, ([4], [], [("product", 4)], 2)),
        (SRU(), True, ([3], [], [("input", 1), ("product", 3)], 2)),
        # Q and R five times, then both products of the LSTM; x itself is read.
        (Mogrifier(), False, ([], [1, 1, 1, 1, 1, 4, 4], [("input", 1)], 1)),
        (Mogrifier(rounds=0), False, ([4], [4], [("add", 4)], 0)),
        (Mogrifier(rounds=2, rank=7), False, ([], [1, 1, 1, 1, 4, 4], [("input", 1)], 1)),
    ],
    ids=repr,
)
def test_what_is_computed_before_the_loop(cell: Cell, square: bool, expected: tuple[Any, ...]) -> None:
    assert shape(cell, square) == expected


@pytest.mark.parametrize(
    ("cell", "names"),
    [
        (LSTM(), ("weight_hh",)),
        (RHN(), ("weight_hh",)),
        (MinGRU(), ()),
        (SRU(), ()),
        (Mogrifier(), ("weight_q", "weight_hh")),
        (Mogrifier(rank=2), ("weight_q_right", "weight_hh")),
        (cell_of(lambda self, p, x, h: p.product("w", tanh(p.product("v", x))) + h), ()),
    ],
    ids=repr,
)
def test_recurrent_matrices_are_those_of_products_in_the_loop(cell: Cell, names: tuple[str, ...]) -> None:
    assert trace(cell, False).recurrent() == names


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_programs_of_built_in_kinds_do_not_depend_on_the_number_of_units(case: Case) -> None:
    """They are traced once for all sizes."""
    cell = case.build(3, 5).cell
    assert trace(cell, True) == trace(cell.model_copy(update={"hidden": 7}), True)


def test_initial_values() -> None:
    def step(self: Any, p: Any, x: Any, h: Any) -> Any:
        a = p.vector("a", 2, start=(None, 3.0)) + p.vector("b", of=2, start=0.25)
        first, second = a + p.vector("c", 2, index=1, of=2, start=(-1, None))
        return h + first * second + p.vector("d", bound=9.0)

    layers = RecurrentLayers(cell_of(step), 3)
    a, b, c, d = (layers.get_parameter(f"{name}_l0") for name in "abcd")
    H = layers.hidden_size
    assert (a.shape, b.shape, c.shape) == ((2 * H,), (2, H), (2, 2 * H))
    bound = 1 / math.sqrt(H)
    assert a[:H].abs().max() <= bound
    assert a[:H].std() > bound / 3
    assert (a[H:] == 3).all()
    assert (b == 0.25).all()
    assert (c[:, :H] == -1).all()
    assert c[:, H:].abs().max() <= bound
    assert 8 < d.abs().max() <= 9


def test_initial_matrices() -> None:
    """A number is that of all entries; a config's `orthogonal` and a range of random values leave all of them."""

    def step(self: Any, p: Any, x: Any, h: Any) -> Any:
        a, b = p.product("a", x, 2, start=(None, -0.5))
        return h + a + b + p.product("b", h, start="identity") + p.product("c", h, index=1, of=2, start="orthogonal")

    cell = cell_of(step)
    layers = RecurrentLayers(restored({"kind": "./own.py:Own", "hidden": 7}, as_json(cell)), 3)
    layers.init_uniform_(0.25)
    layers.init_orthogonal_()
    a, b, c = (layers.get_parameter(f"{name}_l0") for name in "abc")
    assert 0.2 < a[:7].abs().max() <= 0.25
    assert (a[7:] == -0.5).all()
    assert torch.equal(b, torch.eye(7))
    torch.testing.assert_close(c @ c.mT, torch.eye(7).expand(2, 7, 7))


# Faults


ALLOWED = (
    "allowed: + − × ÷, powers, < and >, exp, log, tanh, sigmoid, softplus, log_sigmoid, relu, sqrt, abs, clamp, "
    "maximum, minimum, where, normalize, rms_normalize, stop_gradient, and products and parameters by p"
)
EARLIER: list[Any] = []
# Steps, and how what is said of each begins.
FAULTS: list[tuple[Step, str]] = [
    # Values that a trace does not know
    (
        lambda self, p, x, h: h if h > 0 else -h,
        "a branch on a value, which a trace does not know; use where(",
    ),
    (lambda self, p, x, h: h * (x == h), f"a comparison with == or !=; {ALLOWED}"),
    (lambda self, p, x, h: h * math.exp(h), "a number is needed where a vector was found; "),
    (
        lambda self, p, x, h: where(h, h, 0.0),
        "where needs a comparison as its condition; allowed: for example ",
    ),
    (
        lambda self, p, x, h: 1 - (h > 0),
        "a comparison where a vector belongs; allowed: where(comparison, a, b), or v * ",
    ),
    (lambda self, p, x, h: (h > 0) + (h > 1), "a comparison where a vector belongs; allowed: where("),
    (
        lambda self, p, x, h: operator.iadd(h, h),
        "a vector is changed in place, as by a += b; allowed: a new one, as by ",
    ),
    (lambda self, p, x, h: h.__setitem__(0, h), "a vector is changed in place, as by a += b; allowed: a new one, as "),
    (
        lambda self, p, x, h: (h > 0).__iand__(h > 1),
        "a vector is changed in place, as by a += b; allowed: a new one, as ",
    ),
    (
        lambda self, p, x, h: torch.add(h, 1, out=h),
        "torch's add with arguments that a step does not know; allowed: ",
    ),
    (
        lambda self, p, x, h: F.relu(h, inplace=True),
        "torch's relu with inplace=True, which changes a vector; allowed: ",
    ),
    (lambda self, p, x, h: h / len(h), "found one vector where several are expected; allowed: products and vectors "),
    (lambda self, p, x, h: p.product("w", h, 2)[:1], "found slice(None, 1, None) as an index; allowed: 0 to 1"),
    # Functions that are none of a step
    (
        lambda self, p, x, h: h.silu(),
        "AttributeError: a vector of a step has no silu; write torch.nn.functional.silu(v) ",
    ),
    (
        lambda self, p, x, h: h.maximum(0.0),
        "torch's maximum of a vector and 0.0; allowed: two vectors, or maximum",
    ),
    (lambda self, p, x, h: F.gelu(h), f"torch's gelu is no operation of a step; {ALLOWED}"),
    (lambda self, p, x, h: torch.cat([x, h], -1), "torch's cat is no operation of a step; write a product of each "),
    (lambda self, p, x, h: F.layer_norm(h, (256,)), "torch's layer_norm is no operation of a step; write normalize(v)"),
    (lambda self, p, x, h: torch.zeros_like(h), "torch's zeros_like is no operation of a step; write a number "),
    (lambda self, p, x, h: h.erf(), f"AttributeError: a vector of a step has no erf; {ALLOWED}"),
    (
        lambda self, p, x, h: p.product("w", x, 2).chunk(2),
        "AttributeError: a vector of a step has no chunk; write i",
    ),
    (lambda self, p, x, h: np.tanh(h), "TypeError: operand 'Value' does not support ufuncs (__array_ufunc__=None); "),
    (lambda self, p, x, h: h & h, "& of what is no comparison; allowed: as in where((a > 0) & (b > 0), a, b)"),
    (lambda self, p, x, h: where((h > 0) | h, h, 0), "| of what is no comparison; allowed: as in where((a > 0) | "),
    (lambda self, p, x, h: torch.mean(h), "torch's mean is no operation of a step; write normalize(v) or rms_norm"),
    (lambda self, p, x, h: h - h.mean(-1), "AttributeError: a vector of a step has no mean; write normalize(v) or "),
    (lambda self, p, x, h: h * h.shape[-1], "AttributeError: a vector of a step has no shape; write self.hidden or "),
    (lambda self, p, x, h: h**0.3, "found 0.3 as an exponent; allowed: ±0.5, ±1, …, ±8; or use exp(b * log(v))"),
    (lambda self, p, x, h: h.sigmoid(h), "sigmoid of 2 values; allowed: 1"),
    (lambda self, p, x, h: h + torch.ones(3), f"found a Tensor where a vector or a number belongs; {ALLOWED}"),
    (lambda self, p, x, h: h + 1 / 0, f"ZeroDivisionError: division by zero; {ALLOWED}"),
    # Sizes
    (lambda self, p, x, h: x + h, "add of vectors of different sizes: 1 × I and 1 × H"),
    (lambda self, p, x, h: p.product("w", h, 2) * p.vector("b", 3), "mul of vectors of different sizes: 2 × H and 3"),
    (
        lambda self, p, x, h: sum(h),
        "found one vector where several are expected; allowed: products and vectors ",
    ),
    (lambda self, p, x, h: p.product("w", p.vector("b", 2)), "w: the operand has 2 vectors; allowed: 1, and no "),
    (lambda self, p, x, h: p.product("w", h, size=7), "found the new state h with 1 × 7; allowed: 1 × H"),
    (lambda self, p, x, h: p.product("w", h, 2), "found the new state h with 2 × H; allowed: 1 × H"),
    (
        lambda self, p, x, h: p.vector("b"),
        "found the new state h, which depends neither on x nor on a state; allowed: states ",
    ),
    # Sizes and counts without end
    (lambda self, p, x, h: [p.product("w", h) for _ in range(10**9)][-1], "found more than 20,000 operations in a "),
    (lambda self, p, x, h: [h := tanh(h) for _ in range(10**9)][-1], "found more than 20,000 operations in a step; "),
    (lambda self, p, x, h: p.vector("b", 10**12)[0] + h, "found b: 1000000000000 gates; allowed: 1 to 64"),
    (lambda self, p, x, h: p.vector("b", index=0, of=10**12) + h, "found b: a stack of 1000000000000; allowed: up "),
    (lambda self, p, x, h: p.product("w", h, 2.0), "found w: 2.0 gates; allowed: 1 to 64"),
    (lambda self, p, x, h: p.product("w", p.product("v", h, size=2**40)), "found v: a size 1099511627776; allowed: "),
    (
        lambda self, p, x, h: p.note(**{f"g{k}": h for k in range(60_000)}) or h + p.vector("b"),
        "found 60000 names of gates and values; allowed: up to 4000",
    ),
    # Results
    (lambda self, p, x, h: (h, h), "the number of values that step returns is 2; allowed: 1: h"),
    (lambda self, p, x, h: [h], "step returns a list; allowed: a tuple, or one value"),
    (lambda self, p, x, h: p.note(h=p.product("w", h)), "found a NoneType where a vector or a number belongs; "),
    (
        lambda self, p, x, h: p.product("w", EARLIER[0]),
        "found a value of another step; what a step needs of the ",
    ),
    (lambda self, p, x, h: tanh(x + 0), "found 0 parameters; allowed: 1 to 4000"),
    (lambda self, p, x, h: p.note(g=p.product("w", h, 2)) or h, "g is 2 vectors; allowed: one vector for each name"),
    # Parameters
    (
        lambda self, p, x, h: p.product("w", h) + p.product("w", x),
        "the parameter w is declared twice, with columns",
    ),
    (
        lambda self, p, x, h: h * p.vector("b", start=1) + p.vector("b"),
        "the parameter b is declared twice, with ",
    ),
    (lambda self, p, x, h: p.product("w", h, index=2, of=2), "w: index 2; allowed: 0 to 1"),
    (
        lambda self, p, x, h: h * p.vector("b", start=(1, 2)),
        "b: start has 2 values; allowed: one, or one for each of 1",
    ),
    (
        lambda self, p, x, h: p.product("w", h, start="ones"),
        "found w: an initial value 'ones'; allowed: finite numbers, identity, orthogonal",
    ),
    (
        lambda self, p, x, h: h + p.vector("b", start="identity"),
        "found b: an initial value 'identity'; allowed: finite numbers",
    ),
]


@pytest.mark.parametrize(("step", "fault"), FAULTS)
def test_faults_name_file_and_line(step: Step, fault: str) -> None:
    EARLIER[:] = []
    trace(cell_of(lambda self, p, x, h: EARLIER.append(h) or p.product("w", h)), False)
    with pytest.raises(CellError) as raised:
        program_of(step)
    line = step.__code__.co_firstlineno
    assert str(raised.value).startswith(f"{Path(__file__).name}, line {line}, Own.step: {fault}")


def gate(v: Any) -> Any:
    return v if v > 0 else 0 * v


def test_the_line_is_the_innermost_of_the_cells_file() -> None:
    def step(self: Any, p: Any, x: Any, h: Any) -> Any:
        return gate(h)

    with pytest.raises(
        CellError, match=rf"^test_trace\.py, line {gate.__code__.co_firstlineno + 1}, Own\.step: a branch"
    ):
        program_of(step)


def test_x_and_states_fit_in_a_square_layer() -> None:
    cell = cell_of(lambda self, p, x, h: (x if p.square else p.product("w", x)) + h * p.vector("b"))
    assert [parameter.name for parameter in trace(cell, True).parameters] == ["b"]
    assert [parameter.name for parameter in trace(cell, False).parameters] == ["w", "b"]
    with pytest.raises(CellError, match="add of vectors of different sizes: 1 × I and 1 × H"):
        program_of(lambda self, p, x, h: x + h)
