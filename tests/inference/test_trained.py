"""The Python face of a trained model says what the commands say."""

import contextlib
import copy
import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from charlm.data.vocabulary import Vocabulary
from charlm.errors import CheckpointError, DataError, DeviceError, VocabularyError
from charlm.inference.gradients import gradient_norms
from charlm.inference.trained import load
from charlm.model import build_model
from tests.inference.models import outputs_of
from tests.text import words_text

WORDS = {"length": 60, "temperature": 0.7, "top_k": 5, "seed": 3}


def test_loaded_from_a_run_or_a_file(model, trained_run):
    path = trained_run / "checkpoints" / "best.safetensors"
    assert model.path == load(str(path)).path == path
    assert not model.network.training
    assert repr(model) == f"<TrainedModel {path}: lstm, 1 × 16 units, cpu>"
    assert model.progress["step"] == 6
    assert len(model.vocabulary) == len(set(words_text(20_000)))


def test_samples_are_those_of_the_command(model, cli, trained_run):
    text = model.sample("so ", **WORDS)
    words = ["--prompt", "so ", "--length", 60, "--temperature", 0.7, "--top-k", 5, "--seed", 3]
    assert cli("sample", trained_run, *words).out == f"so {text}\n"
    assert len(model.sample()) == 500
    assert model.sample(seed=1) != model.sample(seed=2)
    stopped = model.sample("so ", **WORDS, stop=[text[40:43], text[20:23], "Z"])
    assert stopped == text[: text.index(text[20:23]) + 3]
    assert model.novelty([words_text(20_000)[100:160]])[0][2] == 1
    pieces = model.stream("so ", **WORDS)
    first = next(pieces)
    assert len(first) == 1
    assert first + "".join(pieces) == text


def test_next_is_what_the_whole_text_says(model):
    prompt = words_text(300)
    logits, _ = model.network(torch.from_numpy(model.vocabulary.encode(prompt).astype("int64"))[:, None])
    expected = logits[-1, 0].softmax(-1).tolist()
    likeliest = model.next(prompt, k=1000)
    assert "".join(sorted(character for character, _ in likeliest)) == model.vocabulary.characters
    for character, probability in likeliest:
        assert probability == pytest.approx(expected[model.vocabulary.characters.index(character)], abs=1e-6)
    assert model.next(prompt) == likeliest[:5]
    assert likeliest[0][1] == max(probability for _, probability in likeliest)
    vocabulary = Vocabulary("byte")  # half of é is a lone surrogate, and both halves are é
    assert vocabulary.encode("".join(map(vocabulary.symbol, "é".encode()))).tolist() == list("é".encode())


def test_scores_are_those_of_the_command(model, cli, trained_run):
    value = json.loads(cli("eval", trained_run, "--split", "test", "--dynamic", "--json").out)
    ids = model.training_splits["test"]
    assert model.evaluate(ids).nats_per_char == pytest.approx(value["nats_per_char"], rel=1e-6)
    assert model.evaluate(ids, streams=1).nats_per_char == value["nats_per_char"]
    dynamic = value["dynamic"]
    assert model.evaluate_dynamically(ids).nats_per_char == dynamic["nats_per_char"]
    faster = model.evaluate_dynamically(ids, lr=0.01, per_char=True)
    assert faster.nats_per_char != dynamic["nats_per_char"]
    assert len(faster.per_char_nats) == len(ids) - 1
    text = words_text(500)
    assert model.evaluate(text).nats_sum == model.evaluate(model.vocabulary.encode(text)).nats_sum


def test_the_score_of_a_text_is_its_mean_in_bits(model):
    lines = [*words_text(2000).splitlines(), "", "a", words_text(700)]
    scores, per_char = model.score(lines), model.char_scores(lines)
    assert (scores.shape, scores.dtype) == ((len(lines),), np.float64)
    for line, score, bits in zip(lines, scores, per_char, strict=True):
        assert (len(bits), bits.dtype) == (max(len(line) - 1, 0), np.float64)
        if len(line) > 1:
            assert score == pytest.approx(model.evaluate(line, streams=1).bits_per_char, rel=1e-6)
            assert score == pytest.approx(bits.mean())
        else:
            assert np.isnan(score)


