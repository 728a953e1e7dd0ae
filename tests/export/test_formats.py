"""`charlm export --to torch` and `--to onnx`: the export does without charlm what charlm does."""

import json
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from charlm.errors import ExportError, PackageError
from charlm.export import export, onnx_graph, onnx_layer
from charlm.export.torch_module import load_exported
from charlm.inference import TrainedModel
from charlm.layers import as_tuple
from tests.export.models import CELLS_TO_EXPORT, HIDDEN, every_model, extreme_model_of, model_of, rounding_of, some_ids

VOCABULARY = {"level": "char", "characters": "\n abcdefghé😀", "unit": "text"}


@pytest.fixture
def exported(tmp_path, monkeypatch):
    """Exports a model; returns what the Python file defines where charlm is not installed."""

    def exported(trained: TrainedModel):
        done = export(trained, "torch", tmp_path / "out")
        assert done.check.difference < max(1e-5, rounding_of(trained))
        assert done.size_bytes == sum(file.stat().st_size for file in (tmp_path / "out").iterdir())
        with monkeypatch.context() as patch:
            for name in [name for name in sys.modules if name.split(".")[0] == "charlm"]:
                patch.setitem(sys.modules, name, None)
            return load_exported(tmp_path / "out")

    return exported


@pytest.fixture
def session(tmp_path):
    """Exports a model to ONNX and opens it."""
    onnxruntime = pytest.importorskip("onnxruntime")

    def session(trained: TrainedModel):
        assert export(trained, "onnx", tmp_path / "a.onnx").check.difference < 1e-4
        return onnxruntime.InferenceSession(tmp_path / "a.onnx", providers=["CPUExecutionProvider"])

    return session


@every_model
def test_torch_computes_and_writes_what_charlm_does(exported, options):
    trained = model_of(**options)
    names = exported(trained)
    model = names["load"]()
    ids = some_ids(trained, 23, 4)
    with torch.no_grad():
        for state in (None, tuple(torch.randn_like(s) for s in as_tuple(trained.network.layers.zero_state(4)))):
            if options["case"].startswith("slstm") and state:
                state = tuple(part.abs() + 1 for part in state)  # n is above 0
            state = state if state is None or len(state) != 1 else state[0]
            ours, ours_last = model(ids, state)
            theirs, theirs_last = trained.network(ids, state)
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(ours_last, theirs_last, rtol=1e-5, atol=1e-5)
    for prompt in ("", "abé"):
        written = trained.sample(prompt, length=30, temperature=0)
        for temperature in (0, 1e-9, 5e-324):
            assert names["sample"](model, prompt, 30, temperature) == prompt + written


@every_model
def test_onnx_computes_what_charlm_does(session, options):
    trained = model_of(**options)
    opened, names = session(trained), trained.network.layers.state_names
    for streams in (1, 5):
        state = last = as_tuple(trained.network.layers.zero_state(streams))
        for steps in (13, 1, 1, 4):
            ids = some_ids(trained, steps, streams)
            inputs = {name: np.asarray(part) for name, part in zip(names, last, strict=True)}
            ours, *last = opened.run(None, {"ids": ids.numpy(), **inputs})
            with torch.no_grad():
                logits, state = trained.network(ids, state if len(names) > 1 else as_tuple(state)[0])
            np.testing.assert_allclose(ours, logits, rtol=1e-4, atol=1e-4)
            for one, other in zip(last, as_tuple(state), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", CELLS_TO_EXPORT)
@pytest.mark.parametrize(("to", "roundings"), [("torch", 1), ("onnx", 2)])
def test_gates_far_out_of_their_range(tmp_path, to, roundings, case):
    if to == "onnx":
        pytest.importorskip("onnxruntime")
    trained = extreme_model_of(case)
    assert export(trained, to, tmp_path / "out").check.difference < roundings * rounding_of(trained)


@pytest.mark.parametrize(("case", "unit"), [("rnn", "text"), ("rnn-relu", "line"), ("lstm", "line"), ("gru", "text")])
def test_kinds_that_torch_has_are_its_modules(exported, tmp_path, case, unit):
    names = exported(model_of(case, unit=unit, layers=2))
    assert type(names["load"]().layers) is getattr(torch.nn, case.split("-")[0].upper())
    assert len((tmp_path / "out/char_model.py").read_text().splitlines()) < 75
    assert not [name for name in names if "Layer" in name]


def test_what_is_in_the_folder(exported, tmp_path):
    """The step reads like the equations, and the weights have their names in charlm."""
    trained = model_of("lstm-norm", layers=2)
    exported(trained)
    code = (tmp_path / "out/char_model.py").read_text()
    for line in ("f = torch.sigmoid(d[1])", "new_c = f * c + i * g", "return new_h, new_c"):
        assert f"    {line}\n" in code
    assert load_file(tmp_path / "out/weights.safetensors").keys() == trained.network.state_dict().keys()
    assert json.loads((tmp_path / "out/vocabulary.json").read_text()) == VOCABULARY


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
        patch.setitem(onnx_layer._OPERATORS, "sigmoid", "Tanh")
        with pytest.raises(ExportError, match=r"onnx: its logits or states differ from charlm's by .*; allowed: 0\.0"):
            export(model_of(), "onnx", tmp_path / "a.onnx")
    with monkeypatch.context() as patch:
        patch.setattr(onnx_graph, "_MOST_BYTES", 1000)
        with pytest.raises(ExportError, match=r"onnx: the weights are .* bytes; allowed: 1,000; export --to torch"):
            export(model_of(), "onnx", tmp_path / "a.onnx")
    for package in ("onnx", "onnxruntime"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            with pytest.raises(PackageError, match=f"^onnx: {package} is not installed; pip install onnx onnxruntime$"):
                export(model_of(), "onnx", tmp_path / "a.onnx")
    assert [*tmp_path.iterdir()] == []
