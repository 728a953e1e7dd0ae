"""`charlm export --to onnx`: the file computes without charlm what charlm does."""

import json
import sys

import numpy as np
import pytest
import torch

from charlm.cells.operations import OPERATIONS
from charlm.errors import CharlmError
from charlm.export import export
from charlm.inference.trained import TrainedModel
from tests.export.models import HIDDEN, every_model, model_of, some_ids

onnxruntime = pytest.importorskip("onnxruntime")


def exported(trained: TrainedModel, folder):
    """The model in a session of onnxruntime."""
    assert "; logits differ by " in export(trained, "onnx", folder / "a.onnx")
    return onnxruntime.InferenceSession(folder / "a.onnx", providers=["CPUExecutionProvider"])


@every_model
def test_onnx_computes_what_charlm_does(tmp_path, options):
    trained = model_of(**options)
    session = exported(trained, tmp_path)
    names = [each.name for each in session.get_inputs()[1:]]
    start = json.loads(session.get_modelmeta().custom_metadata_map["charlm"])["start"]
    last = [np.array(start[name], np.float32)[:, None].repeat(5, axis=1) for name in names]
    state = None
    for steps in (13, 1, 4):
        ids = some_ids(trained, steps, 5)
        inputs = {name: np.asarray(part) for name, part in zip(names, last, strict=True)}
        ours, *last = session.run(None, {"ids": ids.numpy(), **inputs})
        with torch.no_grad():
            logits, state = trained.network(ids, state)
        for one, other in zip((ours, *last), (logits, *state), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_names_shapes_and_vocabulary_of_a_graph(tmp_path):
    session = exported(model_of("lstm", layers=2, records="\n"), tmp_path)
    state = [2, "B", HIDDEN]
    assert {each.name: each.shape for each in session.get_inputs()} == {"ids": ["T", "B"], "h": state, "c": state}
    outputs = {each.name: each.shape for each in session.get_outputs()}
    assert outputs == {"logits": ["T", "B", 12], "new_h": state, "new_c": state}
    start = dict.fromkeys(("h", "c"), [[0.0] * HIDDEN] * 2)
    facts = {"level": "char", "characters": "\n abcdefghé😀", "records": "\n", "start": start}
    assert json.loads(session.get_modelmeta().custom_metadata_map["charlm"]) == facts


def test_a_step_of_more_operations_than_python_recurses(tmp_path, monkeypatch):
    monkeypatch.setenv("CHARLM_KERNELS", "none")
    exported(model_of("deep", layers=2), tmp_path)


def test_a_graph_that_computes_something_else_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setitem(OPERATIONS, "sigmoid", OPERATIONS["sigmoid"]._replace(onnx="Tanh"))
    with pytest.raises(CharlmError):
        export(model_of(), "onnx", tmp_path / "a.onnx")
    assert [*tmp_path.iterdir()] == []


def test_without_onnx(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(CharlmError):
        export(model_of(), "onnx", tmp_path / "a.onnx")
