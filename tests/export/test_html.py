"""`charlm export --to html`: what the command writes and says, and the weights of the page."""

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from charlm.errors import CharlmError
from charlm.export import export, rounding
from charlm.export.rounding import int8_matrix
from charlm.look import look_page, opening
from charlm.web import page as web
from tests.browser import data_of
from tests.conftest import ROOT
from tests.export.models import model_of
from tests.export.odd import Odd

MODEL = Path(web.__file__).parent / "model"


@pytest.mark.parametrize(("options", "name"), [([], "int8"), (["--weights", "float32"], "float32")])
def test_it_says_what_the_page_costs(cli, trained_run, tmp_path, model, options, name):
    result = cli("export", trained_run, "--to", "html", "--out", tmp_path / "a.html", *options)
    assert (result.code, result.out) == (0, "")
    before, after, scored = re.search(
        rf"a\.html: [\d.]+ kB; {name}: (\d\.\d{{4}}) nats per character before, (\d\.\d{{4}}) after "
        r"\([+-]0\.\d\d%\), on ([\d,]+) characters of validation text\n$",
        result.err,
    ).groups()
    valid = model.split("valid")
    assert float(before) == pytest.approx(model.evaluate(valid).nats_per_char, abs=1e-4)
    assert after == before or name == "int8"
    assert int(scored.replace(",", "")) == len(valid) - 1
    data = data_of((tmp_path / "a.html").read_text(encoding="utf-8"))
    assert data["precision"] == name
    assert len(data["example"]) > 200  # to complete and to score
    units = data_of(look_page(model, opening(model, 5000)))["units"]
    assert data["units"] == [{name: unit[name] for name in data["units"][0]} for unit in units]
    assert [file.name for file in tmp_path.iterdir()] == ["a.html"]


def test_weights_that_lose_too_much_are_refused(model, tmp_path, monkeypatch):
    monkeypatch.setattr(rounding, "MOST_LOSS", -1.0)
    with pytest.raises(CharlmError):
        export(model, "html", tmp_path / "a.html")
    assert [*tmp_path.iterdir()] == []


def test_without_the_training_text(tmp_path):
    """Of a cell that charlm does not have; the page loads nothing and runs nothing else."""
    assert "; int8; nats not compared: gone.txt: " in export(model_of("odd"), "html", tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    [program] = data_of(page)["model"]["programs"]
    assert [state["name"] for state in program["states"]] == [*Odd.states]
    assert [*program["shown"]] == ["leaky", "new_y", "gate decay"]
    page = page.replace("http://www.w3.org/2000/svg", "")
    assert not any(each in page for each in ("eval(", "unsafe-inline", "://"))
    assert data_of(page)["example"] == ""


def test_int8_rows_use_the_whole_range():
    weights = np.random.default_rng(0).normal(size=(5, 300)).astype(np.float32)
    weights[3] = 0
    values, scales = int8_matrix(weights)
    assert np.abs(values).max(axis=1).tolist() == [127, 127, 127, 0, 127]
    np.testing.assert_allclose(values * scales[:, None], weights, atol=float(scales.max()) * 0.51)


def test_only_a_page_that_needs_webassembly_may_compile_it():
    assert "wasm" not in web.content_policy("", "")
    allowed = web.content_policy("", "", wasm=True)
    assert re.search(r"script-src 'sha256-[^']*' 'wasm-unsafe-eval';", allowed)
    assert "'unsafe-eval'" not in allowed


def test_the_kernel_is_compiled_from_its_source(tmp_path):
    wanted = re.search(r"with clang ([\d.]+)\.$", (MODEL / "kernel.c").read_text(encoding="utf-8"), re.MULTILINE)
    assert wanted
    if not (shutil.which("clang") and shutil.which("wasm-ld")):
        pytest.skip("no clang or no wasm-ld")
    version = subprocess.run(["clang", "--version"], capture_output=True, text=True, check=True).stdout
    if f"clang version {wanted[1]}" not in version:
        pytest.skip(f"another clang than {wanted[1]}")
    out = tmp_path / "kernel.wasm"
    done = subprocess.run([ROOT / "scripts/wasm", out], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert out.read_bytes() == (MODEL / "kernel.wasm").read_bytes()
