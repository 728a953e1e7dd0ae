"""`charlm export --to html`: what the command writes and says, and the weights of the page."""

import math
import re
import shutil
import subprocess

import pytest

from charlm.errors import CharlmError
from charlm.export import export, rounding
from charlm.look import look_page, opening
from tests.browser import data_of
from tests.conftest import ROOT
from tests.export.models import model_of
from tests.export.odd import Odd


@pytest.mark.parametrize(("options", "name"), [([], "int8"), (["--weights", "float32"], "float32")])
def test_it_says_what_the_page_costs(cli, trained_run, tmp_path, model, options, name):
    result = cli("export", trained_run, "--to", "html", "--out", tmp_path / "a.html", *options)
    assert (result.code, result.out) == (0, "")
    told = re.search(rf"{name}: (\S+) nats .* before, (\S+) after .*, on (\S+) characters", result.err)
    before, after, scored = told.groups()
    valid = model.split("valid")
    assert float(before) == pytest.approx(model.evaluate(valid).nats_per_char, abs=1e-4)
    assert after == before or name == "int8"
    assert scored == f"{len(valid.ids) - 1:,}"
    data = data_of((tmp_path / "a.html").read_text(encoding="utf-8"))
    assert (data["precision"], data["score"]["of"]) == (name, valid.name)
    assert data["score"]["bits"] == pytest.approx(float(after) / math.log(2), abs=1e-3)
    units = data_of(look_page(model, opening(model, valid, 5000)))["units"]
    assert data["units"] == [{name: unit[name] for name in data["units"][0]} for unit in units]
    assert [file.name for file in tmp_path.iterdir()] == ["a.html"]


def test_weights_that_lose_too_much_are_refused(model, tmp_path, monkeypatch):
    monkeypatch.setattr(rounding, "MOST_LOSS", -1.0)
    with pytest.raises(CharlmError):
        export(model, "html", tmp_path / "a.html")
    assert [*tmp_path.iterdir()] == []


def test_without_the_training_text(tmp_path):
    """Of a cell that charlm does not have."""
    assert "; int8; nats not compared: gone.txt: " in export(model_of("odd"), "html", tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    [program] = data_of(page)["model"]["programs"]
    assert [state["name"] for state in program["states"]] == [*Odd.states]
    assert [*program["shown"]] == ["leaky", "new_y", "gate decay"]
    assert data_of(page)["example"] == ""


def test_the_kernel_is_compiled_from_its_source(tmp_path):
    folder = ROOT / "charlm/web/model"
    wanted = re.search(r"with clang ([\d.]+)\.$", (folder / "kernel.c").read_text(encoding="utf-8"), re.MULTILINE)
    if not (shutil.which("clang") and shutil.which("wasm-ld")):
        pytest.skip("no clang or no wasm-ld")
    if f"clang version {wanted[1]}" not in subprocess.check_output(["clang", "--version"], text=True):
        pytest.skip(f"another clang than {wanted[1]}")
    subprocess.run([ROOT / "scripts/wasm", tmp_path / "kernel.wasm"], check=True, timeout=60)
    assert (tmp_path / "kernel.wasm").read_bytes() == (folder / "kernel.wasm").read_bytes()
