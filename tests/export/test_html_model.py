"""Weights of exported pages, and the kernel that multiplies them."""

import base64
import re
import shutil
import subprocess
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from charlm.export.agreement import plain_copy
from charlm.export.html_model import html_nats, int8_matrix, packed_model, round_to_int8
from charlm.inference.evaluation import evaluate
from charlm.web import page
from charlm.web.page import content_policy
from tests.conftest import ROOT
from tests.export.models import model_of, some_ids

MODEL = Path(page.__file__).parent / "model"


def unpacked(array: dict[str, str]) -> np.ndarray:
    dtype = np.dtype(array["type"]).newbyteorder("<")
    return np.frombuffer(zlib.decompress(base64.b64decode(array["data"])), dtype)


def test_rows_of_int8_have_the_scale_of_the_least_error():
    rng = np.random.default_rng(0)
    weights = (rng.normal(size=(20, 300)) * rng.uniform(0.01, 10, size=(20, 1))).astype(np.float32)
    weights[3] = 0
    weights[4] = np.sign(weights[4])
    values, scales = found = int8_matrix(weights)
    assert values.dtype == np.int8
    assert np.abs(values).max() <= 127
    most = np.abs(weights).max(axis=1, keepdims=True) / 127
    with np.errstate(invalid="ignore"):
        simple = np.nan_to_num(np.rint(weights / most)) * most
    error, simple_error = (np.square(each - weights).sum(axis=1) for each in (found.dense, simple))
    assert (error <= simple_error * 1.0001).all()
    assert error.sum() < 0.98 * simple_error.sum()
    np.testing.assert_array_equal(found.dense[3], 0)
    np.testing.assert_allclose(found.dense[4], weights[4], rtol=1e-6)
    assert (scales > 0).all()


def test_the_page_has_the_weights_that_charlm_scores():
    trained = model_of("rhn", inputs="tied", layers=2)
    network = plain_copy(trained)
    round_to_int8(network)
    model: dict[str, Any] = packed_model(trained, int8=True)["model"]

    def dense(matrix: dict[str, Any]) -> np.ndarray:
        values = unpacked(matrix["values"]).reshape(matrix["rows"], matrix["columns"])
        return values * unpacked(matrix["scales"])[:, None]

    expected = {name: parameter.detach() for name, parameter in network.named_parameters()}
    depths = np.stack([dense(each) for each in model["layers"][1]["weight_hh"]])
    np.testing.assert_array_equal(depths, expected["layers.weight_hh_l1"])
    np.testing.assert_array_equal(dense(model["output"]), expected["embedding.weight"])
    np.testing.assert_array_equal(unpacked(model["layers"][1]["bias_hh"]), expected["layers.bias_hh_l1"].flatten())
    assert model["embedding"] is None


def test_nats_before_and_after():
    trained = model_of("gru", layers=2)
    ids = some_ids(trained, 3000, 1)[:, 0].numpy()
    before = html_nats(trained, ids, int8=False)
    assert before == pytest.approx(evaluate(trained.network, ids, torch.device("cpu")).nats_per_char, abs=1e-6)
    weights = [parameter.clone() for parameter in trained.network.parameters()]
    after = html_nats(trained, ids, int8=True)
    assert 0 < abs(after - before) < 0.01
    assert all(map(torch.equal, weights, trained.network.parameters()))


def test_only_a_page_that_needs_webassembly_may_compile_it():
    assert "wasm" not in content_policy("", "")
    allowed = content_policy("", "", wasm=True)
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
