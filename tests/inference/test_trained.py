"""The Python face of a trained model says what the commands say."""

import copy
import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from charlm.checkpoint import read_checkpoint, save_checkpoint
from charlm.data.vocabulary import Vocabulary
from charlm.errors import CheckpointError, VocabularyError
from charlm.inference.gradients import gradient_norms
from charlm.inference.trained import load
from charlm.model import build_model
from tests.inference.models import outputs_of
from tests.text import words_text

WORDS = {"length": 60, "temperature": 0.7, "top_k": 5, "seed": 3}


def test_loaded_from_a_run_or_a_file(model, trained_run, tmp_path):
    path = trained_run / "checkpoints" / "best.safetensors"
    assert model.path == load(str(path)).path == path
    assert not model.network.training
    assert repr(model) == f"<TrainedModel {path}: lstm, 1 × 16 units, cpu>"
    assert model.progress["step"] == 6
    with pytest.raises(CheckpointError):
        load(tmp_path)


def test_a_run_that_averages_its_weights_is_loaded_with_the_average(model, tmp_path):
    checkpoint = read_checkpoint(model.path)
    averaged = {name: weight / 2 for name, weight in checkpoint.weights.items()}
    save_checkpoint(replace(checkpoint, averaged=averaged), tmp_path / "averaged.safetensors")
    weights = load(tmp_path / "averaged.safetensors").network.state_dict()
    for name, weight in model.network.state_dict().items():
        torch.testing.assert_close(weights[name], weight / 2)


def test_samples_are_those_of_the_command(model, cli, trained_run):
    text = model.sample("so ", **WORDS)
    words = ["--prompt", "so ", "--length", 60, "--temperature", 0.7, "--top-k", 5, "--seed", 3]
    assert cli("sample", trained_run, *words).out == f"so {text}\n"
    assert len(model.sample()) == 500
    assert model.sample(seed=1) != model.sample(seed=2)
    stopped = model.sample("so ", **WORDS, stop=[text[40:43], text[20:23], "Z"])
    assert stopped == text[: text.index(text[20:23]) + 3]
    pieces = [*model.stream("so ", **WORDS)]
    assert len(pieces[0]) == 1
    assert "".join(pieces) == text


def test_next_is_what_the_whole_text_says(model):
    prompt = words_text(300)
    logits, _ = model.network(torch.from_numpy(model.vocabulary.encode(prompt).astype("int64"))[:, None])
    probabilities = logits[-1, 0].softmax(-1)
    likeliest = model.next(prompt, k=1000)
    assert [p for _, p in likeliest] == pytest.approx(probabilities.sort(descending=True).values.tolist(), abs=1e-6)
    ids = probabilities.argsort(descending=True)
    assert "".join(character for character, _ in likeliest[:3]) == model.vocabulary.decode(ids[:3].numpy())
    assert model.next(prompt) == likeliest[:5]


def test_scores_are_those_of_the_command(model, cli, trained_run):
    value = json.loads(cli("eval", trained_run, "--split", "test", "--dynamic", "--json").out)
    ids = model.training_splits["test"]
    assert model.evaluate(ids).nats_per_char == pytest.approx(value["nats_per_char"], rel=1e-6)
    assert model.evaluate(ids, streams=1).nats_per_char == value["nats_per_char"]
    assert model.evaluate_dynamically(ids).nats_per_char == value["dynamic"]["nats_per_char"]
    text = words_text(500)
    assert model.evaluate(text).nats_sum == model.evaluate(model.vocabulary.encode(text)).nats_sum


def test_the_score_of_a_text_is_its_mean_in_bits(model):
    lines = [*words_text(2000).splitlines(), "", "a", words_text(700)]
    scores, per_char = model.score(lines), model.char_scores(lines)
    assert scores.shape == (len(lines),)
    for line, score, bits in zip(lines, scores, per_char, strict=True):
        assert len(bits) == max(len(line) - 1, 0)
        if len(line) > 1:
            assert score == pytest.approx(model.evaluate(line, streams=1).bits_per_char, rel=1e-6)
            assert score == pytest.approx(bits.mean())
        else:
            assert np.isnan(score)


def test_features_are_what_the_probabilities_come_from(model):
    [last], [mean] = (model.features(["so tee"], pool=pool) for pool in ("last", "mean"))
    every = outputs_of(model, "so tee")
    np.testing.assert_allclose(every[-1], last, rtol=1e-5)
    np.testing.assert_allclose(every.mean(0), mean, rtol=1e-5)
    logits = last @ model.network.decoder.weight.detach().numpy().T + model.network.decoder.bias.detach().numpy()
    assert model.vocabulary.characters[int(logits.argmax())] == model.next("so tee", k=1)[0][0]
    with pytest.raises(ValueError, match="pool: "):
        model.features(["so"], pool="max")