def test_features_are_what_the_probabilities_come_from(model):
    [last], [mean] = (model.features(["so tee"], pool=pool) for pool in ("last", "mean"))
    every = outputs_of(model, "so tee")
    logits = last @ model.network.decoder.weight.detach().numpy().T + model.network.decoder.bias.detach().numpy()
    assert model.vocabulary.characters[int(logits.argmax())] == model.next("so tee", k=1)[0][0]
    assert every.shape == (6, 16)
    np.testing.assert_allclose(every[-1], last, rtol=1e-5)
    np.testing.assert_allclose(every.mean(0), mean, rtol=1e-5)


def test_gradient_norms_are_those_of_the_network(model):
    text = words_text(300)
    norms = model.gradient_norms(text)
    assert (norms.shape, norms.dtype) == ((1, 100), np.float64)
    np.testing.assert_array_equal(norms, gradient_norms(model.network, model.vocabulary.encode(text)))
    assert model.gradient_norms(text, longest=3).shape == (1, 3)
    lines = replace(model, network=copy.deepcopy(model.network))
    lines.network.reset_id = int(model.vocabulary.encode("\n")[0])
    framed = model.vocabulary.encode("\ntea on a line\n")
    np.testing.assert_array_equal(lines.gradient_norms("tea on a line"), gradient_norms(lines.network, framed))
    with pytest.raises(DataError, match="gradients: found a text of 2 characters; allowed: 3 or more"):
        model.gradient_norms("so")


def test_an_untrained_model_has_the_weights_that_the_seed_draws(model):
    before = torch.get_rng_state()
    untrained = model.untrained()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(model.config.seed)
    first = build_model(model.config.model, len(model.vocabulary)).state_dict()
    drawn = untrained.network.state_dict()
    assert all(torch.equal(drawn[name], first[name]) for name in first)
    assert not untrained.network.training
    assert (untrained.progress["step"], untrained.progress["best_nats"]) == (0, None)
    assert untrained.evaluate(words_text(2000)).nats_per_char > model.evaluate(words_text(2000)).nats_per_char
    assert untrained.novelty([words_text(20_000)[100:160]])[0][2] == 1


def test_a_byte_model_counts_bytes(model):
    network = build_model(model.config.model, 256).eval()
    model = replace(model, network=network, vocabulary=Vocabulary("byte"))
    assert [len(bits) for bits in model.char_scores(["é", "aé", "a", ""])] == [1, 2, 0, 0]


