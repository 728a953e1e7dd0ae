"""`charlm export --to onnx`: the file computes without charlm what charlm does."""

import json
import re
import sys

import numpy as np
import pytest
import torch

from charlm.cells.operations import OPERATIONS
from charlm.errors import CharlmError
from charlm.export import export, onnx_graph
from charlm.inference.trained import TrainedModel
from tests.export.models import CELLS_TO_EXPORT, HIDDEN, every_model, extreme_model_of, model_of, rounding_of, some_ids

VOCABULARY = {"level": "char", "characters": "\n abcdefghé😀", "unit": "text"}


@pytest.fixture
def session(tmp_path):
    """Exports a model to ONNX and opens it."""
    onnxruntime = pytest.importorskip("onnxruntime")

    def session(trained: TrainedModel):
        assert difference_of(export(trained, "onnx", tmp_path / "a.onnx")) < 1e-4
        return onnxruntime.InferenceSession(tmp_path / "a.onnx", providers=["CPUExecutionProvider"])

    return session


def difference_of(found: str) -> float:
    """The largest difference between logits in what an export says."""
    [difference] = re.findall(r"; logits differ by (\S+) at most$", found)
    return float(difference)


@every_model
def test_onnx_computes_what_charlm_does(session, options):
    trained = model_of(**options)
    opened = session(trained)
    names = [each.name for each in opened.get_inputs()[1:]]
    for streams in (1, 5):
        state = last = trained.network.layers.zero_state(streams)
        for steps in (13, 1, 1, 4):
            ids = some_ids(trained, steps, streams)
            inputs = {name: np.asarray(part) for name, part in zip(names, last, strict=True)}
            ours, *last = opened.run(None, {"ids": ids.numpy(), **inputs})
            with torch.no_grad():
                logits, state = trained.network(ids, state)
            np.testing.assert_allclose(ours, logits, rtol=1e-4, atol=1e-4)
            for one, other in zip(last, state, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", CELLS_TO_EXPORT)
def test_gates_far_out_of_their_range(tmp_path, case):
    pytest.importorskip("onnxruntime")
    trained = extreme_model_of(case)
    assert difference_of(export(trained, "onnx", tmp_path / "out")) < 2 * rounding_of(trained)


def test_names_shapes_and_vocabulary_of_a_graph(session):
    opened = session(model_of("lstm", layers=2, unit="line"))
    state = [2, "B", HIDDEN]
    assert {each.name: each.shape for each in opened.get_inputs()} == {"ids": ["T", "B"], "h": state, "c": state}
    assert {each.name: each.shape for each in opened.get_outputs()} == {
        "logits": ["T", "B", 12], "new_h": state, "new_c": state,
    }  # fmt: skip
    assert json.loads(opened.get_modelmeta().custom_metadata_map["charlm"]) == VOCABULARY | {"unit": "line"}


def test_graphs_that_are_refused(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    with monkeypatch.context() as patch:
        patch.setitem(OPERATIONS, "sigmoid", OPERATIONS["sigmoid"]._replace(onnx="Tanh"))
        with pytest.raises(CharlmError, match=r"onnx: its logits or states differ from charlm's by .*; allowed: 0\.0"):
            export(model_of(), "onnx", tmp_path / "a.onnx")
    with monkeypatch.context() as patch:
        patch.setattr(onnx_graph, "_MOST_BYTES", 1000)
        with pytest.raises(CharlmError, match=r"onnx: the weights are .* bytes; allowed: 1,000; train a smaller"):
            export(model_of(), "onnx", tmp_path / "a.onnx")
    for package in ("onnx", "onnxruntime"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            with pytest.raises(CharlmError, match=f"^onnx: {package} is not installed; pip install onnx onnxruntime$"):
                export(model_of(), "onnx", tmp_path / "a.onnx")
    assert [*tmp_path.iterdir()] == []
