"""`charlm cells`: list, show, check."""

import re
from pathlib import Path

import pytest

from charlm.cells import CELLS
from charlm.cells.equations import equations
from charlm.cells.file import load_cell
from charlm.cells.stored import is_edited, with_step_of_now
from tests.cells.test_new_kind import LEAKY


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("leaky.py").write_text(LEAKY, encoding="utf-8")


def test_list_and_show(cli):
    lines = cli("cells", "list").out.splitlines()
    assert [line.split()[0] for line in lines] == list(CELLS)
    shown = cli("cells", "show", "LSTM", "--set", "model.cell.layer_norm=true").out
    head, *_, notes = shown.split("\n\n")
    assert head.splitlines()[1:3] == ["states      h, c", "options     hidden 256, layer_norm true, forget_bias 1.0"]
    assert notes.startswith("Layer normalization ")


def test_show_a_cell_of_ones_own(cli):
    shown = cli("cells", "show", "./leaky.py:Leaky", "--set", "model.cell.leak=0.5").out.splitlines()
    assert "options     hidden 256, leak 0.5" in shown
    parameters = "weight_ih [H, I], weight_hh [H, H], mix [H, H] fixed, leak [H], bias [H], gain [H] fixed"
    assert f"parameters  {parameters}" in shown


def test_check_compares_all_cells_of_a_file_until_one_fails(cli):
    cell = "class {}(Cell):\n    def step(self, p, x, h):\n        return {}\n\n\n"
    echo = cell.format("Echo", "tanh(x + stop_gradient(p.product('echo', h)))")
    infinite = cell.format("Infinite", "exp(1e9 * p.linear(x, h))")
    Path("three.py").write_text(f"{LEAKY}\n\nfrom charlm.cells import exp, stop_gradient\n\n\n{echo}{infinite}")
    checked = cli("cells", "check", "three.py")
    assert checked.code == 1
    assert (
        "error: Infinite: y is not finite from the zero state; allowed: steps whose exp, log, sqrt and ÷, and"
        in checked.err
    )
    leaky, echo, _ = re.split("\n\n(?:Echo|Infinite)  ", checked.out)
    assert len(re.findall(r"^I [≠=] H, reference loop in float32 +agrees with float64; ", leaky, re.MULTILINE)) == 2
    assert re.search("^I ≠ H +not allowed: three.py, line ", echo, re.MULTILINE)
    assert re.search("^I = H, without gradient +echo$", echo, re.MULTILINE)


