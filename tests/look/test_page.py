"""The page's data: predictions, memory, gradients, features that units track, and the hardest words; it is safe."""

import base64
import hashlib
import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from charlm.cells import CELLS, RHN
from charlm.data.vocabulary import Vocabulary
from charlm.errors import DataError
from charlm.inference.reach import gradient_norms
from charlm.inference.trained import TrainedModel
from charlm.look import look_page, shown_text
from charlm.look import page as look
from charlm.look.features import features_of
from tests.browser import data_of, unpacked
from tests.export.models import model_of
from tests.inference.models import outputs_of
from tests.text import words_text


def test_the_page_says_what_the_model_says(model):
    text = words_text(400)
    data = data_of(look_page(model, text))
    assert data["text"] == text
    np.testing.assert_allclose(unpacked(data["reading"]["bits"])[1:], model.char_surprise([text])[0], rtol=1e-4)
    characters, shares = zip(*model.next(text[:200], len(model.vocabulary)), strict=True)
    top = unpacked(data["reading"]["top"]).reshape(-1, 5)[200]
    assert [data["symbols"][index] for index in top] == [*characters[:5]]
    p = unpacked(data["reading"]["p"]).reshape(-1, 5)[200]
    np.testing.assert_allclose(p / 65535, shares[:5], atol=1e-5)
    assert unpacked(data["reading"]["rank"])[200] == 1 + characters.index(text[200])
    entropy = -np.dot(shares, np.log2(shares))
    assert unpacked(data["reading"]["entropy"])[200] == pytest.approx(entropy, rel=1e-4)
    assert data["copied"] == [[0, 400]]


def test_words_are_ranked_by_their_bits_and_come_once(model):
    text = words_text(400)
    bits_N = np.concatenate([[0.0], model.char_surprise([text])[0]])
    words = data_of(look_page(model, text))["words"]
    assert len({text[start : start + length] for start, length, _ in words}) == len(words) == 20
    assert [bits for _, _, bits in words] == sorted((bits for _, _, bits in words), reverse=True)
    for start, length, bits in words:
        assert text[start : start + length].isalpha()
        assert bits == pytest.approx(bits_N[start : start + length].sum(), rel=1e-4)


def test_memory_is_the_loss_after_exactly_so_many_characters_and_other_text(model):
    """What they cost more than with the whole text; contexts that are nearly as long count too."""
    text = words_text(40)
    data = data_of(look_page(model, text))
    whole_N = model.char_surprise([text])[0]
    assert data["bits"] == pytest.approx(whole_N.mean(), rel=1e-6)
    assert [length for length, _ in data["memory"]["curve"]] == [1, 2, 3, 4, 6, 8]
    for (_, bits), near in zip(data["memory"]["curve"], [[1], [2], [3], [4, 5], [5, 6, 7], [7, 8, 9, 10]], strict=True):
        excess = []
        for length, start in itertools.product(near, range(10, 30)):
            other = start - 10 if start >= 20 else start + 10
            read = text[other : other + 10] + text[start : start + length + 1]
            excess.append(model.char_surprise([read])[0][-1] - whole_N[start + length - 1])
        assert bits == pytest.approx(whole_N.mean() + np.mean(excess), rel=1e-5)


def test_units_that_go_with_something(model):
    """The feature is chosen on one half of the text, and its correlation is that over the other."""
    text = words_text(400)
    units = data_of(look_page(model, text))["units"]
    assert len({unit["unit"] for unit in units}) == len(units) <= 8
    for unit in units:
        curves = {curve["name"]: curve for curve in unit["curves"]}
        values, feature = unpacked(curves[unit["state"]]["values"]), features_of(text)[unit["feature"]]
        assert unit["correlation"] == pytest.approx(np.corrcoef(feature[200:], values[200:])[0, 1], abs=0.01)
        assert abs(unit["correlation"]) >= 0.3
    curves = {curve["name"]: curve for curve in units[0]["curves"]}
    assert curves.keys() == set("cfghio")
    expected, scale = outputs_of(model, text)[:, units[0]["unit"]], curves["h"]["scale"]
    np.testing.assert_allclose(unpacked(curves["h"]["values"]) * scale, expected, atol=scale * 0.51)  # eight bits


def test_every_kind_says_what_its_states_and_gates_are():
    for cell in (*(kind() for kind in CELLS.values()), RHN(couple_gates=False)):
        program = cell.program(square=True)
        states = {*program.states} - {*program.internal} | {*dict(program.shown)}
        assert all(len(look.meaning(cell, name)) == 1 for name in states), cell.kind
        assert all(look.meaning(cell, name) for name in dict(program.gates)), cell.kind


def test_a_short_text_and_one_of_a_single_character(model, of_characters):
    data = data_of(look_page(model, "so"))
    assert data["units"] == data["words"] == data["copied"] == data["memory"]["curve"] == []
    with pytest.raises(DataError):
        look_page(model, "s")
    for make in (look_page, TrainedModel.evaluate):
        with pytest.raises(DataError, match="found a text of 1 character; allowed: 2 or more"):
            make(of_characters("é", "byte"), "é")


