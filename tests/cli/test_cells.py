"""`charlm cells`: list, show, check."""

import re
from pathlib import Path

import pytest

from charlm.cells import CELLS, Cell, exp, log, stop_gradient, tanh
from charlm.errors import CellError
from charlm.layers.agreement import agreements
from charlm.native.build import KernelError
from tests.cells.test_new_kind import LEAKY


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("leaky.py").write_text(LEAKY, encoding="utf-8")


def test_list(cli) -> None:
    lines = cli("cells", "list").out.splitlines()
    assert [line.split()[0] for line in lines] == list(CELLS)
    assert re.fullmatch(r"lstm +h, c +Long short-term memory", lines[list(CELLS).index("lstm")])


def test_show(cli) -> None:
    shown = cli("cells", "show", "lstm", "--set", "model.cell.layer_norm=true")
    assert (shown.code, shown.err) == (0, "")
    head, equations, derivative = shown.out.split("\n\n")
    assert head.splitlines()[:3] == [
        "lstm        Long short-term memory",
        "states      h, c",
        "options     hidden 256, layer_norm true, forget_bias 1.0",
    ]
    assert "weight_ih [4·H, I]" in head
    assert "cₜ = f ⊙ cₜ₋₁ + i ⊙ g" in equations.splitlines()
    assert "dcₜ₋₁ = dc ⊙ f" in derivative.splitlines()


def test_of_long_steps_the_first_equations_are_shown(cli) -> None:
    _, equations, derivative = cli("cells", "show", "rhn", "--set", "model.cell.depth=40").out.split("\n\n")
    for lines, count in ((equations, 120), (derivative, 120)):
        assert len(lines.splitlines()) == 31
        assert lines.splitlines()[-1] == f"… {count - 30} more"


def test_show_a_cell_of_ones_own(cli, tmp_path: Path) -> None:
    shown = cli("cells", "show", "./leaky.py:Leaky", "--set", "model.cell.leak=0.5")
    assert shown.err == f"cell     {tmp_path}/leaky.py: runs this file, for the cells in it\n"
    assert "options     hidden 256, leak 0.5" in shown.out.splitlines()
    assert "parameters  weight_ih [H, I], weight_hh [H, H], leak [H], bias [H]" in shown.out.splitlines()


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["show", "lstn"], 'KIND: model.cell.kind: found "lstn"; allowed: '),
        (["show", "leaky.py:Leek"], "found no class Leek; allowed: Leaky"),
        (["check", "none.py"], "none.py: no such file; allowed: a Python file"),
        (["check", "empty.py"], "empty.py: found no subclass of charlm.cells.Cell; "),
        (["check", "required.py"], "Leaky: found no valid default of leak; allowed: one for each"),
        (["check", "lstm"], "lstm: found no path of a Python file; allowed: for example leaky.py"),
    ],
)
def test_faults(cli, words: list[str], fault: str) -> None:
    Path("empty.py").write_text("")
    Path("required.py").write_text(LEAKY.replace(": float = 0.0", ": float"))
    refused = cli("cells", *words)
    assert refused.code == 1
    assert fault in refused.error


def test_check_compares_all_cells_of_a_file(cli) -> None:
    Path("two.py").write_text(f"{LEAKY}\n\nclass Second(Leaky):\n    pass\n")
    checked = cli("cells", "check", "two.py")
    assert checked.code == 0, checked.err
    assert re.findall(r"^(Leaky|Second) .*\nstates ", checked.out, re.MULTILINE) == ["Leaky", "Second"]
    assert len(re.findall(r"^I [≠=] H, step on tensors in float(?:32|64) +agrees; ", checked.out, re.MULTILINE)) == 8
    assert re.findall(r"^(\w+) +[\d,]+  \d+\.\d\d × lstm$", checked.out, re.MULTILINE) == [
        "Leaky",
        "Second",
        "rnn",
        "lstm",
        "gru",
        "sru",
    ]
    assert cli("cells", "check", "two.py:Second").out.count("states ") == 1


def test_speeds_say_what_computed_a_cell_without_a_kernel(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("charlm.layers.stack.load", fail)
    rows = cli("cells", "check", "leaky.py").out.splitlines()[-5:]
    assert rows[0].endswith("× lstm  by the reference loop")
    assert rows[2].startswith("lstm ")
    assert rows[2].endswith("1.00 × lstm  by the fused torch layer")


def fail(*_: object) -> None:
    raise KernelError("no compiler")


def test_check_prints_what_it_knows_before_an_error(cli) -> None:
    second = "class Differs(Cell):\n    def step(self, p, x, h):\n        h = tanh(p.linear(x, h))\n"
    Path("two.py").write_text(f"{LEAKY}\n\n{second}        return h if hasattr(h, 'tracing') else 1.001 * h\n")
    checked = cli("cells", "check", "two.py")
    assert checked.code == 1
    assert "\nerror: Differs: step on tensors in float64: y differs from the reference loop" in checked.err
    _, differs = checked.out.split("\n\nDiffers  ")
    assert differs.splitlines()[0].strip() == "without a docstring"
    assert differs.splitlines()[-1].startswith("I ≠ H, reference loop in float32  largest difference ")


# What `check` finds


def checked(cell: Cell) -> dict[str, str]:
    return dict(agreements(cell))


def test_a_cell_for_square_layers_only() -> None:
    class Adds(Cell):
        def step(self, p, x, h):
            return tanh(x + p.product("w", h))

    found = checked(Adds(hidden=13))
    assert found["I ≠ H"].startswith("not allowed: test_cells.py, line ")
    assert found["I = H, step on tensors in float64"].startswith("agrees; ")


def test_a_parameter_without_a_gradient_is_named() -> None:
    class Echo(Cell):
        def step(self, p, x, h):
            return tanh(p.product("learned", x) + stop_gradient(p.product("echo", h)))

    assert checked(Echo(hidden=13))["I ≠ H, without gradient"] == "echo"


def test_a_step_that_computes_something_else_on_tensors() -> None:
    class Two(Cell):
        def step(self, p, x, h):
            h = tanh(p.product("w", x) + p.product("r", h))
            return h if hasattr(h, "tracing") else h * 1.00001

    with pytest.raises(
        CellError, match=r"^Two: step on tensors in float64: y differs from the reference loop by up to "
    ):
        checked(Two(hidden=13))


def test_results_that_are_not_finite() -> None:
    class Log(Cell):
        def step(self, p, x, h):
            return log(exp(p.product("w", x)) * h)

    with pytest.raises(
        CellError, match=r"^Log: y is not finite; allowed: steps whose exp, log, sqrt and ÷ stay finite$"
    ):
        checked(Log(hidden=13))
