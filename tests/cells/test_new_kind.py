"""A new kind of cell is one file: outside of charlm for a person's own, inside for all, with a line and a YAML."""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import charlm
from charlm.cells import RNN, Cell, tanh
from charlm.cells.stored import StoredCell
from charlm.config import flatten, load_config, parse_config
from charlm.errors import CellError, ConfigError
from charlm.inference.trained import TrainedModel
from tests.conftest import ROOT
from tests.runs import rows
from tests.text import words_text

LEAKY = '''\
"""A leaky network."""

from typing import Any

from charlm.cells import Cell, Parameters, sigmoid, tanh


class Leaky(Cell):
    """h' = (1 − a) ⊙ h + a ⊙ tanh(W x + R h + b) with a = σ(leak), learned for each unit."""

    initial = ("leak",)

    leak: float = 0.0
    """Initial value of the parameter."""

    def step(self, p: Parameters, x: Any, h: Any) -> Any:
        a = sigmoid(p.vector("leak", start=self.leak))
        new = tanh(p.product("weight_ih", x) + p.product("weight_hh", h) + p.vector("bias"))
        p.note(new=new, a=a)
        return h + a * (new - h)
'''
CONFIG = """\
data: {source: text.txt}
model: {cell: {kind: ./leaky.py:Leaky, hidden: 12, leak: 0.5}, embedding: 6, layers: 2, zoneout: 0.1, dropout: 0.1}
train: {batch_size: 4, bptt: 8, max_steps: 4, log_every: 2, eval_every: 2, save_every: 2, sample_every: 2}
optimizer: {name: muon}
device: cpu
threads: 1
"""