HEAD = """\
import math
from typing import Annotated, Any, Literal
import torch
from pydantic import Field
from charlm.cells import Cell, clamp, relu, tanh
class Own(Cell):
"""
STEP = "    def step(self, p, x, h):\n        return "
NO_VECTOR = "a vector of a step, such as a state of H units, has no"
ONE_VECTOR = "found one vector where several are expected, as by len, sum or a loop; allowed: "
# What a step in line 8 returns, and what is said of it.
STEPS = {
    "h if h > 0 else -h": "a branch on a value, which a trace does not know; use where(condition, a, b)",
    "h * math.exp(h)": "a number is needed where a vector was found; allowed: + − × ÷, powers, ",
    "h // 2": "an operation that a step does not have; allowed: + − × ÷, powers, ",
    "h + 'a'": "found a str where a vector or a number belongs; allowed: + − × ÷, powers, ",
    "torch.add(h, 1, out=h)": "torch's add with unknown arguments; allowed: ",
    "torch.cat([x, h], -1)": "torch's cat is no operation of a step; write a product of each ",
    "h**0.3": "found 0.3 as an exponent; allowed: ±0.5, ±1, …, ±8; or use exp(b * log(v))",
    "h @ h": 'a product with @; allowed: p.product("weight", x), which declares the matrix',
    "h.silu()": f"{NO_VECTOR} silu; write torch.nn.functional.silu(v) instead",
    "h - h.mean()": f"{NO_VECTOR} mean; write p.product(name, v, start=1.0, fixed=True), which sums over units, ",
    "h / h.shape[0]": f"{NO_VECTOR} shape; write self.hidden or another option instead",
    "h / len(h)": ONE_VECTOR,
    "p.outer(h, h)": "found p.outer; allowed: p.product, p.transposed, ",
    "self.hiden * h": "found self.hiden; allowed: hidden; did you mean 'hidden'?",
    "self.step(p, x, h)": "RecursionError: maximum recursion depth exceeded",
    "tahn(h)": "NameError: name 'tahn' is not defined",
    "h * float('nan')": "found the number nan; allowed: finite numbers",
    "clamp(h)": "clamp with no bound, or with a number and a vector; allowed: numbers, or vectors",
    "p.vector('b') * h + p.vector('b')": "the vector b is asked for twice; allowed: once; keep it in a variable, ",
    "p.vector('b', of=2)[0] + p.vector('b', index=1, of=2)": "the vector b is asked for twice; ",
    "p.vector('b', 10**12)[0] + h": "found b: 1000000000000 gates; allowed: 1 to 64",
    "p.product('w', h) + p.product('w', x, 2)": "the parameter w is declared twice, with ",
    "p.product('w', h, start='ones')": "found w: an initial value 'ones'; allowed: finite numbers, identity, ",
    "p.product('w', h, start=torch.ones(9))": "w: start is an array of shape [9]; allowed: a number, or an array of ",
    "p.vector('b', start=[math.nan] * self.hidden) * h": "b: start has a number that is not finite; ",
    "p.product('w', h, 2)[0] + p.transposed('w', h)": "w: found no matrix of this name with one gate; allowed: ",
    "p.product('w', x, size=4) + p.transposed('w', h)": "w: the operand of the transposed matrix is 1 × H; ",
    "p.product('w', h, size=7)": "found the new state h with 1 × 7; allowed: 1 × H",
    "p.vector('b')": "found the new state h, which depends neither on x nor on a state; allowed: states that do",
    "p.note(new=h)": "step returns nothing; allowed: a value for each state, as in return h",
    "(h, h)": "the number of values that step returns is 2; allowed: 1: h",
    "[h := tanh(h) for _ in range(10**9)][-1]": "found more than 2,000 operations in a step; ",
}
# The class from line 7 on, and what is said of it; without a step here, with one that is right.
CLASSES = {
    "states = ('h', 'c')\n    def step(self, p, x, c, h): return h, c": "line 8, Own.step: found c in the wrong place",
    "def step(self, p, h, x): return h": "line 7, Own.step: found h in the wrong place; allowed: def step(self, p, x",
    "def step(p, x, h): return h": "line 7, Own.step: too many positional arguments; allowed: def step(self, p, x",
    "def step(self, p, x, h):\n        h = tanh(h)": "line 8, Own.step: step returns nothing; allowed: a value for",
    "def step(self, p, x, h): self.hidden = 3": "line 7, Own.step: step sets an attribute of the cell; allowed: ",
    "def stop(self, p, x, h): return h": "line 6, Own: found no step; allowed: def step(self, p, x, h)",
    "states = ('h', 'h')": "line 7, Own: found states = ('h', 'h'); allowed: different names, as in (\"h\", \"c\")",
    "states = ('h')": "line 7, Own: found states = 'h'; allowed: different names, as in ",
    "states = ('h', 'c')\n    internal = 'c'": "line 8, Own: found internal = 'c'; allowed: a tuple of states, ",
    "initial = ('leak')\n    leak: float = 0": "line 7, Own: found initial = 'leak'; allowed: a tuple of options: leak",
    "states: tuple = ('h', 'c')": "line 6: Own: found its own states, which every cell has; allowed: states = ",
    "hidden = 3.5": "line 6: Own: found its own hidden, which every cell has; allowed: hidden: int = 256",
    "name: str = 'mine'": "line 6: Own: found its own name, which every cell has; allowed: another name",
    "model_config = {'extra': 'allow'}": "line 6: Own: found its own model_config, which every cell has; allowed: ",
    "def __init__(self): self.a = 3": "line 6: Own: found its own __init__, which every cell has; allowed: options as ",
    "hidden: float = 3.5": "line 7, Own: hidden: found 3.5; allowed: an integer ≥ 1 and ≤ 1,048,576",
    "leak: Annotated[float, Field(gt=0)] = -1.0": "line 7, Own: leak: found -1.0; allowed: a number > 0",
    "form: Literal['a', 'b'] = 'c'": 'line 7, Own: form: found "c"; allowed: a | b',
    "leak: float": "line 7, Own: found no default; allowed: one, as in leak: float = 0.0",
    "leak = 0.5": "line 6: PydanticUserError: A non-annotated attribute was detected: `leak = 0.5`; allowed: options ",
    "sizes: list[int] = [1, 2]": "line 7, Own: found sizes = [1, 2]; allowed: a finite number, text, true or false",
}
WRONG = {f"{STEP}{code}": f"line 8, Own.step: {said}" for code, said in STEPS.items()}
for code, said in CLASSES.items():
    step = "" if "p, " in code else f"{STEP}h"
    WRONG[f"    {code}\n{step}"] = said


