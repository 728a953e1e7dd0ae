"""A new kind of cell takes a folder, a line in the registry, a class in the config union and a YAML; nothing else."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.text import words_text

ROOT = Path(__file__).parents[2]

# The folder: `charlm/cells/toy/`, with reference equations only and two states.
MODULE = '''\
"""A network whose output is a running average of its states."""

from typing import Unpack

from torch import Tensor

from charlm.cells.backend import LayerCall, LayerState
from charlm.cells.base import RecurrentBase, RecurrentOptions
from charlm.cells.toy.reference import toy_layer


class Toy(RecurrentBase):
    """h_t = tanh(W x_t + b + R h_{t−1}), m_t = rate ⊙ m_{t−1} + (1 − rate) ⊙ h_t."""

    kind = "toy"
    state_names = ("h", "m")
    option_names = ("rate",)

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, *, rate: float = 0.5,
        **others: Unpack[RecurrentOptions],
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, **others)
        self.check_probability(rate=rate)
        self.rate = rate
        self.create_parameters()

    def parameter_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        H = self.hidden_size
        return {"weight_ih": (H, self.layer_input_size(layer)), "weight_hh": (H, H), "bias": (H,)}

    def reference_layer(self, x_TBI: Tensor, call: LayerCall) -> tuple[Tensor, LayerState]:
        y_TBH, *last = toy_layer(x_TBI, call, rate=self.rate)
        return y_TBH, tuple(last)
'''
REFERENCE = '''\
"""The equations of one layer of the toy network."""

import torch
from torch import Tensor
from torch.nn import functional as F

from charlm.cells.backend import LayerCall
from charlm.cells.base import add_product, zone_out


def toy_layer(x_TBI: Tensor, call: LayerCall, *, rate: float) -> tuple[Tensor, Tensor, Tensor]:
    w_ih_HI, w_hh_HH, b_H = call.parameters
    h_BH, m_BH = call.state
    kept_h, kept_m = (None, None) if call.kept_TBS is None else call.kept_TBS.chunk(2, dim=2)
    outputs = []
    for t, x_BH in enumerate(F.linear(x_TBI, w_ih_HI, b_H).unbind()):
        new_h_BH = torch.tanh(add_product(x_BH, h_BH, w_hh_HH.t(), call.mask_BH))
        m_BH = zone_out(torch.lerp(new_h_BH, m_BH, rate), m_BH, kept_m, t)
        h_BH = zone_out(new_h_BH, h_BH, kept_h, t)
        outputs.append(m_BH)
    return torch.stack(outputs), h_BH, m_BH
'''
# The class in the config union.
OPTIONS = '''\
class ToyConfig(Cell):
    kind: Literal["toy"]
    """A running average of a plain network."""
    rate: float = 0.5
    """How much of the average each step keeps."""


'''
# The YAML.
CONFIG = """\
# A toy network to check that charlm takes it.
data: {source: text.txt}
model: {cell: {kind: toy, hidden: 12}, embedding: 6, layers: 2, residual: true, zoneout: 0.1,
        dropout: {embedding: 0.1, input: 0.1, state: 0.1, weights: 0.1, between_layers: 0.1, output: 0.1}}
train: {batch_size: 4, bptt: 8, max_steps: 4, log_every: 2, eval_every: 2, save_every: 2, sample_every: 2,
        sample_length: 10, ema: 0.9, reset_state: 0.1}
optimizer: {name: muon}
device: cpu
threads: 1
"""
# Each command in the one process, which imports torch once; prints [exit code, stdout, stderr] of each.
CHILD = """\
import contextlib, io, json, sys
import charlm.training.plan
from charlm.cli import main

assert charlm.training.plan._MEASURE_S > 0
charlm.training.plan._MEASURE_S = 0.0
ends = []
for command in json.loads(sys.argv[1]):
    sys.argv = ["charlm", *command]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
            code = 0
        except SystemExit as leave:
            code = leave.code or 0
    ends.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(ends))