def fill(folder: Path) -> Path:
    """A folder with a text, a cell, and in a folder of their own both again with a config that names them."""
    (folder / "own").mkdir()
    for name, text in {"leaky.py": LEAKY, "own/leaky.py": LEAKY, "own/mine.yaml": CONFIG}.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "text.txt").write_text(words_text(20_000), encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return fill(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, compiled: Path) -> Path:
    """A run of the cell, whose file is gone. To read only."""
    folder = fill(tmp_path_factory.mktemp("own"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        charlm.train(config="own/mine.yaml", run_dir="run")
    (folder / "own/leaky.py").unlink()
    return folder / "run"


@pytest.fixture
def run(trained: Path, folder: Path) -> Path:
    """A copy of the run. A file at the old place must not be run."""
    Path("own/leaky.py").write_text("raise AssertionError\n")
    return shutil.copytree(trained, folder / "run")


def test_a_cell_outside_of_charlm_goes_through_every_command(cli, folder: Path, trained: Path) -> None:
    shown = cli("config", "show", "own/mine.yaml")
    assert shown.err == f"cell     {folder}/own/leaky.py: runs this file, for the cells in it\n"
    own = {"kind": f"{folder}/own/leaky.py:Leaky", "hidden": 12, "leak": 0.5}
    assert yaml.safe_load(shown.out)["model"]["cell"] == own
    assert 0 < json.loads(cli("eval", trained, "--json").out)["nats_per_char"] < 4
    assert json.loads(cli("runs", trained, "--json").out)[0]["kind"] == "Leaky"
    for words in (
        ["sample", trained, "--length", 40],
        ["score", trained, "text.txt"],
        ["look", trained, "--out", "look.html"],
        ["report", trained, "--out", "report.html"],
        ["export", trained, "--to", "onnx", "--out", "exported.onnx"],
    ):
        assert cli(*words).code == 0, words
    assert "Leaky, 2 × 12 units" in repr(charlm.load(trained, device="cpu"))


def test_resuming_and_fine_tuning_run_no_file(cli, run: Path) -> None:
    resumed = cli("train", "--resume", "--run-dir", run, "--config", "own/mine.yaml", "--set", "train.max_steps=6")
    assert (resumed.code, rows(run)[-1]["step"]) == (0, 6)
    words = ["train", "--config", "own/mine.yaml", "--init-from", run, "--run-dir", "next"]
    tuned = cli(*words, "--set", "model.cell.leak=-1", "--set", "train.max_steps=1")
    assert tuned.code == 0, tuned.err
    assert "runs this file" not in resumed.err + tuned.err
    Path("own/leaky.py").write_text(LEAKY)
    assert cli("train", "--config", "own/mine.yaml", "--run-dir", "whole", "--set", "train.max_steps=6").code == 0
    assert rows(run)[-1]["nats"] == rows(Path("whole"))[-1]["nats"]


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ("model.cell.leak=1", "model.cell.leak: found 1, the run has 0.5; allowed on --resume: the same"),
        ("model.cell.leek=1", "unknown key; allowed: kind, hidden, leak; did you mean 'leak'?"),
        ("model.cell.kind=other.py:Other", "found 'other.py:Other'; the run has"),
    ],
)
def test_a_run_stays_with_its_cell(cli, trained: Path, override: str, fault: str) -> None:
    Path("other.py").write_text("raise AssertionError\n")
    assert fault in cli("train", "--resume", "--run-dir", trained, "--set", override).error


def test_settings_are_chosen_around_it(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("charlm.choice.speed.measure", lambda *_: 0.01)
    cell = ["--set", "model.cell.kind=./leaky.py:Leaky", "--set", "model.cell.hidden=24"]
    suggested = cli("config", "suggest", "text.txt", "--minutes", 1, *cell)
    assert suggested.code == 0, suggested.err
    Path("suggested.yaml").write_text(suggested.out)
    assert "leaky.py:Leaky" in cli("config", "show", "suggested.yaml").out


# The file


def leaky(option: str, default: str = "0.0") -> str:
    """The file with another option."""
    return LEAKY.replace("leak: float = 0.0", f"{option} = {default}")


# What is in the file, which class is named, and what is said of it.
FAULTS = [
    ("class Leaky(:\n", "Leaky", "wrong.py, line 1: SyntaxError: invalid syntax"),
    ("import json\njson.loads('')\n", "Leaky", "wrong.py, line 2: JSONDecodeError: Expecting value"),
    (LEAKY, "tanh", "found tanh, which is no subclass of charlm.cells.Cell; allowed: Leaky"),
    (f"{LEAKY}\nclass Two(Leaky):\n    pass\n", "", "found 2 cells, Leaky, Two; allowed: one's name"),
    (LEAKY.replace("Leaky", "lstm"), "lstm", "found a class lstm, as a built-in kind is called; "),
    (leaky("step: float"), "Leaky", "found an option Leaky.step, which Cell has; allowed: another name"),
    (leaky("größe: float"), "Leaky", "found an option Leaky.größe; allowed: a name of ASCII letters"),
    (leaky("leak"), "Leaky", "; allowed: options with a type, as in scale: float = 3.0"),
    (leaky("leak: int", "2.5"), "Leaky", "leak = 2.5 as a default; Input should be a valid integer"),
    (leaky("leak: float", "float('nan')"), "Leaky", "leak = nan; allowed: a finite number, text, true or false"),
    (leaky("rate: float"), "Leaky", "initial = ('leak',); allowed: a tuple of options: rate"),
]


@pytest.mark.parametrize(("source", "name", "fault"), FAULTS, ids=lambda value: value[-30:])
@pytest.mark.filterwarnings("ignore:Field name")
def test_what_is_wrong_with_the_file_is_one_line(source: str, name: str, fault: str) -> None:
    Path("wrong.py").write_text(source, encoding="utf-8")
    kind = f"wrong.py:{name}" if name else "wrong.py"
    with pytest.raises(ConfigError) as raised:
        parse_config({}, "x", [f"model.cell.kind={kind}"], runs_file=True)
    [line] = raised.value.faults
    assert line.startswith(f"--set model.cell.kind={kind}: model.cell.kind: ")
    assert fault in line
    assert "\n" not in line


def test_only_a_config_that_a_user_typed_runs_a_file() -> None:
    Path("own/leaky.py").write_text("raise AssertionError\n")
    cell = load_config(Path("own/mine.yaml"), ["model.cell.leek=3"]).model.cell
    assert isinstance(cell, StoredCell)
    assert cell.options() == {"leak": 0.5, "leek": 3}
    with pytest.raises(CellError):
        cell.program(square=True)


@pytest.mark.parametrize(("kind", "leak"), [("own/../own/leaky.py:Leaky", 0.5), ("./leaky.py:Leaky", 0.0)])
def test_another_cell_leaves_the_options_of_a_config_and_the_same_keeps_them(kind: str, leak: float) -> None:
    """Whatever its path is called: the one in a config starts in the folder of the config."""
    cell = load_config(Path("own/mine.yaml"), [f"model.cell.kind={kind}"], runs_file=True).model.cell
    assert cell.options() == {"leak": leak}


def test_all_faults_are_named_beside_those_of_the_cell() -> None:
    overrides = ["model.cell.leek=3", "model.cell.hidden=0", "seed=x"]
    with pytest.raises(ConfigError) as raised:
        load_config(Path("own/mine.yaml"), overrides, runs_file=True)
    assert len(raised.value.faults) == 3


def test_a_changed_file_is_run_again() -> None:
    for leak in (0.0, 3.0):
        Path("leaky.py").write_text(leaky("leak: float", str(leak)))
        cell = parse_config({}, "x", ["model.cell.kind=leaky.py"], runs_file=True).model.cell
        assert cell.options() == {"leak": leak}


def test_other_processes_get_its_programs_instead_of_its_class() -> None:
    config = parse_config({}, "x", ["model.cell.kind=leaky.py", "model.cell.hidden=7"], runs_file=True)
    received = pickle.loads(pickle.dumps(config))
    assert flatten(received) == flatten(config)
    assert isinstance(received.model.cell, StoredCell)
    assert received.model.cell.program(square=False) == config.model.cell.program(square=False)


# Python


LIMITS = {"device": "cpu", "threads": 1, "seed": 1, "train.max_steps": 2, "train.batch_size": 2, "train.bptt": 8}
SCALE = 1.0


class Scaled(Cell):
    """A network that reads a global."""

    scale: float = 0.5

    def step(self, p: Any, x: Any, h: Any) -> Any:
        return SCALE * self.scale * tanh(p.linear(x, h))


@pytest.fixture
def train(no_kernels: None) -> Callable[..., TrainedModel]:
    """Trains a cell for two updates."""
    Path("tiny.yaml").write_text("data: {source: text.txt}\nmodel: {embedding: 4}\n")
    return lambda cell, **more: charlm.train(config="tiny.yaml", cell=cell, overrides=LIMITS, **more).load()


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (Scaled, ("Scaled", 256, {"scale": 0.5})),
        (Scaled(hidden=7, scale=0.25), ("Scaled", 7, {"scale": 0.25})),
        (RNN(hidden=9), ("rnn", 9, {"nonlinearity": "tanh"})),
    ],
)
def test_python_takes_a_class_and_an_object(train: Callable[..., TrainedModel], cell: Any, expected: Any) -> None:
    trained = train(cell).config.model.cell
    assert (trained.name, trained.hidden, trained.options()) == expected


