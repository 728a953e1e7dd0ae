"""A cell as data: nothing is lost, and damaged or hostile data is refused or computes something of the right shape."""

import json
import pickle
from random import Random
from typing import Any, ClassVar

import pytest
import torch

from charlm.cells import Cell, exp, maximum, normalize, rms_normalize, stop_gradient, tanh, where
from charlm.cells.stored import StoredCell, as_json, restored, stored_cell
from charlm.errors import CellError
from charlm.layers import RecurrentLayers
from charlm.layers.stack import as_tuple
from tests.cells.damage import damaged
from tests.cells.measure import CASES, Case

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


def section_of(cell: Cell) -> dict[str, Any]:
    return cell.model_dump(mode="json") | {"kind": KIND}


def cells() -> list[Cell]:
    return [*(case.start(1, 5).cell for case in CASES), Mixed(hidden=5), Adds(hidden=5)]


@pytest.mark.parametrize("cell", cells(), ids=repr)
def test_nothing_is_lost(cell: Cell) -> None:
    section, stored = section_of(cell), as_json(cell)
    found = restored(section, stored)
    assert found.model_dump(mode="json") == section
    assert (found.states, found.internal, found.initial) == (cell.states, cell.internal, cell.initial)
    assert found.name == "Mine"
    assert found.program(square=True) == cell.program(square=True)
    if not isinstance(cell, Adds):
        assert found.program(square=False) == cell.program(square=False)
    assert as_json(found) == stored
    again = pickle.loads(pickle.dumps(found))
    assert again == found
    assert again.program(square=True) == cell.program(square=True)


@pytest.mark.parametrize("case", CASES[:3], ids=str)
def test_layers_of_a_stored_cell_compute_the_same(case: Case) -> None:
    layers = case.start(5, 4, 2)
    again = RecurrentLayers(restored(section_of(layers.cell), as_json(layers.cell)), 5, 2)
    again.load_state_dict(layers.state_dict())
    x = torch.randn(3, 2, 5)
    torch.testing.assert_close(again.forward_reference(x)[0], layers.forward_reference(x)[0], rtol=0, atol=0)
    torch.testing.assert_close(again(x)[0], layers(x)[0])


def test_a_cell_that_needs_square_layers_says_so() -> None:
    found = restored(section_of(Adds(hidden=5)), as_json(Adds(hidden=5)))
    assert RecurrentLayers(found, 5, 2).parameter_shapes(1) == {"a": (5,)}
    with pytest.raises(CellError, match=r"^Mine: .*; allowed: layers whose input has H units"):
        RecurrentLayers(found, 3)


def accept_or_refuse(section: dict[str, Any], stored: str) -> bool:
    """Read JSON that may be damaged; what is accepted must compute states of the right shapes."""
    try:
        cell = stored_cell(section, stored).model_validate(section)
    except ValueError:
        return False
    for inputs, square in ((3, False), (cell.hidden, True)):
        if not square and cell.programs[False] is None:  # pyright: ignore[reportAttributeAccessIssue]
            continue
        program = cell.program(square)
        if sum(torch.Size(parameter.shape(cell.hidden, inputs)).numel() for parameter in program.parameters) > 10**5:
            continue
        layers = RecurrentLayers(cell, inputs)
        with torch.no_grad():
            y_TBH, state = layers.forward_reference(torch.randn(2, 2, inputs))
        assert y_TBH.shape == (2, 2, cell.hidden)
        assert all(tensor.shape == (1, 2, cell.hidden) for tensor in as_tuple(state))
    return True


def test_damaged_programs_are_refused_or_compute() -> None:
    random, outcomes = Random(1), []
    seeds = [(section_of(cell), as_json(cell)) for cell in cells()]
    for n in range(DAMAGES):
        section, stored = seeds[n % len(seeds)]
        outcomes.append(accept_or_refuse(section, damaged(stored, random)))
    assert 0.02 < sum(outcomes) / len(outcomes) < 0.5  # both happen


def refusal(change: Any, cell: Cell | None = None) -> str:
    """Why the JSON of a cell is refused after `change`, which is called with its parsed square program."""
    cell = cell or Mixed(hidden=5)
    raw = json.loads(as_json(cell))
    change(raw["programs"][1])
    with pytest.raises(ValueError, match="found ") as raised:
        stored_cell(section_of(cell), json.dumps(raw))
    assert "\n" not in str(raised.value)
    return str(raised.value)


def node(place: int, position: int, value: Any) -> Any:
    def change(program: dict[str, Any]) -> None:
        program["nodes"][place][position] = value

    return change


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (node(-1, 0, "import"), "import: found no such operation"),
        (node(-1, 1, [9999, 0]), "an argument that comes after it"),
        (node(-1, 1, []), "0 arguments; allowed: 1"),
        (node(-1, 1, [-1, 0]), "an argument that comes after it"),
        (node(3, 2, 65), "operation 3, product: found 65 vectors; allowed: 1 to 64"),
        (node(3, 3, 2**30), "operation 3, product: found no size"),
        (node(3, 4, "missing"), "no parameter 'missing'"),
        (node(3, 4, "os.system"), "no parameter 'os.system'"),
        (node(-1, 6, float("nan")), "found nan; Input should be a finite number"),
        (node(-1, 6, 1e300), "a number that is not finite"),
        (node(-1, 2, True), "found True; Input should be a valid integer"),
        (node(-1, 6, 1e999), "found inf; Input should be a finite number"),
        (
            lambda program: program["nodes"].extend([program["nodes"][0]] * 20_000),
            " operations; allowed: up to 20000",
        ),
        (
            lambda program: program["parameters"][0].__setitem__(4, 10**9),
            ": a stack of 1000000000; ",
        ),
        (
            lambda program: program["parameters"][0].__setitem__(1, 65),
            ": 65 gates; ",
        ),
        (lambda program: program["parameters"].append(program["parameters"][0]), "a parameter twice"),
        (lambda program: program["parameters"].append(["w", 1, "H", "H", 0, [], None]), "that nothing uses: w"),
        (lambda program: program["results"].pop(), "1 results"),
        (lambda program: program.pop("shown"), "programs.1.shown: found nothing; Field required"),
    ],
)
def test_refusals(change: Any, found: str) -> None:
    assert found in refusal(change)


@pytest.mark.parametrize("stored", ["", "[]", "{}", "null", "[" * 100_000, '{"states": []}', "nan", "\0"])
def test_what_is_no_cell_at_all(stored: str) -> None:
    section = section_of(Mixed(hidden=5))
    if not stored:
        assert issubclass(stored_cell(section), StoredCell)  # options only
        return
    with pytest.raises(ValueError, match=r"."):
        stored_cell(section, stored)


@pytest.mark.parametrize(
    "section",
    [
        {"kind": 3, "hidden": 4},
        {"kind": "mine.py:lstm", "hidden": 4},
        {"kind": 'x.py:A"""', "hidden": 4},
        {"kind": KIND, "hidden": 4, "step": 1},
        {"kind": KIND, "hidden": 4, "__init__": 1},
        {"kind": KIND, "hidden": 4, "a b": 1},
    ],
)
def test_sections_that_no_cell_has(section: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        stored_cell(section, as_json(Adds(hidden=4)))