def test_models_that_read_other_units_or_rare_characters_are_not_compared(of_characters):
    one = of_characters("abcé")
    for level, found in (
        ("byte", "a model of bytes; allowed: one of characters"),
        ("char", "a model that reads other rare characters"),
    ):
        other = of_characters("abc", level)
        if level == "char":
            other = replace(other, vocabulary=replace(other.vocabulary, other="c"))
        with pytest.raises(DataError, match=f"--compare: found {found}"):
            look_page(one, "abé", other)


def test_bytes_of_a_character_are_shown_by_the_last(model):
    bytewise = replace(model, vocabulary=Vocabulary("byte"))
    for text, shown in {"aé€😀": "a·é··€···😀", "a\udcff\udce2b": "a\ufffd\ufffdb", "": ""}.items():
        assert shown_text(bytewise, bytewise.vocabulary.encode(text)).replace("\uffff", "·") == shown


@pytest.mark.parametrize("level", ["char", "byte"])
def test_words_and_features_are_of_characters(of_characters, level):
    """In Devanagari, with marks and a joiner inside words, in Greek, with emoji, and with a byte that is not UTF-8."""
    lexicon = ["क्या", "हिन्दी", "पूछो", "क्\u200dष", "λόγος", "μέλι", "don’t"]
    text = "first" + "".join(np.random.default_rng(0).choice([f" {word}" for word in [*lexicon, "😀", "।\n"]], 400))
    text += "\udcff" if level == "byte" else ""
    model = of_characters(text, level)
    data = data_of(look_page(model, text, of_characters(text, level)))
    for words in (data["words"], *data["compare"]["words"]):
        assert {data["text"][start : start + length].replace("\uffff", "") for start, length, _ in words} <= {*lexicon}
    assert len(data["words"]) == len(lexicon)
    bits_N = unpacked(data["reading"]["bits"])
    for start, length, bits in data["words"]:
        assert bits == pytest.approx(bits_N[start : start + length].sum(), rel=1e-5)
    sizes = [len(model.vocabulary.encode(character)) for character in text]
    assert data["units"]
    for unit in data["units"]:
        feature_N = np.repeat(features_of(text)[unit["feature"]], sizes)
        [values_N] = [unpacked(curve["values"]) for curve in unit["curves"] if curve["name"] == unit["state"]]
        half = len(values_N) // 2
        assert unit["correlation"] == pytest.approx(np.corrcoef(feature_N[half:], values_N[half:])[0, 1], abs=0.01)


def test_a_model_of_records_shows_what_it_scores():
    """Not the end of a record that it is given first."""
    torch.manual_seed(0)
    model = model_of(records="\n")
    text = "abba\nfee\n" * 40
    data = data_of(look_page(model, text, model))
    assert data["text"] == text
    bits_N = np.concatenate([*model.char_surprise(text.splitlines())])
    np.testing.assert_allclose(unpacked(data["reading"]["bits"]), bits_N, rtol=1e-4)
    assert {len(unpacked(curve["values"])) for unit in data["units"] for curve in unit["curves"]} == {len(text)}
    assert {text[start : start + length] for start, length, _ in data["words"]} == {"abba", "fee"}


def test_the_policy_admits_the_script_and_the_style_and_nothing_else(of_characters):
    page = look_page(of_characters("abc"), "abcabc")
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="(.*?)"', page)
    assert policy.startswith("default-src &#x27;none&#x27;; script-src &#x27;sha256-")
    assert "unsafe" not in policy
    for tag in ('script type="module"', "style"):
        [content] = re.findall(f"<{tag}>(.*?)</{tag.split()[0]}>", page, re.DOTALL)
        assert base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() in policy
    assert not re.search(r"\beval\(|https?://(?!www\.w3\.org/2000/svg)", page)


def test_gradients(model):
    text = words_text(300)
    data = data_of(look_page(model, text, model, gradients=True))
    trained, untrained = (np.array(data["gradients"][name]) for name in ("trained", "untrained"))
    np.testing.assert_allclose(trained, gradient_norms(model.network, model.vocabulary.encode(text)), rtol=1e-5)
    assert not np.isclose(trained, untrained, rtol=0.05).all()
    assert data["compare"]["reading"] == data["reading"]


def test_features():
    for name, text, expected in [
        ("inside quotes", 'a "b" c“d”', "0011000110"),
        ("depth of brackets", "a(b[c])", "0112210"),
        ("depth of indentation", "a\n  b c\n\td", "0012222044"),
        ("position in the line", "ab\ncd\n", "120120"),
        ("position in the word", "ab, c", "12001"),
        ("last letter of a word", "ab c", "0100"),
        ("position in the word", "\u6211\u4eecab\u53bb\u3002", "111210"),  # three ideographs, each a word
        ("position in the sentence", "\u6211\u4eec\u3002\u53bb", "1201"),
        ("last character of a line", "ab\nc", "0100"),
        ("after # in the line", "a#b\nc", "01100"),
        ("position in the word", "क्या, आप", "12340012"),
        ("last letter of a word", "सौ।", "010"),
        ("punctuation", "क्\u200dषा।", "000001"),
        ("upper case", "aBé", "010"),
        ("digit", "a1", "01"),
    ]:
        assert "".join(f"{int(value)}" for value in features_of(text)[name]) == expected, (name, text)
    assert "digit" not in features_of("abc")  # it does not change
