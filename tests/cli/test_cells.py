"""`charlm cells`: list, show, check."""

import re
from pathlib import Path

import pytest

from charlm.cells import CELLS
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
    assert "parameters  weight_ih [H, I], weight_hh [H, H], leak [H], bias [H]" in shown
    Path("required.py").write_text(LEAKY.replace(": float = 0.0", ": float"))
    refused = cli("cells", "check", "required.py")
    assert "Leaky: found no valid default of leak; allowed: one for each" in refused.error


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
    refused = f"{config}: model.cell.kind: found 'evil.py:Leaky'"
    for words in (["train", "--config"], ["plan", "--config"], ["config", "show"]):
        assert cli(*words, config).error.startswith(f"{refused} in a run's folder, ")
    assert cli("train", "--resume", "--run-dir", copied_run, "--config", config).error.startswith(refused)
    assert cli("train", "--resume", "--run-dir", copied_run, "--set", "train.max_steps=7").code == 0
    config.write_text(config.read_text().replace("kind: lstm", "kind: evil.py:Leaky"))
    assert cli("config", "show", config, "--set", "model.cell.kind=leaky.py:Leaky").code == 0
    assert not Path("ran").exists()
