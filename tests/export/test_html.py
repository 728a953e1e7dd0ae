"""`charlm export --to html`: what the command writes and says, weights, and the set of the training text's windows."""

import copy
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from charlm.errors import CharlmError
from charlm.export import export, html
from charlm.export.html_model import int8_matrix, packed_model
from charlm.inference.evaluation import evaluate
from charlm.web import page as web
from tests.browser import data_of, unpacked
from tests.conftest import ROOT
from tests.export.models import model_of, some_ids
from tests.export.odd import Odd

MODEL = Path(web.__file__).parent / "model"


@pytest.fixture
def command(cli, trained_run, tmp_path, monkeypatch):
    """`charlm export` of a run to a.html, in its own folder; returns the result and the data of the page."""
    monkeypatch.chdir(tmp_path)

    def command(*words, run=trained_run):
        result = cli("export", run, "--to", "html", "--out", "a.html", *words)
        return result, data_of(Path("a.html").read_text(encoding="utf-8")) if result.code == 0 else None

    return command


@pytest.mark.parametrize(("options", "name"), [([], "int8"), (["--float32"], "float32")])
def test_it_says_what_the_page_costs(command, tmp_path, model, options, name):
    result, data = command(*options)
    assert (result.code, result.out) == (0, "")
    before, after, scored = re.fullmatch(
        r"(?:data .*\n|export   writing .*\n)*"
        rf"export   a\.html: [\d.]+ kB; {name}: (\d\.\d{{4}}) nats per character before, (\d\.\d{{4}}) "
        rf"after \([+-]0\.\d\d%\), on ([\d,]+) characters of validation text\n",
        result.err,
    ).groups()
    valid = model.split("valid")
    assert float(before) == pytest.approx(model.evaluate(valid).nats_per_char, abs=1e-4)
    assert after == before or name == "int8"
    assert int(scored.replace(",", "")) == len(valid) - 1
    assert data["precision"] == name
    assert len(data["example"]) > 200  # to complete and to score
    assert [file.name for file in tmp_path.iterdir()] == ["a.html"]


def test_the_page_of_a_model_in_bf16_is_scored_in_fp32(model, tmp_path):
    network = copy.deepcopy(model.network)
    network.precision = "bf16"
    assert export(replace(model, network=network), "html", tmp_path / "a.html") == export(
        model, "html", tmp_path / "b.html"
    )


def test_weights_that_lose_too_much_are_refused(model, tmp_path, monkeypatch):
    monkeypatch.setattr(html, "MOST_LOSS", -1.0)
    with pytest.raises(CharlmError, match=r"html: int8 weights raise the loss .* allowed: -100\.0%; use --float32"):
        export(model, "html", tmp_path / "a.html")
    assert [*tmp_path.iterdir()] == []


def test_a_text_of_one_character_loses_nothing(cli, command, tiny_config, text_file):
    text_file.write_text("a" * 2000)
    assert cli("train", "--config", tiny_config, "--run-dir", "run").code == 0
    result, _ = command(run="run")
    assert "int8: 0.0000 nats per character before, 0.0000 after (+0.00%), on 99 characters" in result.err


def test_without_the_training_text(tmp_path, without_training_text):
    """Of a cell that charlm does not have; the page loads nothing and runs nothing else."""
    done = export(model_of("odd"), "html", tmp_path / "a.html")
    assert done.endswith("; int8; nats not compared: the text is gone")
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    [program] = data_of(page)["model"]["programs"]
    assert [state["name"] for state in program["states"]] == [*Odd.states]
    assert [*program["shown"]] == ["leaky", "new_y", "gate decay"]
    page = page.replace("http://www.w3.org/2000/svg", "")
    assert not any(each in page for each in ("eval(", "unsafe-inline", "://"))
    assert data_of(page)["example"] == ""


def test_only_an_earlier_page_is_replaced(cli, command, trained_run):
    Path("a.html").write_text("<!DOCTYPE html>\n<title>years of work</title>", encoding="utf-8")
    assert command()[0].error == (
        "--out a.html: exists and is another file; allowed: a new or empty file, or a page of charlm export"
    )
    assert "years of work" in Path("a.html").read_text(encoding="utf-8")
    Path("a.html").unlink()
    assert [command()[0].code for _ in range(2)] == [0, 0]
    result = cli("export", trained_run, "--to", "onnx", "--out", "a", "--float32")
    assert result.usage_error.endswith("--float32 needs --to html")


def test_int8_rows_use_the_whole_range():
    weights = np.random.default_rng(0).normal(size=(5, 300)).astype(np.float32)
    weights[3] = 0
    values, scales = int8_matrix(weights)
    assert np.abs(values).max(axis=1).tolist() == [127, 127, 127, 0, 127]
    np.testing.assert_allclose(values * scales[:, None], weights, atol=float(scales.max()) * 0.51)


def test_the_page_has_the_weights_that_charlm_scores():
    trained = model_of("rhn", inputs="projected", layers=2)
    ids = some_ids(trained, 3000, 1)[:, 0].numpy()
    before = evaluate(trained.network, ids).nats_per_char
    packed: dict[str, Any] = packed_model(trained, int8=True)["model"]

    def dense(matrix: dict[str, Any]) -> np.ndarray:
        values = unpacked(matrix["values"]).reshape(matrix["rows"], matrix["columns"])
        return values * unpacked(matrix["scales"])[:, None]

    expected = {name: parameter.detach() for name, parameter in trained.network.named_parameters()}
    depths = np.stack([dense(each) for each in packed["layers"][1]["weight_hh"]])
    np.testing.assert_array_equal(depths, expected["layers.weight_hh_l1"])
    np.testing.assert_array_equal(dense(packed["output"]), expected["embedding.weight"])
    np.testing.assert_array_equal(dense(packed["projection"]), expected["projection.weight"])
    np.testing.assert_array_equal(unpacked(packed["layers"][1]["bias_hh"]), expected["layers.bias_hh_l1"].flatten())
    assert packed["embedding"] is None
    assert 0 < abs(evaluate(trained.network, ids).nats_per_char - before) < 0.01


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
