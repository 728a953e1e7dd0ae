"""The page as it is used: opened from a file in a real browser, without a network."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from charlm.cells import LSTM
from charlm.data.vocabulary import Vocabulary
from charlm.inference.trained import load
from charlm.layers import RecurrentLayers
from charlm.look import look_page
from charlm.model import CharLM
from tests.browser import HOSTILE, check_access, data_of, pages_in, unpacked, wait_until_ready
from tests.text import words_text

TEXT = words_text(3000)


@pytest.fixture(scope="module")
def html(trained_run) -> str:
    """A model beside the same with random weights."""
    model = load(trained_run, "cpu")
    return look_page(model, TEXT, model.untrained(), gradients=True, called="its validation text")


@pytest.fixture(scope="module")
def view(html, chromium, tmp_path_factory):
    with pages_in(chromium, tmp_path_factory.mktemp("look")) as open_page:
        yield open_page(html)


def colors(view) -> list[str]:
    return view.eval_on_selector_all(".block span", "cells => cells.map(cell => cell.style.backgroundColor)")


def selected(view) -> int:
    return int(view.get_attribute(".selected", "data-index"))


def test_it_opens_on_the_strongest_surprise_and_compares(view, html):
    view.reload()
    wait_until_ready(view)
    data = data_of(html)
    assert view.text_content("#facts").startswith("lstm, 1 × 16 units · ")
    assert " bits per character of its validation text · " in view.text_content("#facts")
    bits, other = (unpacked(each["reading"]["bits"])[1:].astype(float) for each in (data, data["compare"]))
    assert selected(view) == 1 + int(bits[:199].argmax())
    assert view.get_attribute("#views button[value=compare]", "aria-checked") == "true"
    share = 100 * (bits < other).sum() / (bits != other).sum()
    assert f"bits; better in {share:.0f} % of the characters." in view.text_content("#compared p >> nth=0")
    shown = colors(view)
    better = int((other - bits).argmax()) + 1
    assert shown[better].startswith("rgba(30, 110, 210")  # blue where the first is better
    assert view.locator("#memory path.line").count() == 4  # two models, and each with the whole text
    assert view.text_content("#memory").count(": From ") == 2
    assert view.locator("#gradients path.line").count() == 4  # two models, trained and untrained
    check_access(view, 12)


def test_the_pointer_tells_of_a_character(view, html):
    data = data_of(html)
    view.click("#views button[value=surprise]")
    assert sum(map(bool, colors(view))) > 100
    read = rf"A network read {data['source']} for \d+ seconds?\."
    guesses = r" It guesses every next character; orange: it was surprised\."
    assert re.fullmatch(read + guesses, view.text_content("#story"))
    view.hover('[data-index="40"]')
    assert "character 41 of 3,000" in view.text_content(".prediction")
    assert view.locator(".prediction .bars").first.locator("li").count() in (5, 6)
    bits = unpacked(data["reading"]["bits"])[40] / 1000
    assert view.text_content(".prediction .beside p >> nth=0").startswith(f"{bits:.2f} bits (1 bit: a coin toss), ")
    view.click('[data-index="50"]')
    view.hover('[data-index="60"]')  # a click holds the character
    assert "character 51 of" in view.text_content(".prediction")
    view.keyboard.press("Escape")
    word = view.text_content("#words button .what >> nth=5")
    view.click("#words button >> nth=5")
    assert TEXT[selected(view) :].startswith(word)
    assert "100.0 % in stretches of 20 or more" in view.text_content("#copies-says")
    assert view.locator(".block .copied").count() > 100
    view.uncheck("#copies")
    assert view.locator(".block .copied").count() == 0


def test_keys_move_through_the_text(view):
    view.focus("[role=application]")
    for key in ("Control+Home", "ArrowRight", "ArrowRight", "ArrowLeft"):
        view.keyboard.press(key)
    assert selected(view) == 1
    view.keyboard.press("Control+End")
    assert "character 3,000 of" in view.text_content(".prediction")
    assert view.locator('[data-index="2999"].selected').is_visible()
    view.keyboard.press("Control+Home")
    view.keyboard.press("n")
    assert float(view.text_content(".prediction .beside p >> nth=0").split()[0]) >= 4
    strip = view.locator("#strip").bounding_box()
    view.mouse.click(strip["x"] + 0.75 * strip["width"], strip["y"] + 9)
    assert view.locator('[data-index="2250"]').is_visible()


def test_units_and_copying(view):
    view.click("#views button[value=unit]")
    view.click("#unit-list button >> nth=1")
    unit = view.text_content("#unit-list [aria-pressed=true] strong")
    assert view.text_content("#unit-says strong") == unit
    before = colors(view)
    assert re.search(rf"{unit}: (output h|memory c) is .* after it", view.text_content(".prediction"))
    view.select_option("#gate", "gate f")
    assert colors(view) != before
    keeps = "The color is the forget gate f of one unit: at 0 it forgets, at 1 (orange) it keeps."
    assert view.text_content("#story").endswith(keeps)
    copied = """() => {
        getSelection().selectAllChildren(document.querySelector(".text"));
        return String(getSelection());
    }"""
    assert view.evaluate(copied) == TEXT  # no signs, and no ends of rows


RTL = "אבג, דהו 12 זח.\n\nab אב\n"


@pytest.mark.parametrize("level", ["char", "byte"])
def test_right_to_left(opened, of_characters, level):
    """Each character keeps its own shade, underline and prediction, and stands where its script puts it."""
    trained = of_characters(RTL)
    if level == "byte":
        network = CharLM(256, 0, RecurrentLayers(LSTM(hidden=6), 256)).eval()
        trained = replace(trained, vocabulary=Vocabulary("byte"), network=network)
    page = look_page(trained, RTL).replace('"copied": []', '"copied": [[9, 3]]')
    data = data_of(page)
    bits = unpacked(data["reading"]["bits"]) / 1000
    view = opened(page)
    cells = view.locator(".block span").all()
    assert "".join(cell.text_content() for cell in cells) == RTL
    assert len(cells) == len(data["text"])
    alphas = np.array([float(color.rstrip(")").split(",")[-1]) if color else 0 for color in colors(view)])
    assert alphas[0] == 0  # the first has no prediction
    assert len({*alphas}) > 5
    assert (np.diff(alphas[1:][np.argsort(bits[1:])]) >= 0).all()
    assert ["copied" in cell.get_attribute("class") for cell in cells[8:13]] == [False, True, True, True, False]
    boxes = [cell.bounding_box() for cell in cells]
    right_ends = [boxes[n]["x"] for n, c in enumerate(data["text"]) if c in "אבגדהוזח" and n < len(cells) // 2]
    assert right_ends == sorted(right_ends, reverse=True)
    view.click('[data-index="1"]')
    view.focus("[role=application]")
    view.keyboard.press("ArrowLeft")  # onward, as the text runs
    assert selected(view) == 2


def test_a_hostile_text_and_vocabulary_do_nothing(opened, of_characters):
    path = Path("runs/<script>window.broken=1/checkpoints/x")
    text = HOSTILE * 9 + "\u202eab <img src=x onerror=window.broken=1>" + "\n" * 2000 + "\u202e"
    view = opened(look_page(of_characters(text, path=path), text))
    place = text.index("\u202e") + 1
    view.hover(f'[data-index="{place}"]')
    assert view.text_content(".prediction .context").endswith(r"\u202e" + text[place])
    assert "\u202e" not in view.text_content("main")
    assert view.evaluate("window.broken") is None
    assert view.locator("img").count() == 0
    assert view.title().startswith("<script>window.broken=1 ·")
    assert view.text_content("h1") == "<script>window.broken=1"


def test_on_every_screen_and_printed(opened, html):
    view = opened(html, color_scheme="dark", has_touch=True)
    assert view.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    for width, height in ((844, 390), (390, 844), (320, 560)):
        view.set_viewport_size({"width": width, "height": height})
        view.reload()
        wait_until_ready(view)
        assert "1 bit: a coin toss" in view.text_content(".prediction")  # it opens on a character with a prediction
        assert view.evaluate("document.documentElement.scrollWidth") <= width
        if width == 390:
            mark, card = view.locator(".selected").bounding_box(), view.locator(".sheet").bounding_box()
            assert card["y"] + card["height"] == height  # at the bottom of the screen
            assert mark["y"] + mark["height"] <= card["y"]
    view.emulate_media(media="print")
    view.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert view.text_content(".text") == TEXT
    assert view.eval_on_selector(".text", "box => box.scrollHeight <= box.clientHeight + 8")


def test_a_long_text_has_few_elements(opened, model):
    text = words_text(12_000)
    view = opened(look_page(model, text))
    for top, place in ((3000, None), (1e9, 11_999), (0, 0)):
        view.evaluate(f"document.querySelector('.text').scrollTop = {top}")
        if place is not None:
            view.wait_for_selector(f'[data-index="{place}"]')
        assert view.locator(".block span").count() < 10_000
    assert view.text_content(".text") == text  # which the browser can search
