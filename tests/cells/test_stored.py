"""A cell as data: nothing is lost, and damaged or hostile data is refused or computes something of the right shape."""

import json
import pickle
from random import Random
from typing import Any, ClassVar

import pytest
import torch

from charlm.cells import Cell, exp, maximum, normalize, rms_normalize, stop_gradient, tanh, where
from charlm.cells.stored import StoredCell, as_json, restored
from charlm.errors import CellError
from charlm.layers import RecurrentLayers
from tests.cells.damage import damaged
from tests.cells.measure import CASES

KIND = "/somewhere/mine.py:Mine"
DAMAGES = 1500


class Mixed(Cell):
    """Operations that no built-in kind has, two states, and sizes of its own."""

    states: ClassVar = ("h", "c")
    internal: ClassVar = ("c",)
    rate: float = 0.5

    def step(self, p: Any, x: Any, h: Any, c: Any) -> Any:
        a, b = p.product("small", h, 2, size=3)
        a = p.product("back", normalize(a) * rms_normalize(b))
        c = self.rate * c + where(x * 1.0 > 0.1, stop_gradient(x), 0.0) if p.square else c + p.product("in", x)
        p.show(c=c)
        return tanh(maximum(a, p.vector("rows", of=2)[0]) - exp(-c) / 3), c


class Adds(Cell):
    """A cell whose layers need as many inputs as hidden units."""

    sizes: tuple[int, ...] = (3, 5)

    def step(self, p: Any, x: Any, h: Any) -> Any:
        return x + h * p.vector("a", start=0.5)


CELLS: list[Cell] = [*(case.start(1, 5).cell for case in CASES), Mixed(hidden=5), Adds(hidden=5)]


def section_of(cell: Cell) -> dict[str, Any]:
    return cell.model_dump(mode="json") | {"kind": KIND}


@pytest.mark.parametrize("cell", CELLS, ids=repr)
def test_nothing_is_lost(cell: Cell) -> None:
    section, stored = section_of(cell), as_json(cell)
    again = restored(section, stored)
    assert again.model_dump(mode="json") == section
    assert (again.states, again.internal, again.initial) == (cell.states, cell.internal, cell.initial)
    assert again.name == "Mine"
    for square in (True, False)[: 1 if isinstance(cell, Adds) else 2]:
        assert again.program(square) == cell.program(square)
    assert as_json(again) == stored
    unpickled = pickle.loads(pickle.dumps(again))
    assert (unpickled, unpickled.program(square=True)) == (again, cell.program(square=True))

    layers, others = RecurrentLayers(cell, 5, 2), RecurrentLayers(again, 5, 2)
    others.load_state_dict(layers.state_dict())
    x = torch.randn(3, 2, 5)
    torch.testing.assert_close(others.forward_reference(x)[0], layers.forward_reference(x)[0], rtol=0, atol=0)


def test_a_cell_that_needs_square_layers_says_so() -> None:
    again = restored(section_of(Adds(hidden=5)), as_json(Adds(hidden=5)))
    assert [*RecurrentLayers(again, 5, 2).layer_parameters(1)] == ["a"]
    with pytest.raises(CellError, match=r"^Mine: .*; allowed: layers whose input has H units"):
        RecurrentLayers(again, 3)


def accept_or_refuse(section: dict[str, Any], stored: str) -> bool:
    """Read JSON that may be damaged; what is accepted must compute states of the right shapes."""
    try:
        cell = restored(section, stored)
    except ValueError:
        return False
    for inputs, square in ((3, False), (cell.hidden, True)):
        try:
            program = cell.program(square)
        except CellError:
            assert not square
            continue
        if sum(torch.Size(parameter.shape(cell.hidden, inputs)).numel() for parameter in program.parameters) > 10**5:
            continue
        layers = RecurrentLayers(cell, inputs)
        with torch.no_grad():
            y_TBH, state = layers.forward_reference(torch.randn(2, 2, inputs))
        assert y_TBH.shape == (2, 2, cell.hidden)
        assert all(tensor.shape == (1, 2, cell.hidden) for tensor in state)
    return True


def test_damaged_programs_are_refused_or_compute() -> None:
    random = Random(1)
    seeds = [(section_of(cell), as_json(cell)) for cell in CELLS]
    outcomes = []
    for n in range(DAMAGES):
        section, stored = seeds[n % len(seeds)]
        outcomes.append(accept_or_refuse(section, damaged(stored, random)))
    assert 0.02 < sum(outcomes) / len(outcomes) < 0.5  # both happen


# Where in the square program of Mixed something else stands, and why it is then refused.
REFUSALS: list[tuple[tuple[Any, ...], Any, str]] = [
    (("nodes", -1, 0), "import", "import: found no such operation"),
    (("nodes", -1, 1), [9999, 0], "an argument that comes after it"),
    (("nodes", -1, 1), [-1, 0], "an argument that comes after it"),
    (("nodes", -1, 1), [], "0 arguments; allowed: 1"),
    (("nodes", 3, 2), 65, "operation 3, product: found 65 vectors; allowed: 1 to 64"),
    (("nodes", 3, 3), 2**30, "operation 3, product: found no size"),
    (("nodes", 3, 4), "os.system", "no such parameter 'os.system'"),
    (("nodes", -1, 6), float("nan"), "found nan; Input should be a finite number"),
    (("nodes", -1, 6), 1e300, "a number that is not finite"),
    (("nodes", -1, 2), True, "found True; Input should be a valid integer"),
    (("nodes",), [["input", [], 1, "I", "", 0, 0.0]] * 20_001, " operations; allowed: 1 to 20000"),
    (("parameters", 0, 4), 10**9, ": a stack of 1000000000; "),
    (("parameters", 0, 1), 65, ": 65 gates; "),
    (("parameters", 1, 0), "small", "a parameter twice"),
    (("parameters", slice(0, 0)), [["w", 1, "H", "H", 0, [], None]], "that nothing uses: w"),
    (("results",), [0], "1 results"),
    (("shown",), None, "programs.1.shown: found a NoneType; "),
]


@pytest.mark.parametrize(("place", "value", "fault"), REFUSALS, ids=str)
def test_refusals(place: tuple[Any, ...], value: Any, fault: str) -> None:
    cell = Mixed(hidden=5)
    raw = json.loads(as_json(cell))
    container = raw["programs"][1]
    for key in place[:-1]:
        container = container[key]
    container[place[-1]] = value
    with pytest.raises(ValueError, match="found ") as raised:
        restored(section_of(cell), json.dumps(raw))
    assert fault in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("section", "stored"),
    [
        *(({}, stored) for stored in ("[]", "{}", "null", "[" * 100_000, '{"states": []}', "nan", "\0")),
        *(({"kind": kind}, as_json(Mixed(hidden=5))) for kind in (3, "mine.py:lstm", 'x.py:A"""')),
        *(({name: 1}, as_json(Mixed(hidden=5))) for name in ("step", "__init__", "a b")),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_cell_at_all(section: dict[str, Any], stored: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        restored(section_of(Mixed(hidden=5)) | section, stored)


def test_options_without_programs() -> None:
    cell = StoredCell.model_validate(section_of(Mixed(hidden=5)))
    assert cell.options() == {"rate": 0.5}
    with pytest.raises(CellError, match=r"^Mine: "):
        cell.program(square=True)