NUMBERS = {
    "length": lambda model, number: model.sample("so", length=number),
    "temperature": lambda model, number: model.sample("so", length=2, temperature=number),
    "top_k": lambda model, number: model.sample("so", length=2, top_k=number),
    "top_p": lambda model, number: model.sample("so", length=2, top_p=number),
    "seed": lambda model, number: model.sample("so", length=2, seed=number),
    "k": lambda model, number: model.next("so", k=number),
    "streams": lambda model, number: model.evaluate("so tee", streams=number),
    "longest": lambda model, number: model.gradient_norms("so tee", longest=number),
    "none_below": lambda model, number: model.classify(["so"], ["tee"], " ", none_below=number),
    "lr": lambda model, number: model.evaluate_dynamically("so tee", lr=number),
    "decay": lambda model, number: model.evaluate_dynamically("so tee", decay=number),
    "steps": lambda model, number: model.evaluate_dynamically("so tee", steps=number),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_works_or_is_refused_with_its_range(model, name):
    for number in (-1, -1e-300, 1e38, 1.7e308, 2**64, 10**400, math.nan, math.inf, "5", None, True):
        if number is not None or name not in ("seed", "streams"):
            with pytest.raises(
                ValueError, match=rf"^{name}: found .*; allowed: an? (number|integer) from \S+ to [\d,]+$"
            ):
                NUMBERS[name](model, number)
    NUMBERS[name](model, np.int64(1))
    is_integer = name not in ("temperature", "top_p", "none_below", "lr", "decay")
    for number in (1e-6, 0.5, np.float32(0.5)):
        with pytest.raises(ValueError, match="an integer") if is_integer else contextlib.nullcontext():
            NUMBERS[name](model, number)


def test_mistakes(model, tmp_path, monkeypatch):
    for use in (model.sample, model.next, model.evaluate, lambda text: [*model.stream(text)]):
        with pytest.raises(VocabularyError, match=r"^found 'Z' \(U\+005A\), which the model has never seen"):
            use("so Z")
    for use in (model.score, model.features, model.novelty):
        with pytest.raises(VocabularyError, match=r"^texts\[1\]: found 'Z' \(U\+005A\), which the model has never"):
            use(["so", "Z", "É"])
    with pytest.raises(VocabularyError, match=r"^U\+D800: not a character; it has no bytes$"):
        Vocabulary("byte").encode("a\ud800")
    with pytest.raises(DataError, match="evaluation: found a text of 1 character; allowed: 2 or more"):
        model.evaluate("s")
    with pytest.raises(ValueError, match="pool: found 'max'; allowed: 'last' or 'mean'"):
        model.features(["so"], pool="max")
    with pytest.raises(ValueError, match="stop: found an empty text"):
        model.sample("so", stop=[""])
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        load(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="sees no GPU"):
        load(model.path, device="cuda")


def test_what_is_no_text(model):
    def classify(lines):
        return model.classify(lines, ["so"])

    for method in (model.score, model.features, model.novelty, classify):
        name = "lines" if method == classify else "texts"
        for wrong in (None, float("nan"), ("so",), b"so"):
            with pytest.raises(TypeError, match=rf"^{name}\[1\]: found {type(wrong).__name__}; allowed: str$"):
                method(["so", wrong])
        with pytest.raises(TypeError, match=f"^{name}: found a string; allowed: a list of strings; put it"):
            method("so")
        for wrong in (None, 1.5, b"so", {"so": 1}, np.array([["so"]])):
            with pytest.raises(TypeError, match=rf"^{name}: found {type(wrong).__name__}; allowed: a list of strings"):
                method(wrong)
    for method, name in [
        (model.sample, "prompt"),
        (lambda text: model.sample(stop=text), "stop"),
        (model.next, "prompt"),
        (model.evaluate, "text"),
        (model.evaluate_dynamically, "text"),
    ]:
        with pytest.raises(TypeError, match=f"^{name}: found float; allowed: str"):
            method(float("nan"))


def test_lists_of_texts_of_every_kind(model):
    texts = ["so ", "teeso"]
    for make in (tuple, iter, np.array, lambda texts: np.array(texts, object)):
        for method in (model.score, model.features, lambda texts: model.char_scores(texts)[1]):
            np.testing.assert_array_equal(method(make(texts)), method(texts))
        assert model.novelty(make(texts)) == model.novelty(texts)
    assert model.next(np.str_("so")) == model.next("so")
    assert model.score([]).shape == (0,)
    assert model.features([]).shape == model.features([], pool="mean").shape == (0, 16)
    assert model.char_scores([]) == model.novelty([]) == []


@pytest.mark.parametrize(("kernels", "team"), [(True, 1), (True, 3), (False, 1)])
def test_eight_threads_get_what_one_gets(model, kernels, team, threads, request):
    """Also where each call computes with a team of threads of its own."""
    request.getfixturevalue("needs_kernels" if kernels else "no_kernels")
    lines = words_text(1500).splitlines()
    if team > 1:
        threads(team)
        cell = model.config.model.cell.model_copy(update={"hidden": 150})
        wide = build_model(model.config.model.model_copy(update={"cell": cell}), len(model.vocabulary)).eval()
        model = replace(model, network=wide)

    def use(n):
        own = lines[n % 4 :]
        return (
            model.score(own),
            model.features(own, pool="mean"),
            model.next(own[0]),
            model.sample(own[0], length=100, seed=n % 4),
            list(model.stream(own[0], length=50, seed=n % 4)),
        )

    by_one = [use(n) for n in range(4)]
    with ThreadPoolExecutor(8) as pool:
        for n, (score, features, following, *written) in enumerate(pool.map(use, range(24))):
            np.testing.assert_allclose(score, by_one[n % 4][0], rtol=1e-5)
            np.testing.assert_allclose(features, by_one[n % 4][1], rtol=1e-4, atol=1e-6)
            assert [c for c, _ in following] == [c for c, _ in by_one[n % 4][2]]
            assert written == list(by_one[n % 4][3:])
