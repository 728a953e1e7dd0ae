"""The page's data, packed and safe."""

import base64
import hashlib
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from charlm.cells import CELLS, RHN
from charlm.data.vocabulary import Vocabulary
from charlm.errors import DataError
from charlm.inference.gradients import gradient_norms
from charlm.inference.trained import TrainedModel
from charlm.look import look_page, opening, shown_text
from charlm.look import page as look
from tests.browser import HOSTILE, data_of, unpacked
from tests.inference.models import outputs_of
from tests.text import words_text


def test_the_page_says_what_the_model_says(model):
    text = words_text(400)
    data = data_of(look_page(model, text))
    assert data["text"] == text
    np.testing.assert_allclose(unpacked(data["reading"]["bits"])[1:] / 1000, model.char_scores([text])[0], atol=1e-3)
    likeliest = model.next(text[:200], 5)
    top = unpacked(data["reading"]["top"]).reshape(-1, 5)[200]
    assert "".join(data["symbols"][index] for index in top) == "".join(character for character, _ in likeliest)
    p = unpacked(data["reading"]["p"]).reshape(-1, 5)[200]
    np.testing.assert_allclose(p / 65535, [share for _, share in likeliest], atol=1e-5)
    assert data["copied"] == [[0, 400]]


@pytest.mark.parametrize(
    ("valid", "shown"),
    [
        ("cd\n\nef\ngh", "ef\ngh"),
        ("cdefgh", "cdefgh"),  # no line begins there
        ("c\r\n\r\nef\r\ng", "ef\r\ng"),
    ],
)
def test_the_validation_text_is_shown_from_the_start_of_a_line(of_characters, monkeypatch, valid, shown):
    trained = of_characters("\n\rabcdefghijk")
    monkeypatch.setattr(TrainedModel, "split", lambda *_: trained.vocabulary.encode(valid))
    assert shown_text(trained, opening(trained, 6)) == shown


def test_units_that_go_with_something(model):
    text = words_text(400)
    units = data_of(look_page(model, text))["units"]
    assert min(abs(unit["correlation"]) for unit in units) >= 0.3
    assert len(units) <= 8
    unit = units[0]
    assert sorted(curve["name"] for curve in unit["curves"]) == ["c", "f", "g", "h", "i", "o"]
    h = next(curve for curve in unit["curves"] if curve["name"] == "h")
    expected = outputs_of(model, text)[:, unit["unit"]]
    np.testing.assert_allclose(unpacked(h["values"]) * h["scale"], expected, atol=h["scale"] * 0.51)  # eight bits


def test_every_kind_says_what_its_states_and_gates_are():
    for cell in (*(kind() for kind in CELLS.values()), RHN(couple_gates=False)):
        program = cell.program(square=True)
        states = {*program.states} - {*program.internal} | {*dict(program.shown)}
        assert all(len(look.meaning(cell, name)) == 1 for name in states), cell.kind
        assert all(look.meaning(cell, name) for name in dict(program.gates)), cell.kind


def test_a_short_text_and_one_of_a_single_character(model):
    data = data_of(look_page(model, "so"))
    assert data["units"] == data["words"] == data["copied"] == data["memory"]["curve"] == []
    with pytest.raises(DataError):
        look_page(model, "s")


def test_bytes_of_a_character_are_shown_by_the_last(model):
    bytewise = replace(model, vocabulary=Vocabulary("byte"))
    for text, shown in {"aé€😀": "a·é··€···😀", "a\udcff\udce2b": "a\ufffd\ufffdb", "": ""}.items():
        assert shown_text(bytewise, bytewise.vocabulary.encode(text)).replace("\uffff", "·") == shown


def test_nothing_in_the_data_is_markup(of_characters):
    hostile: TrainedModel = of_characters(HOSTILE, path=Path("runs/<script>window.broken=1/checkpoints/x"))
    page = look_page(hostile, HOSTILE)
    assert data_of(page)["text"] == HOSTILE
    plain = look_page(of_characters("abc"), "abc")
    for mark in ("<script", "</script", "<!--", "</title"):
        assert page.count(mark) == plain.count(mark), mark


def test_the_policy_admits_the_script_and_the_style_and_nothing_else(of_characters):
    page = look_page(of_characters("abc"), "abcabc")
    policy = re.search(r'http-equiv="Content-Security-Policy" content="(.*?)"', page)
    assert policy
    allowed = policy[1].replace("&#x27;", "'")
    assert allowed.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in allowed
    for tag in ('script type="module"', "style"):
        [content] = re.findall(f"<{tag}>(.*?)</{tag.split()[0]}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in allowed
    assert "eval(" not in page
    assert "http://" not in re.sub(r"http://www\.w3\.org/2000/svg", "", page)
    assert "https://" not in page


def test_gradients(model):
    text = words_text(300)
    assert "gradients" not in data_of(look_page(model, text))
    data = data_of(look_page(model, text, model, gradients=True))
    trained, untrained = (np.array(data["gradients"][name]) for name in ("trained", "untrained"))
    np.testing.assert_allclose(trained, gradient_norms(model.network, model.vocabulary.encode(text)), rtol=1e-5)
    assert trained.shape == untrained.shape == (1, 100)
    assert not np.isclose(trained, untrained, rtol=0.05).all()
    assert data["compare"]["gradients"] == data["gradients"]
    assert data["compare"]["reading"] == data["reading"]
