"""`charlm export --to onnx`: onnxruntime computes what charlm computes."""

import json
import sys

import numpy as np
import pytest
import torch

from charlm.errors import ExportError, PackageError
from charlm.export import export, onnx_graph, onnx_layer
from charlm.layers import as_tuple
from tests.export.models import (
    CELLS_TO_EXPORT,
    HIDDEN,
    every_model,
    extreme_model_of,
    model_of,
    rounding_of,
    some_ids,
)

onnxruntime = pytest.importorskip("onnxruntime")


def session_of(trained, path, bound=1e-4):
    assert export(trained, "onnx", path).check.difference < bound
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@every_model
def test_it_computes_what_charlm_does(tmp_path, options):
    trained = model_of(**options)
    session, names = session_of(trained, tmp_path / "a.onnx"), trained.network.layers.state_names
    for streams in (1, 5):
        state = last = as_tuple(trained.network.layers.zero_state(streams))
        for steps in (13, 1, 1, 4):
            ids = some_ids(trained, steps, streams)
            inputs = {name: np.asarray(part) for name, part in zip(names, last, strict=True)}
            found, *last = session.run(None, {"ids": ids.numpy(), **inputs})
            with torch.no_grad():
                logits, state = trained.network(ids, state if len(names) > 1 else as_tuple(state)[0])
            np.testing.assert_allclose(found, logits, rtol=1e-4, atol=1e-4)
            for one, other in zip(last, as_tuple(state), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", CELLS_TO_EXPORT)
def test_gates_far_out_of_their_range(tmp_path, case):
    trained = extreme_model_of(case)
    session_of(trained, tmp_path / "a.onnx", 2 * rounding_of(trained))


def test_names_shapes_and_vocabulary(tmp_path):
    session = session_of(model_of("lstm", layers=2, unit="line"), tmp_path / "a.onnx")
    assert {each.name: each.shape for each in session.get_inputs()} == {
        "ids": ["T", "B"], "h": [2, "B", HIDDEN], "c": [2, "B", HIDDEN],
    }  # fmt: skip
    assert {each.name: each.shape for each in session.get_outputs()} == {
        "logits": ["T", "B", 12], "new_h": [2, "B", HIDDEN], "new_c": [2, "B", HIDDEN],
    }  # fmt: skip
    assert json.loads(session.get_modelmeta().custom_metadata_map["charlm"]) == {
        "level": "char", "characters": "\n abcdefghé😀", "unit": "line", "direction": "forward",
    }  # fmt: skip


def test_a_graph_that_does_not_agree_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(onnx_layer._OPERATORS, "sigmoid", "Tanh")
    with pytest.raises(ExportError, match=r"onnx: its logits or states differ from charlm's by .*; allowed: 0\.0001"):
        export(model_of(), "onnx", tmp_path / "a.onnx")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_without_the_extra(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(PackageError) as error:
        export(model_of(), "onnx", tmp_path / "a.onnx")
    assert str(error.value) == f"onnx: {package} is not installed; pip install onnx onnxruntime"


def test_a_model_too_large_for_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_graph, "_MOST_BYTES", 1000)
    with pytest.raises(ExportError, match=r"onnx: the weights are .* bytes; allowed: 1,000; export --to torch"):
        export(model_of(), "onnx", tmp_path / "a.onnx")
