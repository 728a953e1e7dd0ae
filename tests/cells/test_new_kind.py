"""A new kind of cell is one file, outside of charlm."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import charlm
from charlm.cells import LSTM, RNN, Cell, tanh
from charlm.cells.file import load_cell
from charlm.cells.stored import StoredCell
from charlm.config import flatten, parse_config
from charlm.errors import CellError, ConfigError
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
        new = p.product("mix", new, start="orthogonal", fixed=True) * p.vector("gain", start=0.9, fixed=True)
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
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return fill(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, compiled):
    """A run of the cell, whose file is gone. To read only."""
    folder = fill(tmp_path_factory.mktemp("own"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        charlm.train(config="own/mine.yaml", run_dir="run")
    (folder / "own/leaky.py").unlink()
    return folder / "run"


def test_a_cell_outside_of_charlm_goes_through_every_command(cli, folder, trained):
    shown = cli("config", "show", "own/mine.yaml")
    assert shown.err == f"cell     {folder}/own/leaky.py: runs this file, for the cells in it\n"
    own = {"kind": f"{folder}/own/leaky.py:Leaky", "hidden": 12, "leak": 0.5}
    assert yaml.safe_load(shown.out)["model"]["cell"] == own
    row = json.loads(cli("runs", trained, "--json").out)[0]
    assert (row["kind"], row["parameters"]) == ("Leaky", charlm.load(trained, device="cpu").parameters)
    for words in (
        ["eval", trained, "--dynamic"],
        ["sample", trained, "--length", 40],
        ["look", trained, "--out", "look.html"],
        ["report", trained, "--out", "report.html"],
        ["export", trained, "--to", "onnx", "--out", "exported.onnx"],
    ):
        assert cli(*words).code == 0, words
    assert "Leaky, 2 × 12 units" in repr(charlm.load(trained, device="cpu"))


def test_training_does_not_change_what_is_fixed(trained):
    layers = charlm.load(trained, device="cpu").network.layers
    assert (layers.get_buffer("gain_l1") == 0.9).all()
    mix = layers.get_buffer("mix_l1")
    torch.testing.assert_close(mix @ mix.mT, torch.eye(12))


def test_resuming_runs_no_file_and_says_that_it_has_changed(cli, folder, trained):
    Path("own/leaky.py").write_text("raise AssertionError\n")
    run = shutil.copytree(trained, folder / "run")
    resumed = cli("train", "--resume", "--run-dir", run, "--config", "own/mine.yaml", "--set", "train.max_steps=6")
    assert (resumed.code, rows(run)[-1]["step"]) == (0, 6)
    assert f"{folder}/own/leaky.py:Leaky: the file has changed; the run continues with its own step" in resumed.err
    assert "runs this file" not in resumed.err
    Path("moved.yaml").write_text(CONFIG.replace("leak: 0.5", "leak: 2.5"))
    moved = cli("train", "--resume", "--run-dir", run, "--config", "moved.yaml").err
    assert "model.cell.leak: found 2.5, the run has 0.5; allowed on --resume: the same; start a new run" in moved
    Path("own/leaky.py").write_text(LEAKY)
    assert cli("train", "--config", "own/mine.yaml", "--run-dir", "whole", "--set", "train.max_steps=6").code == 0
    assert rows(run)[-1]["nats"] == rows(Path("whole"))[-1]["nats"]


@pytest.mark.usefixtures("no_kernels")
def test_weights_of_a_run_go_on_in_the_step_of_the_file_that_is_named(cli, folder, trained):
    """If the shapes fit; a line says so. Without a name the step is the run's."""
    words = ["train", "--set", "train.max_steps=1", "--run-dir"]
    says, by_config = "the step differs from that of the checkpoint", ("--config", "own/mine.yaml")
    same = cli(*words, "same", *by_config, "--init-from", trained, "--set", "model.cell.leak=-1")
    assert same.code == 0, same.err
    assert says not in same.err

    Path("own/leaky.py").write_text(LEAKY.replace('p.product("weight_hh"', '-0.9 * p.product("weight_hh"'))
    words = [*words[:3], "--init-from", "same", "--run-dir"]
    edited = cli(*words, "edited", *by_config, "--set", "model.cell.leak=1")
    assert f"{folder}/own/leaky.py:Leaky: {says}; the run uses the file's" in edited.err
    assert rows(Path("edited"))[0]["nats"] != rows(Path("same"))[0]["nats"]
    assert "-0.9" in str(charlm.load("edited").config.model.cell.program(square=False))
    options = ("--set", "device=cpu", "--set", "threads=1")
    unnamed = cli(*words, "unnamed", "text.txt", "--minutes", 0.01, *options)
    assert "the file has changed; the run takes the checkpoint's step" in unnamed.err
    named = cli(*words, "named", "text.txt", "--minutes", 0.01, *options, "--set", "model.cell.kind=own/leaky.py:Leaky")
    assert says in named.err
    refused = cli(*words, "refused", "text.txt", "--minutes", 0.01, *options, "--set", "model.cell.leak=1")
    assert refused.error == "model.cell.leak: found 1; the checkpoint of --init-from has -1.0; allowed: the same"

    # What is fixed comes from the file; so does what only other layers compute.
    Path("own/leaky.py").write_text(LEAKY.replace("start=0.9", "start=0.25"))
    fixed = cli(*words, "fixed", *by_config)
    assert says in fixed.err
    assert (charlm.load("fixed", device="cpu").network.layers.get_buffer("gain_l0") == 0.25).all()
    Path("own/leaky.py").write_text(LEAKY.replace("return h +", "return h if p.square else h +"))
    assert says in cli(*words, "square", *by_config).err

    Path("own/leaky.py").write_text(LEAKY.replace('p.vector("bias")', 'p.vector("bias") * p.vector("more")'))
    longer = cli(*words, "longer", *by_config)
    assert longer.err.endswith(
        "error: model.cell.kind: found a step with the parameters bias [H], gain [H], leak [H], mix [H, H], more [H], "
        "weight_hh [H, H], weight_ih [H, I]; the checkpoint of --init-from has bias [H], gain [H], leak [H], "
        "mix [H, H], weight_hh [H, H], weight_ih [H, I]; allowed: the same\n"
    )