@pytest.mark.parametrize(("body", "said"), WRONG.items(), ids=[*STEPS, *CLASSES])
def test_a_wrong_cell_is_told_in_one_line_where_and_what_to_write(cli, body, said):
    Path("own.py").write_text(HEAD + body, encoding="utf-8")
    error = cli("cells", "check", "own.py").error
    assert error.removeprefix(f"{Path.cwd()}/").startswith(f"own.py, {said}")


def test_show_names_matrices_that_multiply_several_vectors(cli):
    Path("own.py").write_text(f"{HEAD}{STEP}p.product('w', tanh(p.product('w', h))) + p.product('v', x)\n")
    assert "shared      w multiplies 2 vectors" in cli("cells", "show", "./own.py:Own").out


@pytest.mark.parametrize("name", ["helper", "helpers.act"])
def test_a_file_imports_from_a_module_beside_it(cli, name):
    """The module is read again after it has changed; that of another folder is another one, also in a package."""
    for folder, function in (("one", "tanh"), ("two", "exp"), ("one", "relu")):
        module = Path(folder, *name.split(".")).with_suffix(".py")
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text(f"from charlm.cells import {function} as act\n")
        Path(folder, "own.py").write_text(f"from {name} import act\n{HEAD}{STEP}act(p.linear(x, h))\n")
        cell = load_cell(f"{folder}/own.py:Own")
        assert equations(cell.program(square=False))[0].startswith(f"hₜ = {function}(")
        stored = with_step_of_now(cell)
        assert not is_edited(stored)
    module.write_text("def act(v)\n")
    assert is_edited(stored)
    assert f"{module.absolute()}, line 1: SyntaxError: " in cli("cells", "show", "./one/own.py:Own").error


def test_a_run_from_somebody_else_runs_no_file(cli, copied_run, text_file):
    """What a folder holds is data; a file that is typed is run."""
    evil = "from pathlib import Path\n\nPath('ran').touch()\n\n" + LEAKY
    for folder in (copied_run, Path()):
        (folder / "evil.py").write_text(evil, encoding="utf-8")
    config = copied_run / "config.yaml"
    config.write_text(config.read_text().replace("kind: lstm", "kind: evil.py:Leaky"))
    for command in ("sample", "next", "eval", "look", "report", "runs"):
        assert cli(command, copied_run).code == 0, command
    assert cli("score", copied_run, text_file).code == 0
    assert cli("export", copied_run, "--to", "html", "--out", "x.html").code == 0
    assert cli("data", "info", copied_run.parent).code == 0
    small = ["--set", "train.max_steps=1", "--set", "device=cpu", "--set", "threads=1"]
    assert cli("train", text_file, "--init-from", copied_run, "--run-dir", "other", *small).code == 0
    found = f"model.cell.kind: found '{copied_run}/evil.py:Leaky'"
    for words in (["train", "--config"], ["plan", "--config"], ["config", "show"]):
        assert cli(*words, config).error.startswith(f"{config}: {found} in a run's folder, ")
    assert cli("train", "--resume", "--run-dir", copied_run, "--config", config).error.startswith(found)
    assert cli("train", "--resume", "--run-dir", copied_run, "--set", "train.max_steps=7").code == 0
    config.write_text(config.read_text().replace("kind: lstm", "kind: evil.py:Leaky"))
    assert cli("config", "show", config, "--set", "model.cell.kind=leaky.py:Leaky").code == 0
    assert not Path("ran").exists()
