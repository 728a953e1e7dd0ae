"""Models that read backward: everything they say of a text is what a forward model says of the reversed text."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from charlm.checkpoint import read_checkpoint
from charlm.config import parse_config
from charlm.data import lines as data_lines
from charlm.data.vocabulary import Vocabulary
from charlm.errors import ConfigError
from charlm.inference import SamplingOptions, TrainedModel, load
from charlm.inference.line_samples import sample_lines
from charlm.inference.sampling import SampleText
from charlm.inference.trained import Verbatim
from tests.corpora import load_corpus
from tests.runs import untimed
from tests.text import words_text

NAMES = ["anna", "hanna", "johanna", "ann", "joan", "nora", "jo", ""]


def reversed_model(model: TrainedModel) -> TrainedModel:
    """The same weights for a model that reads backward."""
    data = model.config.data.model_copy(update={"direction": "backward"})
    vocabulary = replace(model.vocabulary, direction="backward")
    return replace(model, vocabulary=vocabulary, config=model.config.model_copy(update={"data": data}))


@pytest.fixture(params=["text", "line"])
def forward(request, model) -> TrainedModel:
    if request.param == "line":
        model.network.begins = int(model.vocabulary.encode("\n")[0])
    return model


@pytest.fixture
def backward(forward) -> TrainedModel:
    return reversed_model(forward)


TEXTS = [words_text(200), "so", "o", "", words_text(31)]


def test_scores_and_features_are_those_of_the_reversed_text(forward, backward):
    reversed_texts = [text[::-1] for text in TEXTS]
    # Scores are summed from the other end.
    np.testing.assert_allclose(backward.score(TEXTS), forward.score(reversed_texts), rtol=1e-14)
    np.testing.assert_array_equal(backward.features(TEXTS), forward.features(reversed_texts))
    pairs = [
        (backward.score(TEXTS, per_char=True), forward.score(reversed_texts, per_char=True)),
        (backward.features(TEXTS, pool=None), forward.features(reversed_texts, pool=None)),
    ]
    for ours, theirs in pairs:
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other[::-1])
    assert backward.next("so t") == forward.next("t os")
    text = words_text(3000) if forward.network.begins is None else "so\nto me"
    one, other = (model.evaluate(t, per_char=True) for model, t in ((backward, text), (forward, text[::-1])))
    assert one.nats_sum == other.nats_sum
    np.testing.assert_array_equal(one.per_char_nats, other.per_char_nats[::-1])


def test_whole_lines_are_scored(model):
    model.network.begins = int(model.vocabulary.encode("\n")[0])
    for text in ("so\nto me\n", "so\nto me", "\nso\n\nto", "", "\n", "so"):
        ids = reversed_model(model).scored_ids(model.vocabulary.encode(text)[::-1])
        framed = f"\n{text}" if text.endswith("\n") else f"\n{text}\n"
        assert ids.tolist() == model.vocabulary.encode(framed[::-1]).tolist()


@pytest.mark.parametrize("forward", ["text"], indirect=True)
def test_samples_are_reversed(forward, backward):
    words = {"length": 60, "temperature": 0.7, "seed": 3}
    text = backward.sample("so", **words)
    assert text == forward.sample("os", **words)[::-1]
    assert list(backward.sample("so", stream=True, **words)) == [text]
    assert backward.sample(**words) == forward.sample(**words)[::-1]
    stop = text[30:33]
    stopped = backward.sample("so", stop=stop, **words)
    assert stopped == text[text.rindex(stop) :]
    assert len(stopped) < 60
    assert backward.sample("so", stop="Z", **words) == text


@pytest.mark.parametrize("forward", ["line"], indirect=True)
def test_lines_end_at_their_beginning(forward, backward):
    options = SamplingOptions(length=200, temperature=1.2)
    ours, theirs = (
        list(sample_lines(model, prompt, options, 1, 40, unique=True))
        for model, prompt in ((backward, "so"), (forward, "os"))
    )
    assert [(seed, text[::-1], kind) for seed, text, kind in ours] == theirs
    assert not any("\n" in text for _, text, _ in ours)


@pytest.mark.parametrize("text", ["é€😀", "aé\udce2\udc82", "\udce2\udc82b", "\udcff\udce2é\udcf0\udc9f\udc98", "a"])
def test_bytes_are_reversed_back_before_they_are_decoded(text):
    vocabulary = Vocabulary("byte", direction="backward")
    ids = vocabulary.encode(text).tolist()
    assert bytes(ids[::-1]) == text.encode("utf-8", "surrogateescape")
    sample = SampleText(vocabulary, "", None)
    pieces = [sample.append(index, last=place == len(ids)) for place, index in enumerate(ids, start=1)]
    assert "".join(pieces) == text
    sample = SampleText(vocabulary, "é", None)
    assert "".join(sample.append(index, last=False) for index in vocabulary.encode("xxéabc").tolist()) == "éabc"


@pytest.fixture
def train(cli, tiny_config, tmp_path, text_file):
    """Trains on a text, reversed or not, that is also the validation text; returns the run's folder."""
    (tmp_path / "reversed.txt").write_text(text_file.read_text()[::-1])

    def train(source, *settings):
        file, run = tmp_path / source, tmp_path / f"{len([*tmp_path.iterdir()])}"
        settings = [f"data.source={file}", f"data.valid_source={file}", "data.split=[1,0,0]", *settings]
        words = [word for setting in settings for word in ("--set", setting)]
        result = cli("train", "--config", tiny_config, "--run-dir", run, *words)
        assert result.code == 0, result.err
        return run

    return train


