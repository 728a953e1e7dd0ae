"""The Python face of a trained model says what the commands say."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import charlm.inference
from charlm.data.vocabulary import Vocabulary, readable
from charlm.errors import CheckpointError, DataError, DeviceError, VocabularyError
from charlm.inference import Adaptation, TrainedModel, load
from charlm.inference.sampling import valid_text
from tests.text import words_text


@pytest.fixture
def model(trained_run) -> TrainedModel:
    return load(trained_run, device="cpu")


def test_loaded_from_a_run_or_a_file(model, trained_run):
    path = trained_run / "checkpoints" / "best.safetensors"
    assert model.path == load(str(path)).path == path
    assert not model.network.training
    assert repr(model) == f"<TrainedModel {path}: lstm, 1 × 16 units, cpu>"
    assert model.progress["step"] == 6
    assert len(model.vocabulary) == len(set(words_text(20_000)))


def test_samples_are_those_of_the_command(model, cli, trained_run):
    text = model.sample("so ", length=60, temperature=0.7, top_k=5, seed=3)
    words = ["--prompt", "so ", "--length", 60, "--temperature", 0.7, "--top-k", 5, "--seed", 3]
    assert cli("sample", trained_run, *words).out == f"so {text}\n"
    assert len(model.sample()) == 500
    assert model.sample(seed=1) != model.sample(seed=2)
    stop = text[20:23]
    assert model.sample("so ", length=60, temperature=0.7, top_k=5, seed=3, stop=stop).endswith(stop)
    assert model.novelty([words_text(20_000)[100:160]])[0].windows_share == 1
    assert model.sample("sZo É", length=60, temperature=0.7, top_k=5, seed=3, skip_unknown=True) == text


def test_a_sample_as_it_is_written(model):
    words = {"length": 60, "temperature": 0.7, "seed": 3}
    pieces = model.sample("so ", stream=True, **words)
    first = next(pieces)
    assert len(first) == 1
    assert first + "".join(pieces) == model.sample("so ", **words)
    with pytest.raises(VocabularyError):
        model.sample("Z", stream=True)


@pytest.mark.parametrize("text", ["é€😀", "aé\udce2\udc82", "\udce2\udc82b", "\udcff\udce2é\udcf0\udc9f\udc98", ""])
def test_pieces_that_are_not_utf8(text):
    whole = readable(text)
    for cut in range(len(text) + 1):
        assert "".join(valid_text(iter([text[:cut], *text[cut:]]))) == whole


def test_a_table_for_notebooks(model):
    table = model._repr_html_()
    assert table.startswith("<table><tr><th>model</th><td>lstm, 1 × 16 units, ")
    assert "<th>trained</th><td>6 steps</td>" in table
    assert f"<td>{model.path}</td>" in table
    other = replace(model, path=Path("<a\n&b>"), vocabulary=Vocabulary.of_bytes(), progress={})
    assert r"<td>&lt;a\n&amp;b&gt;</td>" in other._repr_html_()
    assert "<td>bytes</td>" in other._repr_html_()
    assert "<td>—</td>" in other._repr_html_()


def test_next_is_what_the_whole_text_says(model):
    prompt = words_text(300)
    logits, _ = model.network(torch.from_numpy(model.vocabulary.encode(prompt).astype("int64"))[:, None])
    expected = logits[-1, 0].softmax(-1).tolist()
    found = model.next(prompt, k=1000)
    assert "".join(sorted(character for character, _ in found)) == model.vocabulary.characters
    for character, probability in found:
        assert probability == pytest.approx(expected[model.vocabulary.characters.index(character)], abs=1e-6)
    assert model.next(prompt) == found[:5]
    assert model.next(prompt, k=1)[0][1] == max(probability for _, probability in found)
    with pytest.raises(ValueError, match="k: found 0; allowed: an integer ≥ 1"):
        model.next(k=0)
    with pytest.raises(VocabularyError, match="not in the model's vocabulary"):
        model.next("Z")
    vocabulary = Vocabulary.of_bytes()  # half of é is a lone surrogate, and both halves are é
    assert vocabulary.encode("".join(map(vocabulary.symbol, "é".encode()))).tolist() == list("é".encode())
    with pytest.raises(VocabularyError, match=r"^U\+D800: not a character; it has no bytes$"):
        vocabulary.encode("a\ud800")


def test_scores_are_those_of_the_command(model, cli, trained_run):
    value = json.loads(cli("eval", trained_run, "--split", "test", "--dynamic", "--json").out)
    ids = model.training_splits()["test"]
    assert model.evaluate(ids).nats_per_char == pytest.approx(value["nats_per_char"], rel=1e-6)
    assert model.evaluate(ids, streams=1).nats_per_char == value["nats_per_char"]
    dynamic = value["dynamic"]
    assert model.evaluate_dynamically(ids).nats_per_char == dynamic["nats_per_char"]
    faster = model.evaluate_dynamically(ids, Adaptation(lr=0.01), per_char=True)
    assert faster.nats_per_char != dynamic["nats_per_char"]
    assert faster.per_char_nats is not None
    assert len(faster.per_char_nats) == len(ids) - 1
    text = words_text(500)
    assert model.evaluate(text).nats_sum == model.evaluate(model.vocabulary.encode(text)).nats_sum


def test_mistakes(model, tmp_path, monkeypatch):
    with pytest.raises(VocabularyError, match=r"'Z' \(U\+005A\): not in the model's vocabulary"):
        model.sample("Z")
    with pytest.raises(VocabularyError, match="not in the model's vocabulary"):
        model.evaluate("so Z")
    with pytest.raises(DataError, match="evaluation: found a text of 1 character; allowed: 2 or more"):
        model.evaluate("s")
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        load(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="sees no GPU"):
        load(model.path, device="cuda")


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("length", -1),
        ("temperature", -1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_p", 1.5),
        ("min_p", -0.1),
    ],
)
def test_sampling_options_out_of_range(model, option, wrong):
    with pytest.raises(ValueError, match=f"{option}: found .*; allowed: "):
        model.sample("so", **{option: wrong})


def test_every_public_name_exists():
    assert all(hasattr(charlm.inference, name) for name in charlm.inference.__all__)


@pytest.mark.parametrize("kernels", [True, False])
def test_a_small_model_on_a_gpu_writes_on_the_cpu_if_a_kernel_can(trained_run, kernels, request, capsys):
    request.getfixturevalue("needs_kernels" if kernels else "no_kernels")
    model = replace(load(trained_run, "cpu"), device=torch.device("meta"))
    model.network.precision = "bf16"
    found = model.for_sampling()
    assert model.network.precision == "bf16"
    if kernels:
        assert (found.device.type, found.network.precision) == ("cpu", "fp32")
        assert capsys.readouterr().err.startswith("device   cpu, which writes faster with a model of this size; ")
        assert found.sample("a", seed=1) == load(trained_run, "cpu").sample("a", seed=1)
    else:
        assert found is model