# What is in the file, which class is named, and what is said of it.
FAULTS = [
    ("import json\njson.loads('')\n", "Leaky", "wrong.py, line 2: JSONDecodeError: Expecting value"),
    (LEAKY, "tanh", "found tanh, which is no subclass of charlm.cells.Cell; allowed: Leaky"),
    (f"{LEAKY}\nclass Two(Leaky):\n    pass\n", "", "found 2 cells, Leaky, Two; allowed: the name of one"),
    (LEAKY.replace("Leaky", "lstm"), "lstm", "found a class lstm, the name of a built-in kind; "),
]


@pytest.mark.parametrize(("source", "name", "fault"), FAULTS, ids=lambda value: value[-30:])
def test_what_is_wrong_with_the_file_is_one_line(source, name, fault):
    Path("wrong.py").write_text(source, encoding="utf-8")
    kind = f"wrong.py:{name}" if name else "wrong.py"
    with pytest.raises(ConfigError) as raised:
        parse_config({}, "x", {"model.cell.kind": kind}, load_cell)
    [line] = raised.value.faults
    assert line.startswith(f"--set model.cell.kind={kind}: model.cell.kind: ")
    assert fault in line


def test_other_processes_get_its_programs_instead_of_its_class():
    config = parse_config({}, "x", {"model.cell.kind": "leaky.py", "model.cell.hidden": 7}, load_cell)
    received = pickle.loads(pickle.dumps(config))
    assert flatten(received) == flatten(config)
    assert isinstance(received.model.cell, StoredCell)
    assert received.model.cell.program(square=False) == config.model.cell.program(square=False)


@pytest.mark.parametrize(
    ("values", "options", "fault"),
    [
        ((), {"hiden": 16}, "LSTM: hiden: unknown key; allowed: .*; did you mean 'hidden'[?]"),
        ((), {"hidden": 0}, "LSTM: hidden: found 0; allowed: an integer ≥ 1 and ≤ 1,048,576"),
        ((16,), {}, "LSTM: found 16 without a name; allowed: options by name, as hidden=16"),
    ],
)
def test_python_is_told_of_wrong_options_in_one_line(values, options, fault):
    with pytest.raises((TypeError, ValueError), match=f"^{fault}$"):
        LSTM(*values, **options)


def test_an_error_names_the_step_not_who_calls_it():
    class Swapped(Cell):
        def step(self, p: Any, h: Any, x: Any) -> Any:
            return h

    line = Swapped.step.__code__.co_firstlineno
    with pytest.raises(CellError, match=rf"^test_new_kind.py, line {line}, Swapped.step: found h in the wrong place"):
        Swapped().program(square=True)


class Scaled(Cell):
    scale: float = 0.5

    def step(self, p: Any, x: Any, h: Any) -> Any:
        return self.scale * tanh(p.linear(x, h))


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (Scaled, ("Scaled", 256, {"scale": 0.5})),
        (Scaled(hidden=7, scale=0.25), ("Scaled", 7, {"scale": 0.25})),
        (RNN(hidden=9), ("rnn", 9, {"nonlinearity": "tanh"})),
    ],
)
def test_python_takes_a_class_and_an_object(cell, expected):
    Path("tiny.yaml").write_text("data: {source: text.txt}\nmodel: {embedding: 4}\n")
    limits = {"device": "cpu", "threads": 1, "train.max_steps": 2, "train.batch_size": 2, "train.bptt": 8}
    trained = charlm.train(config="tiny.yaml", cell=cell, overrides=limits).load().config.model.cell
    assert (trained.name, trained.hidden, trained.options()) == expected
