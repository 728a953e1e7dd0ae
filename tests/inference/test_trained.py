"""The Python face of a trained model says what the commands say."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from charlm.data.records import end_of_record
from charlm.errors import VocabularyError
from charlm.model import build_model
from tests.export.models import model_of as model_of_bytes
from tests.inference.models import model_of
from tests.text import words_text


def test_samples_are_those_of_the_command(model, cli, trained_run):
    options = {"length": 60, "temperature": 0.7, "top_k": 5, "seed": 3}
    text = model.sample("so ", **options)
    words = ["--prompt", "so ", "--length", 60, "--temperature", 0.7, "--top-k", 5, "--seed", 3]
    assert cli("sample", trained_run, *words).out == f"so {text}\n"
    stopped = model.sample("so ", **options, stop=[text[40:43], text[20:23], "Z"])
    assert stopped == text[: text.index(text[20:23]) + 3]
    pieces = [*model.stream("so ", **options)]
    assert (len(pieces[0]), "".join(pieces)) == (1, text)


def test_next_is_what_the_whole_text_says(model):
    prompt = words_text(300)
    logits, _ = model.network(torch.from_numpy(model.vocabulary.encode(prompt).astype("int64"))[:, None])
    probabilities = logits[-1, 0].softmax(-1)
    likeliest = model.next(prompt, k=1000)
    ordered, ids = probabilities.sort(descending=True)
    assert [p for _, p in likeliest] == pytest.approx(ordered.tolist(), abs=1e-6)
    assert "".join(character for character, _ in likeliest[:3]) == model.vocabulary.decode(ids[:3].numpy())
    assert model.next(prompt) == likeliest[:5]


@pytest.mark.parametrize("level", ["char", "byte"])
def test_the_surprise_of_a_text_is_its_mean_in_bits(model, level):
    """Also of a byte model it is per character."""
    lines = [*words_text(2000).splitlines(), "", "a", words_text(700)]
    if level == "byte":
        model, lines = model_of_bytes(level="byte"), [*lines, "éé😀 a", "😀", "éa"]
    scores, per_char = model.surprise(lines), model.char_surprise(lines)
    assert scores.shape == (len(lines),)
    for line, score, bits in zip(lines, scores, per_char, strict=True):
        assert len(bits) == max(len(line) - 1, 0)
        if len(line) > 1:
            whole = model.evaluate(line, streams=1, per_symbol=True)
            assert (whole.of.chars, whole.of.size_bytes) == (len(line) - 1, len(line[1:].encode()))
            assert len(whole.symbol_nats) == (whole.of.chars if level == "char" else whole.of.size_bytes)
            assert score == pytest.approx(whole.bits_per_char, rel=1e-6)
            assert whole.bits_per_byte == pytest.approx(bits.sum() / whole.of.size_bytes)
            assert score == pytest.approx(bits.mean())
        else:
            assert np.isnan(score)
    worst = model.surprise(lines, worst=1, after=r"\S+ ")
    for line, score, bits in zip(lines, worst, per_char, strict=True):
        rest = bits[line.find(" ") :]
        assert score == pytest.approx(rest.max()) if len(rest) else np.isnan(score)


def test_an_untrained_model_has_the_weights_that_the_seed_draws(model):
    before = torch.get_rng_state()
    untrained = model.untrained()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(model.config.seed)
    drawn = build_model(model.config.model, len(model.vocabulary)).state_dict()
    weights = untrained.network.state_dict()
    assert all(torch.equal(weights[name], drawn[name]) for name in drawn)
    assert (untrained.progress["step"], untrained.progress["best_nats"]) == (0, None)


@pytest.mark.parametrize("number", [-1, 2**64, pytest.param(10**5000, id="huge"), math.nan, "5", True])
def test_a_number_out_of_range_is_refused_by_its_name(model, number):
    for name in ("length", "temperature", "top_k", "top_p", "seed"):
        with pytest.raises(ValueError, match=f"{name}: "):
            model.sample("so", **{name: number})
    for name in ("lr", "decay", "steps"):
        with pytest.raises(ValueError, match=f"{name}: "):
            model.evaluate_dynamically("so tee", **{name: number})
    with pytest.raises(ValueError, match="k: "):
        model.next("so", k=number)
    with pytest.raises(ValueError, match="none_below: "):
        model.classify(["so"], ["tee"], none_below=number)


def test_what_is_no_text_and_characters_that_the_model_does_not_know_are_refused(model):
    of_one = (model.sample, model.stream, model.next, model.evaluate)  # a stream is refused before its first piece
    of_lists = (model.surprise, model.features, lambda lines: model.classify(lines, ["so"], " "))
    for method in of_one:
        with pytest.raises(VocabularyError):
            method("so Z")
        with pytest.raises(TypeError, match=r": found nan, a missing value; allowed: str$"):
            method(float("nan"))
    with pytest.raises(ValueError, match=r"^after: found '\(': missing \), .*; allowed: a regular expression for text"):
        model.surprise(["so"], after="(")
    for method in of_lists:
        with pytest.raises(VocabularyError, match=r"^texts\[1\]: .*; (skip_unknown=True|unknown_as=20) |^lines\[1\]: "):
            method(["so", "Z"])
        for wrong in ("so", None, ["so", 5]):
            with pytest.raises(TypeError):
                method(wrong)
        for missing in (None, math.nan, np.float32("nan")):
            found = (
                rf"\[1\]: found {missing}, a missing value \(2 of 3\); allowed: str; drop or fill missing values first$"
            )
            with pytest.raises(TypeError, match=found):
                method(["so", missing, missing])
    with pytest.raises(TypeError, match=r"^ban: found int; allowed: str$"):
        model.sample("so", ban=5)


@pytest.mark.parametrize("records", [False, True])
def test_unknown_characters_are_skipped_or_counted(model, records):
    """A text with them has the values of the text without them, and so many bits in their places."""
    model.network.reset_id = int(model.vocabulary.encode("\n")[0]) if records else None
    texts, known = ["soZ tée", "Ztee", "ZZ", "tee"], ["so te", "tee", "", "tee"]
    char_bits = model.char_surprise(texts, unknown_as=20)
    for text, bits, of_known in zip(texts, char_bits, model.char_surprise(known), strict=True):
        others = iter(of_known if records else [0.0, *of_known])
        expected = [20.0 if character in "Zé" else next(others) for character in text]
        np.testing.assert_allclose(bits, [*expected, *others] if records else expected[1:], rtol=1e-5)
    means = model.surprise(texts, unknown_as=20)
    np.testing.assert_allclose(means, [bits.mean() for bits in char_bits])
    for pool in ("last", "mean"):
        features = model.features(texts, pool=pool, skip_unknown=True)
        np.testing.assert_allclose(features, model.features(known, pool=pool), rtol=1e-5)
    scores = model.evaluate(texts[0], skip_unknown=True), model.evaluate(known[0])
    assert [score.of.unknown for score in scores] == [2, 0]
    assert scores[0].nats_sum == pytest.approx(scores[1].nats_sum)
    labels = (["so", "te"], " ")
    assert model.classify(texts[:1], *labels, skip_unknown=True) == model.classify(known[:1], *labels)


@pytest.mark.parametrize("separator", ["\n", "\n~~\n"])
def test_a_record_is_scored_with_or_without_its_end(separator):
    trained = model_of_bytes(records=separator)
    ends = ("", separator, end_of_record(separator))
    first, *others = (trained.char_surprise([f"abba{end}"])[0] for end in ends)
    assert len(first) == 5
    assert all(np.array_equal(first, other) for other in others)
    assert len({float(trained.surprise([f"abba{end}"])[0]) for end in ends}) == 1
    assert len({trained.features([f"abba{end}"]).tobytes() for end in ends}) == 1
    for two in (f"ab{separator}ba", f"abba{separator * 2}", f"abba{end_of_record(separator)}{separator}"):
        with pytest.raises(ValueError, match="end of a record within a text"):
            trained.surprise([two])


def test_an_unknown_argument_is_refused_by_the_name_of_the_method(model):
    for method in (model.sample, model.stream):
        found = f"^{method.__name__}: found the argument lenght; allowed: prompt, seed, .*; did you mean 'length'"
        with pytest.raises(TypeError, match=found):
            method("so", lenght=3)
    with pytest.raises(TypeError, match=r"^evaluate_dynamically\(\) got .*'lenght'"):
        model.evaluate_dynamically("so tee", lenght=3)


def test_activations_are_what_the_equations_say(model):
    model = replace(model, network=model_of(vocabulary=len(model.vocabulary)))  # two layers of 13 units
    text = words_text(300)
    found = model.activations(text)
    assert {name: values.shape for name, values in found.items()} == {
        f"{name}_l{layer}": (300, 13) for name in "hcifgo" for layer in (0, 1)
    }
    for layer in (0, 1):
        h, c, i, f, g, o = (found[f"{name}_l{layer}"] for name in "hcifgo")
        np.testing.assert_allclose(c[1:], f[1:] * c[:-1] + i[1:] * g[1:], atol=1e-6)
        np.testing.assert_allclose(h, o * np.tanh(c), atol=1e-6)
    np.testing.assert_allclose(found["h_l1"][-1:], model.features([text]), rtol=1e-4, atol=1e-6)
    assert model.activations("") == {}


def test_a_copy_with_other_white_space_is_one_passage(model):
    """The longest passage comes first; unknown characters are copied from nowhere."""
    words = [part.split() for part in (words_text(20_000)[3_000:3_300], words_text(20_000)[2_000:2_600])]
    # The words at the ends may be parts of words, which the corpus has too.
    short, long = (" \n".join(" ".join(part[n : n + 7]) for n in range(0, len(part), 7)) for part in words)
    [(share, passages), (none, nothing)] = model.novelty([f"{short}ZmmmZ{long}", "so"])
    assert passages == [(len(short) + 5, len(long), long), (0, len(short), short)]
    windows = [sum(map(len, part)) + len(part) - 1 - 19 for part in words]
    assert share == pytest.approx(sum(windows) / (sum(windows) + 19 + 5))
    assert (none, nothing) == (None, [])


def test_lists_of_texts_of_every_kind(model):
    texts = ["so ", "teeso"]
    for other in (iter(texts), np.array(texts), np.array(texts, object)):
        np.testing.assert_array_equal(model.surprise(other), model.surprise(texts))
    assert (model.surprise([]).shape, model.features([]).shape) == ((0,), (0, 16))
    assert model.char_surprise([]) == model.novelty([]) == []


@pytest.mark.usefixtures("needs_kernels")
def test_eight_threads_get_what_one_gets(model, threads):
    """Each call computes with a team of threads of its own."""
    lines = words_text(1500).splitlines()
    threads(3)
    model = replace(model, network=model_of(vocabulary=len(model.vocabulary), cell={"kind": "lstm", "hidden": 150}))

    def use(n):
        own = lines[n % 4 :]
        return model.surprise(own), model.features(own, pool="mean"), model.sample(own[0], length=50, seed=n % 4)

    by_one = [use(n) for n in range(4)]
    with ThreadPoolExecutor(8) as pool:
        for n, (score, features, written) in enumerate(pool.map(use, range(16))):
            np.testing.assert_allclose(score, by_one[n % 4][0], rtol=1e-5)
            np.testing.assert_allclose(features, by_one[n % 4][1], rtol=1e-4, atol=1e-6)
            assert written == by_one[n % 4][2]