"""


def insert(folder: Path, text: str, *, before: str) -> None:
    """Insert `text` in the one file of `folder` that has `before`, once."""
    (path,) = (path for path in folder.glob("*.py") if before in path.read_text(encoding="utf-8"))
    whole = path.read_text(encoding="utf-8")
    assert whole.count(before) == 1, f"{path.name}: {before!r}"
    path.write_text(whole.replace(before, text + before), encoding="utf-8")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of charlm with the toy kind added in four places."""
    shutil.copytree(ROOT / "charlm", tmp_path / "charlm", ignore=shutil.ignore_patterns("__pycache__"))
    folder = tmp_path / "charlm/cells/toy"
    folder.mkdir()
    (folder / "__init__.py").write_text(MODULE, encoding="utf-8")
    (folder / "reference.py").write_text(REFERENCE, encoding="utf-8")
    insert(tmp_path / "charlm/cells", "from charlm.cells.toy import Toy\n", before="from charlm.cells.rnn import RNN\n")
    insert(tmp_path / "charlm/cells", '    "toy": Toy,\n', before='    "rhn": RHN,\n')
    insert(tmp_path / "charlm/config", OPTIONS, before="class RNNConfig(")
    insert(tmp_path / "charlm/config", "ToyConfig | ", before="RNNConfig | LSTMConfig |")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/toy.yaml").write_text(CONFIG, encoding="utf-8")
    (tmp_path / "text.txt").write_text(words_text(20_000), encoding="utf-8")
    return tmp_path


@pytest.mark.usefixtures("kernels")
def test_a_kind_added_in_four_places_goes_through_every_command(checkout: Path) -> None:
    commands = [
        ["config", "show", "--config", "toy"],
        ["plan", "--config", "toy", "--json"],
        ["train", "--config", "toy", "--run-dir", "run"],
        ["train", "--resume", "--run-dir", "run", "--set", "train.max_steps=6"],
        ["eval", "run", "--json"],
        ["sample", "run", "--seed", "1", "--length", "40"],
        ["export", "run", "--to", "torch", "--out", "exported"],
        ["export", "run", "--to", "onnx", "--out", "exported.onnx"],
        ["export", "run", "--to", "html", "--out", "exported.html"],
        ["train", "--config", "toy", "--run-dir", "other", "--set", "model.cell.hidden=1000000"],
        ["train", "--config", "toy", "--run-dir", "other", "--set", "model.cell.kind=toi"],
    ]
    child = subprocess.run(
        [sys.executable, "-P", "-c", CHILD, json.dumps(commands)],
        cwd=checkout, env=os.environ | {"PYTHONPATH": str(checkout)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    shown, planned, trained, resumed, scored, sampled, *exported, page, too_much, unknown = json.loads(child.stdout)

    for code, _, err in (shown, planned, trained, resumed, scored, sampled, *exported):
        assert code == 0, err
    assert re.search(r"kind: toy\n +hidden: 12\n +rate: 0.5", shown[1])
    plan = json.loads(planned[1])
    assert plan["backend"] == "toy: reference loop"
    assert plan["parameters"]["layers"] == (12 * 6 + 12 * 12 + 12) + (12 * 12 + 12 * 12 + 12)
    assert "toy: reference loop" in trained[2]
    rows = [json.loads(line) for line in (checkout / "run/metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == 6
    assert 0 < json.loads(scored[1])["nats_per_char"] < 4
    assert len(sampled[1].rstrip("\n")) >= 1
    error = "error: html: found the kind 'toy'; allowed: rnn | lstm | gru | rhn | slstm; use --to torch or --to onnx"
    assert (page[0], page[2].splitlines()[-1]) == (1, error)
    assert not (checkout / "exported.html").exists()
    assert too_much[0] == 1
    assert too_much[2].splitlines()[-1].startswith("error: memory: the model and a window need at least ")
    assert unknown[0] == 1
    assert "allowed: gru | lstm | rhn | rnn | slstm | toy; did you mean 'toy'?" in unknown[2]