@pytest.mark.parametrize("unit", ["text", "line"])
def test_training_is_training_on_the_reversed_text_bit_for_bit(train, unit):
    ours = train("text.txt", f"data.unit={unit}", "data.direction=backward")
    theirs = train("reversed.txt", f"data.unit={unit}")
    one, other = (read_checkpoint(run / "checkpoints/last.safetensors") for run in (ours, theirs))
    for group in ("weights", "optimizer", "carried"):
        found, expected = getattr(one, group), getattr(other, group)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in found)
    assert untimed(ours) == untimed(theirs)
    assert one.vocabulary == replace(other.vocabulary, direction="backward")


@pytest.fixture
def run(train):
    return train("text.txt", "data.direction=backward")


def test_the_commands_take_and_give_text_in_its_order(cli, run, tmp_path):
    model = load(run, device="cpu")
    text = model.sample("so ", length=40, temperature=0.8, seed=3)
    words = ["sample", run, "--prompt", "so ", "--length", 40, "--seed", 3]
    assert cli(*words).out == f"{text}so \n"
    value = json.loads(cli(*words, "--json").out)
    assert (value["direction"], value["samples"][0]["text"]) == ("backward", text)

    result = cli("next", run, "--prompt", "so ", "--top", 1)
    assert result.err == "backward these characters come before the prompt\n"
    value = json.loads(cli("next", run, "--prompt", "so ", "--top", 1, "--json").out)
    [(first, _)] = model.next("so ", k=1)
    assert [each["character"] for each in value["previous"]] == [first]
    assert cli(*words, "--temperature", 0, "--length", 1).out == f"{first}so \n"

    (tmp_path / "some.txt").write_text("so to me.\n")
    assert cli("eval", run, "--file", tmp_path / "some.txt", "--per-char", tmp_path / "scores.csv").code == 0
    with (tmp_path / "scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert "".join(row["character"] for row in rows) == "so to me."
    assert [int(row["position"]) for row in rows] == list(range(9))
    bits = model.score(["so to me.\n"], per_char=True)[0]
    assert [float(row["bits"]) for row in rows] == pytest.approx(bits.tolist(), abs=1e-5)


def test_novelty_and_dynamic_evaluation_see_the_training_text(train, run, text_file):
    model, other = load(run, device="cpu"), load(train("reversed.txt"), device="cpu")
    text = text_file.read_text()
    assert model.novelty([text[100:160]]) == [Verbatim(longest=60, stretch=text[100:160], windows_share=1.0)]
    scores = [m.evaluate_dynamically(t, per_char=True) for m, t in ((model, text[:800]), (other, text[799::-1]))]
    assert scores[0].nats_sum == scores[1].nats_sum
    np.testing.assert_array_equal(scores[0].per_char_nats, scores[1].per_char_nats[::-1])


def test_novel_lines_are_not_in_the_training_text(train, text_file):
    model = load(train("text.txt", "data.unit=line", "data.direction=backward"), device="cpu")
    known = text_file.read_text().split("\n")
    for prompt, kind in ((known[3], "copy"), (known[3][::-1], "new"), ("so", "new")):
        [(_, _, first), *_] = sample_lines(model, prompt, SamplingOptions(length=0), 1, 1, novel=True)
        assert first == kind


def test_weights_of_another_direction_are_refused(cli, run, tiny_config, tmp_path):
    words = ["train", "--config", tiny_config, "--run-dir", tmp_path / "tuned", "--init-from", run]
    assert cli(*words).error == (
        "data.direction: found 'forward'; the checkpoint of --init-from has 'backward'; allowed: the same"
    )
    assert cli(*words, "--set", "data.direction=backward").code == 0
    changed = cli("train", "--resume", "--run-dir", run, "--set", "data.direction=forward")
    assert changed.error.startswith("data.direction: found 'forward', the run has 'backward'; allowed on --resume: ")


def test_write_and_labels_need_a_forward_model(cli, run, monkeypatch):
    monkeypatch.setattr("charlm.cli.write._check_terminal", lambda: None)
    assert cli("write", run).error.endswith(
        "best.safetensors: the model reads backward; allowed: one that continues a text (forward)"
    )
    data = {"unit": "line", "direction": "backward", "label_separator": ","}
    with pytest.raises(ConfigError, match="label_separator: found ',' with data"):
        parse_config({"data": data}, "a test")


@pytest.mark.parametrize("unit", ["text", "line"])
def test_files_stay_on_disk(write, monkeypatch, unit):
    """The splits are views of the same entries of the cache, as are the starts of lines, in chunks of any size."""
    monkeypatch.setattr(data_lines, "_CHUNK", 3)
    options = {"level": "char", "split": (0.6, 0.2, 0.2), "unit": unit}
    source = write("names.txt", "\n".join(NAMES * 5))
    ours, theirs = (load_corpus(source, **options, direction=each) for each in ("backward", "forward"))
    for name, ids in ours.splits.items():
        np.testing.assert_array_equal(ids, theirs.splits[name][::-1])
        assert ids.base is not None
        assert ids.base.filename == theirs.splits[name].filename
        if ours.starts:
            lines = ours.vocabulary.decode(ids)[::-1]
            assert isinstance(ours.starts[name], np.memmap)
            starts = ours.starts[name].tolist()
            assert starts[0] == 1
            assert starts == [place + 1 for place, character in enumerate(lines) if character == "\n"]
