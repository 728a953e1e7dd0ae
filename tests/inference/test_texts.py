"""Many texts at once are what each is by itself."""

import copy
import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from charlm.cells import CELLS
from charlm.config import parse_config
from charlm.data.vocabulary import Vocabulary
from charlm.errors import VocabularyError
from charlm.inference import SamplingOptions, evaluation, load
from charlm.inference.continuing import Continuer
from charlm.inference.texts import char_features, score_texts, text_features
from charlm.model import build_model
from tests.text import words_text

CPU = torch.device("cpu")
V = 11
LENGTHS = [5, 0, 40, 1, 3, 300, 2, 129, 40, 128]


def model_of(kind="lstm"):
    torch.manual_seed(3)
    config = {"cell": {"kind": kind, "hidden": 13}, "embedding": 6, "layers": 2, "dropout": 0.5}
    model = build_model(parse_config({"model": config}, "t").model, V)
    with torch.no_grad():
        model.decoder.weight.mul_(6)
    return model.eval()


def random_texts(lengths=LENGTHS):
    rng = np.random.default_rng(0)
    return [rng.integers(V, size=length).astype(np.uint8) for length in lengths]


def by_itself(model, ids):
    """Outputs [N, H] and nats [N − 1] of a text that is read in one go."""
    if not len(ids):
        return np.zeros((0, 13)), np.zeros(0)
    x = torch.from_numpy(ids.astype(np.int64))
    with torch.no_grad():
        outputs, _ = model.layers.forward_reference(model.embedding(x)[:, None])
        logits = F.linear(outputs[:-1, 0], model.decoder.weight, model.decoder.bias)
        nats = F.cross_entropy(logits, x[1:], reduction="none")
    return outputs[:, 0].numpy(), nats.numpy()


@pytest.mark.parametrize(("kind", "streams"), [*zip(CELLS, itertools.cycle([3, 64]), strict=False)])
def test_texts_are_read_as_each_by_itself(kind, streams, monkeypatch):
    """At most four times as far from the truth, in float64, as the reference in float32."""
    monkeypatch.setattr(evaluation, "STREAMS", streams)
    model, ids = model_of(kind), random_texts()
    single, double = ([by_itself(m, text) for text in ids] for m in (model, copy.deepcopy(model).double()))
    outputs, nats = char_features(model, ids, CPU), score_texts(model, ids, CPU)
    for found, which in ((outputs, 0), (nats, 1)):
        error = max(np.abs(a[which] - b[which]).max(initial=0) for a, b in zip(single, double, strict=True))
        for each, truth in zip(found, double, strict=True):
            assert each.dtype == np.float32
            np.testing.assert_allclose(each, truth[which], rtol=0, atol=4 * error + 1e-7)
    last, mean = (text_features(model, ids, CPU, pool) for pool in ("last", "mean"))
    assert last.dtype == mean.dtype == np.float32
    for n, each in enumerate(outputs):
        if len(each):
            np.testing.assert_array_equal(last[n], each[-1])
            np.testing.assert_allclose(mean[n], each.mean(0, dtype=np.float64), rtol=1e-6, atol=1e-7)
        else:
            assert np.isnan(last[n]).all()
            assert np.isnan(mean[n]).all()


def test_long_texts_are_read_in_windows_and_short_ones_together(monkeypatch):
    model, read = model_of(), []
    outputs = model.outputs
    monkeypatch.setattr(model, "outputs", lambda x, *state: read.append(tuple(x.shape)) or outputs(x, *state))
    score_texts(model, random_texts([301, 11, 131, 11, 0]), CPU)
    assert read == [(128, 4), (128, 2), (44, 1)]
    read.clear()
    score_texts(model, random_texts([6] * 70), CPU)
    assert read == [(5, 64), (5, 6)]


def test_a_large_vocabulary_makes_windows_shorter(monkeypatch):
    monkeypatch.setattr(evaluation, "_LOGITS", 10 * 2 * V)
    model, ids = model_of(), random_texts([50, 30])
    for found, text in zip(score_texts(model, ids, CPU), ids, strict=True):
        np.testing.assert_allclose(found, by_itself(model, text)[1], rtol=1e-4, atol=1e-5)


@pytest.fixture
def trained(trained_run):
    return load(trained_run, "cpu")


def test_the_score_of_a_text_is_its_mean_in_bits(trained):
    lines = [*words_text(2000).splitlines(), "", "a", words_text(700)]
    found, per_char = trained.score(lines), trained.score(lines, per_char=True)
    assert (found.shape, found.dtype) == ((len(lines),), np.float64)
    for line, score, bits in zip(lines, found, per_char, strict=True):
        assert bits.dtype == np.float64
        assert len(bits) == max(len(line) - 1, 0)
        if len(line) > 1:
            assert score == pytest.approx(trained.evaluate(line, streams=1).bits_per_char, rel=1e-6)
            assert score == pytest.approx(bits.mean())
        else:
            assert np.isnan(score)


