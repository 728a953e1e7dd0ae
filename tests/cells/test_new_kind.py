"""A new kind of cell is one file: outside of charlm for a person's own, inside for all, with a line and a YAML."""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

import charlm
from charlm.cells import LSTM
from charlm.cells.stored import StoredCell
from charlm.config import flatten, override_config, parse_config
from charlm.errors import ConfigError
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
model: {cell: {kind: ./leaky.py:Leaky, hidden: 12, leak: 0.5}, embedding: 6, layers: 2, residual: true, zoneout: 0.1,
        dropout: {embedding: 0.1, input: 0.1, state: 0.1, weights: 0.1, between_layers: 0.1, output: 0.1}}
train: {batch_size: 4, bptt: 8, max_steps: 4, log_every: 2, eval_every: 2, save_every: 2, sample_every: 2,
        sample_length: 10, ema: 0.9, reset_state: 0.1}
optimizer: {name: muon}
device: cpu
threads: 1
precision: fp32
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a text, a cell, and in a folder of their own both again with a config that names them."""
    monkeypatch.setattr("charlm.training.plan._MEASURE_S", 0.0)
    monkeypatch.chdir(tmp_path)
    Path("own").mkdir()
    for name, text in {"leaky.py": LEAKY, "own/leaky.py": LEAKY, "own/mine.yaml": CONFIG}.items():
        Path(name).write_text(text, encoding="utf-8")
    Path("text.txt").write_text(words_text(20_000), encoding="utf-8")
    return tmp_path


def trained(cli, *words: object) -> Path:
    """A run of the cell, whose file is gone."""
    assert cli("train", "--config", "own/mine.yaml", "--run-dir", "run", *words).code == 0
    Path("own/leaky.py").unlink()
    return Path("run")


def test_a_cell_outside_of_charlm_goes_through_every_command(cli, folder: Path) -> None:
    kind = f"{folder}/own/leaky.py:Leaky"
    shown = cli("config", "show", "own/mine.yaml")
    assert shown.err == f"cell     {folder}/own/leaky.py: runs this file, for the cells in it\n"
    assert yaml.safe_load(shown.out)["model"]["cell"] == {"kind": kind, "hidden": 12, "leak": 0.5}
    planned = json.loads(cli("plan", "--config", "own/mine.yaml", "--json").out)
    assert "Leaky: " in planned["backend"]
    assert planned["parameters"]["layers"] == (12 * 6 + 12 * 12 + 2 * 12) + (12 * 12 + 12 * 12 + 2 * 12)

    run = trained(cli)
    assert yaml.safe_load((run / "config.yaml").read_text())["model"]["cell"]["kind"] == kind
    resumed = cli("train", "--resume", "--run-dir", run, "--set", "train.max_steps=6")
    assert (resumed.code, rows(run)[-1]["step"]) == (0, 6)
    assert "runs this file" not in resumed.err
    assert 0 < json.loads(cli("eval", run, "--json").out)["nats_per_char"] < 4
    assert len(cli("sample", run, "--seed", 1, "--length", 40).out.rstrip("\n")) >= 1
    assert cli("score", run, "text.txt").code == 0
    assert cli("look", run, "--out", "look.html").code == 0
    assert cli("report", run, "--out", "report.html").code == 0
    assert json.loads(cli("runs", run, "--json").out)[0]["kind"] == "Leaky"
    fine_tuned = cli(
        "train", "--config", "own/mine.yaml", "--init-from", run, "--run-dir", "next", "--set", "model.cell.leak=-1"
    )
    assert fine_tuned.code == 0, fine_tuned.err
    assert "runs this file" not in fine_tuned.err


@pytest.mark.parametrize(("target", "place"), [("torch", "exported"), ("onnx", "exported.onnx")])
def test_its_model_is_exported(cli, target: str, place: str) -> None:
    exported = cli("export", trained(cli), "--to", target, "--out", place)
    assert exported.code == 0, exported.err
    assert Path(place).exists()


def test_resuming_equals_one_training_and_runs_no_file(cli) -> None:
    trained(cli)
    Path("own/leaky.py").write_text("raise AssertionError\n")
    words = ["train", "--resume", "--run-dir", "run", "--config", "own/mine.yaml"]
    assert cli(*words, "--set", "train.max_steps=6").code == 0
    Path("own/leaky.py").write_text(LEAKY)
    assert cli("train", "--config", "own/mine.yaml", "--run-dir", "whole", "--set", "train.max_steps=6").code == 0
    assert rows(Path("run"))[-1]["nats"] == rows(Path("whole"))[-1]["nats"]


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--set", "model.cell.leak=1"], "model.cell.leak: found 1, the run has 0.5; allowed on --resume: the same"),
        (["--set", "model.cell.leek=1"], "unknown key; allowed: kind, hidden, leak; did you mean 'leak'?"),
        (["--set", "model.cell.kind=other.py:Other"], "found 'other.py:Other'; the run has"),
        (["--set", "model.cell.kind=gru"], "model.cell.kind: found 'gru', the run has"),
    ],
)
def test_a_run_keeps_its_cell(cli, words: list[str], fault: str) -> None:
    trained(cli)
    Path("other.py").write_text("raise AssertionError\n")
    refused = cli("train", "--resume", "--run-dir", "run", *words)
    assert refused.code == 1
    assert fault in refused.error


def test_a_run_of_a_built_in_kind_runs_no_file(cli, trained_run: Path) -> None:
    Path("leaky.py").write_text("raise AssertionError\n")
    for words in (["--resume", "--run-dir", trained_run], ["text.txt", "--init-from", trained_run]):
        refused = cli("train", *words, "--set", "model.cell.kind=./leaky.py:Leaky")
        assert refused.code == 1
        assert "model.cell.kind: found './leaky.py:Leaky'; the run has 'lstm'; allowed: the same" in refused.error


def test_a_checkpoint_is_loaded_where_the_file_is_not(cli, folder: Path, tmp_path_factory) -> None:
    elsewhere = shutil.move(trained(cli), tmp_path_factory.mktemp("elsewhere") / "run")
    model = charlm.load(elsewhere, device="cpu")
    assert repr(model).startswith("<TrainedModel ")
    assert "Leaky, 2 × 12 units" in repr(model)
    assert model.sample(length=20, seed=1) == charlm.load(elsewhere, device="cpu").sample(length=20, seed=1)


def test_settings_are_chosen_around_it(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("charlm.choice.speed.measure", lambda *_: 0.01)
    words = ["text.txt", "--minutes", 1, "--set", "model.cell.kind=./leaky.py:Leaky", "--set", "model.cell.hidden=24"]
    suggested = cli("config", "suggest", *words)
    assert suggested.code == 0, suggested.err
    Path("suggested.yaml").write_text(suggested.out)
    assert cli("config", "check", "suggested.yaml").out == "suggested.yaml: valid\n"
    wrong = cli("config", "suggest", *words, "--set", "model.cell.leek=3")
    assert wrong.error.endswith("model.cell.leek: unknown key; allowed: kind, hidden, leak; did you mean 'leak'?")


def test_tune_searches_its_options(cli) -> None:
    words = ["--hours", 0.01, "--trials", 2, "--over", "model.cell.leak=-1..1", "--study", "study"]
    tuned = cli("tune", "--config", "own/mine.yaml", *words, "--set", "train.max_steps=2", "--json")
    assert tuned.code == 0, tuned.err
    assert [trial["state"] for trial in json.loads(tuned.out)["trials"]] == ["complete", "complete"]


# The file


@contextmanager
def faulty(kind: str) -> Iterator[pytest.ExceptionInfo[ConfigError]]:
    with pytest.raises(ConfigError) as raised:
        yield raised
    [fault] = raised.value.faults
    assert fault.startswith(f"--set model.cell.kind={kind}: model.cell.kind: ")
    assert "\n" not in fault


@pytest.mark.parametrize(
    ("source", "name", "fault"),
    [
        (None, "Leaky", "wrong.py: no such file; allowed: a Python file with a subclass of charlm.cells.Cell"),
        ("class Leaky(:\n", "Leaky", "wrong.py, line 1: SyntaxError: invalid syntax"),
        ("\nimport nowhere\n", "Leaky", "wrong.py, line 2: ModuleNotFoundError: No module named 'nowhere'"),
        ("\n\n1 / 0\n", "Leaky", "wrong.py, line 3: ZeroDivisionError: division by zero"),
        ("raise SystemExit\n", "Leaky", "wrong.py, line 1: SystemExit: "),
        (LEAKY, "Leeky", "wrong.py: found no class Leeky; allowed: Leaky; did you mean 'Leaky'?"),
        (LEAKY, "tanh", "wrong.py: found tanh, which is no subclass of charlm.cells.Cell; allowed: Leaky"),
        (LEAKY, "Cell", "wrong.py: found Cell, which is no subclass of charlm.cells.Cell; allowed: Leaky"),
        (f"{LEAKY}\nclass Two(Leaky):\n    pass\n", "", "wrong.py: found 2 cells, Leaky, Two; allowed: one's name"),
        ("x = 1\n", "", "wrong.py: found no subclass of charlm.cells.Cell; "),
        (LEAKY.replace("leak:", "step:"), "Leaky", "found an option Leaky.step, which Cell has; allowed: another name"),
        (
            LEAKY.replace("Leaky", "Größe"),
            "Größe",
            "found a class Größe; allowed: a name of ASCII letters, not beginning",
        ),
        (LEAKY.replace("leak:", "größe:"), "Leaky", "found an option Leaky.größe; allowed: a name of ASCII letters"),
        (LEAKY.replace("leak:", "stored:"), "Leaky", "found an option Leaky.stored, which Cell has; allowed: another"),
        (LEAKY.replace("leak: float", "leak"), "Leaky", "; allowed: options with a type, as in scale: float = 3.0"),
        (LEAKY.replace("Leaky", "lstm"), "lstm", "found a class lstm, as a built-in kind is called; "),
    ],
)
@pytest.mark.filterwarnings("ignore:Field name")
def test_what_is_wrong_with_the_file_is_one_line(source: str | None, name: str, fault: str) -> None:
    if source is not None:
        Path("wrong.py").write_text(source, encoding="utf-8")
    kind = f"wrong.py:{name}" if name else "wrong.py"
    with faulty(kind) as raised:
        parse_config({}, "x", [f"model.cell.kind={kind}"])
    assert fault in str(raised.value)


def test_a_step_that_is_no_program_names_its_line(cli) -> None:
    Path("leaky.py").write_text(LEAKY.replace("return h", "return h if h > 0 else h"))
    refused = cli("train", "text.txt", "--set", "model.cell.kind=leaky.py:Leaky")
    line = 1 + LEAKY[: LEAKY.index("return h")].count("\n")
    expected = f"leaky.py, line {line}, Leaky.step: a branch on a value, which a trace does not know; use where("
    assert refused.error.startswith(expected)


def test_a_changed_file_is_run_again() -> None:
    def leak() -> float:
        return parse_config({}, "x", ["model.cell.kind=leaky.py"]).model.cell.leak  # type: ignore[attr-defined]

    assert leak() == 0
    Path("leaky.py").write_text(LEAKY.replace("float = 0.0", "float = 3.0"))
    assert leak() == 3


def test_other_processes_get_its_programs_instead_of_its_class() -> None:
    config = parse_config({}, "x", ["model.cell.kind=leaky.py", "model.cell.hidden=7"])
    received = pickle.loads(pickle.dumps(config))
    assert flatten(received) == flatten(config)
    assert isinstance(received.model.cell, StoredCell)
    assert received.model.cell.program(square=False) == config.model.cell.program(square=False)
    assert flatten(override_config(received, "x", ["seed=3"])) == flatten(config) | {"seed": 3}


def test_two_cells_with_the_same_kernel_may_note_other_gates(cli) -> None:
    Path("noted.py").write_text(LEAKY)
    Path("silent.py").write_text(LEAKY.replace("p.note(new=new, a=a)", "pass"))
    for file in ("noted.py", "silent.py"):
        assert cli("cells", "check", file).code == 0


# From Python


@pytest.mark.usefixtures("no_kernels")
def test_python_takes_a_class_and_an_object(folder: Path) -> None:
    class Mine(LSTM):
        """An LSTM whose output is scaled, which no kernel of the LSTM computes."""

        scale: float = 0.5

        def step(self, p, x, h, c):
            h, c = super().step(p, x, h, c)
            return h * self.scale, c

    limits = {"train.max_steps": 2, "device": "cpu", "threads": 1, "train.batch_size": 2, "train.bptt": 8}
    for cell, hidden in ((Mine, 256), (Mine(hidden=7, scale=0.25), 7), (LSTM(hidden=9), 9)):
        run = charlm.train(
            config=folder / "tiny.yaml" if (folder / "tiny.yaml").exists() else _tiny(folder),
            cell=cell,
            overrides=limits,
        )
        found = run.load().config.model.cell
        assert found.hidden == hidden
        assert found.name == ("lstm" if isinstance(cell, LSTM) and type(cell) is LSTM else "Mine")
        assert getattr(found, "scale", None) == {256: 0.5, 7: 0.25, 9: None}[hidden]
    with pytest.raises(TypeError, match=r"^cell: found 3; allowed: a subclass of charlm\.cells\.Cell"):
        charlm.train("text.txt", cell=3)  # type: ignore[arg-type]


def _tiny(folder: Path) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(f"data: {{source: {folder}/text.txt}}\nmodel: {{embedding: 4}}\n")
    return path


# Inside of charlm


# Without kernels, which are the same as those of a cell in a file.
COMMANDS = """
import sys
from charlm.cli import main
for words in ("config show leaky", "config options", "cells list", "train --config leaky --run-dir run"):
    sys.argv = ["charlm", *words.split()]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, words