def test_gradient_norms_of_a_model_of_lines_are_those_of_a_whole_line(model):
    text = words_text(300)
    np.testing.assert_array_equal(
        model.gradient_norms(text), gradient_norms(model.network, model.vocabulary.encode(text))
    )
    lines = replace(model, network=copy.deepcopy(model.network))
    lines.network.reset_id = int(model.vocabulary.encode("\n")[0])
    framed = model.vocabulary.encode("\ntea on a line\n")
    np.testing.assert_array_equal(lines.gradient_norms("tea on a line"), gradient_norms(lines.network, framed))


def test_an_untrained_model_has_the_weights_that_the_seed_draws(model):
    before = torch.get_rng_state()
    untrained = model.untrained()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(model.config.seed)
    drawn = build_model(model.config.model, len(model.vocabulary)).state_dict()
    weights = untrained.network.state_dict()
    assert all(torch.equal(weights[name], drawn[name]) for name in drawn)
    assert not untrained.network.training
    assert (untrained.progress["step"], untrained.progress["best_nats"]) == (0, None)
    assert untrained.evaluate(words_text(2000)).nats_per_char > model.evaluate(words_text(2000)).nats_per_char


def test_a_byte_model_counts_bytes(model):
    network = build_model(model.config.model, 256).eval()
    model = replace(model, network=network, vocabulary=Vocabulary("byte"))
    assert [len(bits) for bits in model.char_scores(["é", "aé", "a", ""])] == [1, 2, 0, 0]
    halves = "".join(map(model.vocabulary.symbol, "é".encode()))  # lone surrogates, which together are é
    assert model.vocabulary.encode(halves).tolist() == list("é".encode())


@pytest.mark.parametrize(
    ("method", "arguments", "names"),
    [
        ("sample", ["so"], ["length", "temperature", "top_k", "top_p", "seed"]),
        ("next", ["so"], ["k"]),
        ("evaluate", ["so tee"], ["streams"]),
        ("evaluate_dynamically", ["so tee"], ["lr", "decay", "steps"]),
        ("gradient_norms", ["so tee"], ["longest"]),
        ("classify", [["so"], ["tee"]], ["none_below"]),
    ],
)
def test_a_number_out_of_range_is_refused_by_its_name(model, method, arguments, names):
    for name in names:
        for number in (-1, 2**64, math.nan, "5", True):
            with pytest.raises(ValueError, match=f"{name}: "):
                getattr(model, method)(*arguments, **{name: number})


def test_what_is_no_text_and_characters_that_the_model_does_not_know_are_refused(model):
    of_one = (model.sample, model.next, model.evaluate)
    of_lists = (model.score, model.features, model.novelty, lambda lines: model.classify(lines, ["so"]))
    for method in of_one:
        with pytest.raises(VocabularyError):
            method("so Z")
        with pytest.raises(TypeError):
            method(float("nan"))
    for method in of_lists:
        with pytest.raises(VocabularyError):
            method(["so", "Z"])
        for wrong in (["so", None], "so", None, b"so", {"so": 1}, np.array([["so"]])):
            with pytest.raises(TypeError):
                method(wrong)
    with pytest.raises(ValueError, match="stop: "):
        model.sample("so", stop=[""])


def test_lists_of_texts_of_every_kind(model):
    texts = ["so ", "teeso"]
    for make in (iter, np.array, lambda texts: np.array(texts, object)):
        np.testing.assert_array_equal(model.score(make(texts)), model.score(texts))
        assert model.novelty(make(texts)) == model.novelty(texts)
    assert model.score([]).shape == (0,)
    assert model.features([]).shape == (0, 16)
    assert model.char_scores([]) == model.novelty([]) == []


@pytest.mark.usefixtures("needs_kernels")
def test_eight_threads_get_what_one_gets(model, threads):
    """Each call computes with a team of threads of its own."""
    lines = words_text(1500).splitlines()
    threads(3)
    cell = model.config.model.cell.model_copy(update={"hidden": 150})
    wide = build_model(model.config.model.model_copy(update={"cell": cell}), len(model.vocabulary)).eval()
    model = replace(model, network=wide)

    def use(n):
        own = lines[n % 4 :]
        return model.score(own), model.features(own, pool="mean"), model.sample(own[0], length=50, seed=n % 4)

    by_one = [use(n) for n in range(4)]
    with ThreadPoolExecutor(8) as pool:
        for n, (score, features, written) in enumerate(pool.map(use, range(16))):
            np.testing.assert_allclose(score, by_one[n % 4][0], rtol=1e-5)
            np.testing.assert_allclose(features, by_one[n % 4][1], rtol=1e-4, atol=1e-6)
            assert written == by_one[n % 4][2]