def test_features_are_what_the_probabilities_come_from(trained):
    [last] = trained.features(["so tee"])
    logits = last @ trained.network.decoder.weight.detach().numpy().T + trained.network.decoder.bias.detach().numpy()
    likeliest = trained.vocabulary.characters[int(logits.argmax())]
    assert likeliest == trained.next("so tee", k=1)[0][0]
    [mean], [every] = trained.features(["so tee"], pool="mean"), trained.features(["so tee"], pool=None)
    assert every.shape == (6, 16)
    np.testing.assert_array_equal(every[-1], last)
    np.testing.assert_allclose(every.mean(0), mean, rtol=1e-5)


def test_a_byte_model_counts_bytes(trained):
    torch.manual_seed(1)
    network = build_model(trained.config.model, 256).eval()
    model = replace(trained, network=network, vocabulary=Vocabulary.of_bytes())
    assert [len(bits) for bits in model.score(["é", "aé", "a", ""], per_char=True)] == [1, 2, 0, 0]
    assert [len(each) for each in model.features(["é", ""], pool=None)] == [2, 0]


def test_mistakes(trained):
    for method in (trained.score, trained.features, trained.novelty):
        with pytest.raises(VocabularyError, match=r"^texts\[1\]: 'Z' \(U\+005A\): not in the model's vocabulary of "):
            method(["so", "Z", "É"])
    with pytest.raises(ValueError, match="pool: found 'max'; allowed: 'last', 'mean' or None"):
        trained.features(["so"], pool="max")


def test_what_is_no_text(trained):
    labeled = replace(trained, labels={"a": 1})
    for method, name in [
        (trained.score, "texts"),
        (trained.features, "texts"),
        (trained.novelty, "texts"),
        (labeled.classify, "lines"),
    ]:
        for wrong in (None, float("nan"), ("so",), b"so"):
            with pytest.raises(TypeError, match=rf"^{name}\[1\]: found {type(wrong).__name__}; allowed: str$"):
                method(["so", wrong])
        with pytest.raises(TypeError, match=f"^{name}: found a string; allowed: a list of strings; put it"):
            method("so")
        for wrong in (None, 1.5, b"so", {"so": 1}, np.array([["so"]])):
            with pytest.raises(TypeError, match=rf"^{name}: found {type(wrong).__name__}; allowed: a list of strings"):
                method(wrong)
    for method, name in [
        (trained.sample, "prompt"),
        (lambda text: trained.sample(stop=text), "stop"),
        (trained.next, "prompt"),
        (trained.evaluate, "text"),
        (trained.evaluate_dynamically, "text"),
        (Continuer(trained, SamplingOptions(length=5)), "text"),
    ]:
        with pytest.raises(TypeError, match=f"^{name}: found float; allowed: str$"):
            method(float("nan"))


def test_lists_of_texts_of_every_kind(trained):
    texts = ["so ", "teeso"]
    for make in (tuple, iter, np.array, lambda texts: np.array(texts, object)):
        for method in (trained.score, trained.features, lambda texts: trained.score(texts, per_char=True)[1]):
            np.testing.assert_array_equal(method(make(texts)), method(texts))
        assert trained.novelty(make(texts)) == trained.novelty(texts)
    assert trained.next(np.str_("so")) == trained.next("so")
    assert trained.score([]).shape == (0,)
    assert trained.features([]).shape == trained.features([], pool="mean").shape == (0, 16)
    assert trained.score([], per_char=True) == trained.features([], pool=None) == trained.novelty([]) == []


@pytest.mark.parametrize(("kernels", "team"), [(True, 1), (True, 3), (False, 1)])
def test_eight_threads_get_what_one_gets(trained, kernels, team, threads, request):
    """Also where each call computes with a team of threads of its own."""
    request.getfixturevalue("needs_kernels" if kernels else "no_kernels")
    model, lines = trained, words_text(1500).splitlines()
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
            list(model.sample(own[0], length=50, seed=n % 4, stream=True)),
        )

    alone = [use(n) for n in range(4)]
    with ThreadPoolExecutor(8) as pool:
        for n, found in enumerate(pool.map(use, range(24))):
            score, features, following, *written = found
            np.testing.assert_allclose(score, alone[n % 4][0], rtol=1e-5)
            np.testing.assert_allclose(features, alone[n % 4][1], rtol=1e-4, atol=1e-6)
            assert [c for c, _ in following] == [c for c, _ in alone[n % 4][2]]
            assert written == list(alone[n % 4][3:])