"""


def test_a_kind_inside_of_charlm_is_a_file_a_line_and_a_yaml(folder: Path) -> None:
    shutil.copytree(ROOT / "charlm", "charlm", ignore=shutil.ignore_patterns("__pycache__"))
    kind = LEAKY.replace("    leak:", '    kind: Literal["leaky"] = "leaky"\n    """A leaky network."""\n    leak:')
    kind = kind.replace("import Any", "import Any, Literal").replace("charlm.cells import", "charlm.cells.cell import")
    Path("charlm/cells/leaky.py").write_text(kind, encoding="utf-8")
    registry = Path("charlm/cells/__init__.py")
    source = registry.read_text(encoding="utf-8")
    source = source.replace("from charlm.cells.lstm", "from charlm.cells.leaky import Leaky\nfrom charlm.cells.lstm", 1)
    registry.write_text(re.sub(r"(CELLS: .*\{\n)", r'\1    "leaky": Leaky,\n', source), encoding="utf-8")
    Path("configs").mkdir()
    Path("configs/leaky.yaml").write_text(CONFIG.replace("./leaky.py:Leaky", "leaky"), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-P", "-c", COMMANDS],
        env=os.environ | {"PYTHONPATH": str(folder), "CXX": "false"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "kind: leaky\n    hidden: 12\n    leak: 0.5" in done.stdout
    assert "`model.cell.leak`" in done.stdout
    assert "leaky      h           A leaky network" in done.stdout
    assert "done     max_steps" in done.stderr