def test_python_takes_a_class_of_a_program_without_a_file(
    train: Callable[..., TrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "__file__", "<stdin>")  # as in `python - < program.py`
    assert train(Scaled).config.model.cell.name == "Scaled"


def test_python_takes_no_other_cell() -> None:
    with pytest.raises(TypeError):
        charlm.train("text.txt", cell=3)  # type: ignore[arg-type]


def test_each_model_has_the_step_as_it_is_when_the_model_is_made(
    train: Callable[..., TrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(row: Any) -> None:
        monkeypatch.setattr(f"{__name__}.SCALE", 0.01)

    scores = []
    for on_log in (change, None):
        trained = train(Scaled(hidden=7), on_log=on_log)
        scores.append(trained.evaluate(words_text(500)).nats_per_char)
        monkeypatch.setattr(f"{__name__}.SCALE", 1.0)
    assert scores[0] == scores[1]


# Inside of charlm


def test_a_kind_inside_of_charlm_is_a_file_a_line_and_a_yaml(folder: Path) -> None:
    shutil.copytree(ROOT / "charlm", "charlm", ignore=shutil.ignore_patterns("__pycache__"))
    kind = LEAKY.replace("    leak:", '    kind: str = "leaky"\n    """A leaky network."""\n    leak:')
    kind = kind.replace("charlm.cells import Cell, ", "charlm.cells.cell import Cell\nfrom charlm.cells.step import ")
    Path("charlm/cells/leaky.py").write_text(kind, encoding="utf-8")
    registry = Path("charlm/cells/__init__.py")
    source = re.sub(r"(CELLS: .*\{\n)", r'\1    "leaky": Leaky,\n', registry.read_text(encoding="utf-8"))
    source = source.replace("from charlm.cells.lstm", "from charlm.cells.leaky import Leaky\nfrom charlm.cells.lstm", 1)
    registry.write_text(source, encoding="utf-8")
    Path("configs").mkdir()
    Path("configs/leaky.yaml").write_text(CONFIG.replace("./leaky.py:Leaky", "leaky"), encoding="utf-8")
    # Without kernels, which are the same as those of a cell in a file.
    environment = os.environ | {"PYTHONPATH": str(folder), "CXX": "false"}
    command = [sys.executable, "-P", "-m", "charlm", "train", "--config", "leaky", "--run-dir", "run"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    own = {"kind": "leaky", "hidden": 12, "leak": 0.5}
    assert yaml.safe_load(Path("run/config.yaml").read_text())["model"]["cell"] == own
