"""`charlm export --to torch`: the folder does without charlm what charlm does."""

import json
import sys

import pytest
import torch
from safetensors.torch import load_file

from charlm.export import export
from charlm.export.torch_module import load_exported
from charlm.inference import TrainedModel
from charlm.layers import as_tuple
from tests.export.models import CELLS_TO_EXPORT, every_model, extreme_model_of, model_of, rounding_of, some_ids


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


@every_model
def test_it_computes_and_writes_what_charlm_does(exported, options):
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
            assert names["sample"](model, prompt, 30, temperature) == trained.vocabulary.joined(prompt, written)


@pytest.mark.parametrize("case", CELLS_TO_EXPORT)
def test_gates_far_out_of_their_range(tmp_path, case):
    trained = extreme_model_of(case)
    assert export(trained, "torch", tmp_path / "out").check.difference < rounding_of(trained)


@pytest.mark.parametrize("case", ["rnn", "rnn-relu", "lstm", "gru"])
@pytest.mark.parametrize("unit", ["text", "line"])
def test_kinds_that_torch_has_are_its_modules(exported, tmp_path, case, unit):
    names = exported(model_of(case, unit=unit, layers=2))
    assert type(names["load"]().layers) is getattr(torch.nn, case.split("-")[0].upper())
    assert len((tmp_path / "out/char_model.py").read_text().splitlines()) < 75
    assert not [name for name in names if "Layer" in name]


def test_the_step_reads_like_the_equations(exported, tmp_path):
    exported(model_of("lstm-norm"))
    code = (tmp_path / "out/char_model.py").read_text()
    for line in ("f = torch.sigmoid(d[1])", "new_c = f * c + i * g", "return new_h, new_c"):
        assert f"    {line}\n" in code


def test_the_weights_have_their_names_in_charlm(exported, tmp_path):
    trained = model_of("rhn", layers=2)
    exported(trained)
    weights = load_file(tmp_path / "out/weights.safetensors")
    assert weights.keys() == trained.network.state_dict().keys()


def test_the_vocabulary_beside_it(exported, tmp_path):
    exported(model_of(direction="backward"))
    assert json.loads((tmp_path / "out/vocabulary.json").read_text()) == {
        "level": "char", "characters": "\n abcdefghé😀", "unit": "text", "direction": "backward",
    }  # fmt: skip
