"""Models that read backward: everything they say of a text is what a forward model says of the reversed text."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from charlm.checkpoint import read_checkpoint
from charlm.config import load_config, parse_config
from charlm.data import lines as data_lines
from charlm.data.vocabulary import Vocabulary
from charlm.errors import ConfigError
from charlm.inference import SamplingOptions, TrainedModel, load
from charlm.inference.line_samples import sample_lines
from charlm.inference.sampling import SampleText
from charlm.inference.trained import Verbatim
from charlm.training.start import start_run
from tests.conftest import TINY
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
        model.network.reset_id = int(model.vocabulary.encode("\n")[0])
    return model


@pytest.fixture
def backward(forward) -> TrainedModel:
    return reversed_model(forward)


TEXT = words_text(20_000)
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
    text = words_text(3000) if not forward.network.is_line_model else "so\nto me"
    one, other = (model.evaluate(t, per_char=True) for model, t in ((backward, text), (forward, text[::-1])))
    assert one.nats_sum == other.nats_sum
    np.testing.assert_array_equal(one.per_char_nats, other.per_char_nats[::-1])


def test_whole_lines_are_scored(model):
    model.network.reset_id = int(model.vocabulary.encode("\n")[0])
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


@pytest.fixture(scope="module")
def runs(tmp_path_factory, compiled):
    """(direction, unit) → a run on a text that is also the validation text; the forward ones read it reversed."""
    folder, runs = tmp_path_factory.mktemp("directions"), {}
    (folder / "tiny.yaml").write_text(TINY.format(source="none"))
    for direction, text in (("backward", TEXT), ("forward", TEXT[::-1])):
        file = folder / f"{direction}.txt"
        file.write_text(text)
        for unit in ("text", "line"):
            settings = {"source": file, "valid_source": file, "split": "[1,0,0]", "unit": unit, "direction": direction}
            config = load_config(folder / "tiny.yaml", [f"data.{key}={value}" for key, value in settings.items()])
            runs[direction, unit] = folder / f"{direction}-{unit}"
            start_run(config, runs[direction, unit])
    return runs


@pytest.fixture
def run(runs):
    return runs["backward", "text"]


@pytest.mark.parametrize("unit", ["text", "line"])
def test_training_is_training_on_the_reversed_text_bit_for_bit(runs, unit):
    folders = [runs[direction, unit] for direction in ("backward", "forward")]
    one, other = (read_checkpoint(folder / "checkpoints/last.safetensors") for folder in folders)
    for group in ("weights", "optimizer", "carried"):
        ours, theirs = getattr(one, group), getattr(other, group)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert untimed(folders[0]) == untimed(folders[1])
    assert one.vocabulary == replace(other.vocabulary, direction="backward")


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


def test_novelty_and_dynamic_evaluation_see_the_training_text(runs):
    model, other, lines = (
        load(runs[key], "cpu") for key in (("backward", "text"), ("forward", "text"), ("backward", "line"))
    )
    assert model.novelty([TEXT[100:160]]) == [Verbatim(longest=60, stretch=TEXT[100:160], windows_share=1.0)]
    scores = [m.evaluate_dynamically(t, per_char=True) for m, t in ((model, TEXT[:800]), (other, TEXT[799::-1]))]
    assert scores[0].nats_sum == scores[1].nats_sum
    np.testing.assert_array_equal(scores[0].per_char_nats, scores[1].per_char_nats[::-1])
    known = TEXT.split("\n")[3]
    for prompt, kind in ((known, "copy"), (known[::-1], "new"), ("so", "new")):
        [(_, _, first), *_] = sample_lines(lines, prompt, SamplingOptions(length=0), 1, 1, novel=True)
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
