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
from tests.browser import HOSTILE, check_access, dark_share, data_of, unpacked
from tests.text import words_text


@pytest.fixture(scope="module")
def page(trained_run) -> str:
    """A model beside itself."""
    model = load(trained_run, "cpu")
    return look_page(model, words_text(3000), model, gradients=True, called="its validation text")


def shaded(view) -> int:
    return view.eval_on_selector_all(".block span", "cells => cells.filter(cell => cell.style.backgroundColor).length")


def selected(view) -> int:
    return int(view.get_attribute(".selected", "data-index"))


def test_pointer_and_keys(opened, page):
    view = opened(page)
    assert view.text_content("#facts").startswith("lstm, 1 × 16 units · ")
    assert " bits per character of its validation text · " in view.text_content("#facts")
    data = data_of(page)
    bits = np.nan_to_num(unpacked(data["reading"]["bits"])[1:200].astype(float))
    assert selected(view) == 1 + int(bits.argmax())  # the strongest surprise of the beginning
    assert view.get_attribute("#views button[value=compare]", "aria-checked") == "true"
    assert shaded(view) == 0  # a model beside itself
    check_access(view, 12)
    view.click("#views button[value=surprise]")
    assert shaded(view) > 100
    read = rf"A network read {data['source']} for \d+ seconds?\."
    guesses = r" It guesses every next character; orange: it was surprised\."
    assert re.fullmatch(read + guesses, view.text_content("#story"))
    view.hover('[data-index="40"]')
    assert "character 41 of 3,000" in view.text_content(".prediction")
    assert view.locator(".prediction .bars").first.locator("li").count() in (5, 6)
    rank = unpacked(data["reading"]["rank"])[40]
    ordinal = {1: "1st", 2: "2nd", 3: "3rd"}.get(rank, f"{rank}th")
    surprise = rf"\d+\.\d\d bits \(1 bit: a coin toss\), probability .+\s%, its {ordinal} guess\."
    said = view.text_content(".prediction .beside p >> nth=0")
    assert re.fullmatch(rf"{surprise} It expected \d\.\d\d bits on average\.", said)
    assert min(fill.bounding_box()["width"] for fill in view.locator(".bar-fill").all()) >= 3  # a color can be seen
    view.click('[data-index="50"]')
    view.hover('[data-index="60"]')  # a click holds the character
    assert "character 51 of" in view.text_content(".prediction")
    view.keyboard.press("Escape")
    view.hover('[data-index="61"]')
    assert "character 62 of" in view.text_content(".prediction")
    word = view.text_content("#words button .what >> nth=5")
    view.click("#words button >> nth=5")
    assert words_text(3000)[selected(view) :].startswith(word)
    view.keyboard.press("ArrowDown")  # one Tab stop, within which arrows move
    assert view.evaluate("document.activeElement.textContent").startswith(view.text_content("#words .what >> nth=6"))
    assert "100.0 % in stretches of 20 or more" in view.text_content("#copies-says")
    assert view.locator(".block .copied").count() > 100
    view.uncheck("#copies")
    assert view.locator(".block .copied").count() == 0

    view.focus("[role=application]")
    view.keyboard.press("Control+Home")
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        view.keyboard.press(key)
    assert selected(view) == 1
    lines = words_text(3000).split("\n")
    view.keyboard.press("ArrowDown")
    assert selected(view) in (len(lines[0]) + 2, len(lines[0]) + 1)
    view.keyboard.press("ArrowUp")
    assert selected(view) <= 1
    view.keyboard.press("Control+End")
    assert "character 3,000 of" in view.text_content(".prediction")
    assert view.locator('[data-index="2999"].selected').is_visible()
    view.keyboard.press("Control+Home")
    view.keyboard.press("n")
    assert float(view.text_content(".prediction .beside p >> nth=0").split()[0]) >= 4
    box = view.locator('[data-index="40"]').bounding_box()
    assert dark_share(view, box["x"], box["y"], 1, 1) < 1
    strip = view.locator("#strip").bounding_box()
    view.mouse.click(strip["x"] + 0.75 * strip["width"], strip["y"] + 9)
    assert view.locator('[data-index="2250"]').is_visible()


def test_units_cards_and_copying(opened, page):
    view = opened(page)
    assert view.locator("#memory path.line").count() == 4  # two models, and each with the whole text
    assert view.text_content("#memory").count(": From ") == 2
    assert view.locator("#gradients path.line").count() == 4  # two models, trained and untrained
    label = view.get_attribute("#gradients svg", "aria-label")
    assert re.search(r": trained: below 1 % of its first value \d+ characters back; untrained: ", label)
    assert "−" not in view.text_content("#compared")
    view.click("#views button[value=unit]")
    assert view.locator("#unit-bar").is_visible()
    first = view.text_content("#unit-says strong")
    view.click("#unit-list button >> nth=1")
    second = view.text_content("#unit-says strong")
    assert first != second
    assert view.text_content("#unit-list [aria-pressed=true] strong") == second
    colors = "cells => cells.slice(0, 300).map(cell => cell.style.backgroundColor).join()"
    before = view.eval_on_selector_all(".block span", colors)
    assert re.search(rf"{second}: (output h|memory c) is .* after it", view.text_content(".prediction"))
    options = ["c: memory", "f: forget gate", "g: new value", "h: output", "i: input gate", "o: output gate"]
    assert sorted(view.locator("#gate option").all_text_contents()) == options
    view.select_option("#gate", "gate f")
    assert view.eval_on_selector_all(".block span", colors) != before
    keeps = "The color is the forget gate f of one unit: at 0 it forgets, at 1 (orange) it keeps."
    assert view.text_content("#story").endswith(keeps)
    assert view.text_content("#legend") == "0 forgets1 keeps"
    view.select_option("#gate", "gate g")
    assert view.text_content("#story").endswith("The color is the new value g of one unit: orange above 0, blue below.")
    text = view.evaluate("""() => {
        getSelection().selectAllChildren(document.querySelector(".text"));
        return String(getSelection());
    }""")
    assert text == words_text(3000)  # no signs, and no ends of rows


def test_gates_without_words_and_cards_without_content(opened, trained_run, of_characters):
    page = look_page(load(trained_run, "cpu"), words_text(3000))
    view = opened(re.sub(r'"meaning": \[[^]]*\]', '"meaning": []', page))  # as a person's own cell has it
    view.click("#views button[value=unit]")
    view.select_option("#gate", "gate f")
    assert view.text_content("#story").endswith("The color is gate f of one unit: blank at 0, orange at 1.")
    view = opened(look_page(of_characters("abc"), "abcab"))
    assert [card.text_content()[1:11] for card in view.locator("aside .card:visible").all()] == ["Prediction"]
    assert not view.locator("#copies").is_visible()
    text = "and so on\r\n" * 30 + "a\u200db"
    view = opened(look_page(of_characters(text), text))
    signs = view.eval_on_selector_all(".block [data-sign]", "cells => cells.map(cell => cell.dataset.sign)")
    assert (signs[:4], signs[-1]) == (["␍", "⏎"] * 2, "⁀")


RTL = "אבג, דהו 12 זח.\n\nab אב\n"


@pytest.mark.parametrize("level", ["char", "byte"])
def test_right_to_left(opened, of_characters, level):
    """Each character keeps its own shade, underline and prediction, and stands where its script puts it."""
    trained = of_characters(RTL)
    if level == "byte":
        vocabulary = Vocabulary("byte")
        network = CharLM(256, 0, RecurrentLayers(LSTM(hidden=6), 256)).eval()
        trained = replace(trained, vocabulary=vocabulary, network=network)
    page = look_page(trained, RTL)
    data = data_of(page)
    bits = unpacked(data["reading"]["bits"]) / 1000
    if level == "char":
        page = page.replace('"copied": []', '"copied": [[9, 3]]')
    view = opened(page)
    cells = view.locator(".block span").all()
    assert "".join(cell.text_content() for cell in cells) == RTL
    assert len(cells) == len(data["text"])
    colors = [cell.evaluate("cell => cell.style.backgroundColor") for cell in cells]
    alphas = np.array([float(color.rstrip(")").split(",")[-1]) if color else 0 for color in colors])
    assert alphas[0] == 0  # the first has no prediction
    assert len({*alphas}) > 5
    assert (np.diff(alphas[1:][np.argsort(bits[1:])]) >= 0).all()
    boxes = [cell.bounding_box() for cell in cells]
    right_ends = [
        boxes[place]["x"] for place, c in enumerate(data["text"]) if c in "אבגדהוזח" and place < len(cells) // 2
    ]
    assert right_ends == sorted(right_ends, reverse=True)
    for place in (1, 4):
        view.mouse.move(
            *(boxes[place][side] + boxes[place][size] / 2 for side, size in (("x", "width"), ("y", "height")))
        )
        assert selected(view) == place
        assert f" {place + 1} of " in view.text_content(".prediction")
    if level == "char":
        assert [cell.get_attribute("class") for cell in cells[8:13]] == ["", "copied", "copied", "copied", ""]
    view.click('[data-index="1"]')
    view.focus("[role=application]")
    view.keyboard.press("ArrowLeft")  # onward, as the text runs
    assert selected(view) == 2
    assert view.eval_on_selector(".context", "context => getComputedStyle(context).direction") == "rtl"


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


def test_on_every_screen_and_printed(opened, page):
    view = opened(page, color_scheme="dark", has_touch=True, forced_colors="none")
    assert view.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    for width, height in ((1300, 900), (844, 390), (650, 450), (390, 844), (320, 560)):
        view.set_viewport_size({"width": width, "height": height})
        view.reload()
        view.wait_for_selector("html[data-ready=yes]", state="attached")
        assert "1 bit: a coin toss" in view.text_content(".prediction")  # it opens on a character with a prediction
        assert view.evaluate("document.documentElement.scrollWidth") <= width
        if width == 390:
            mark, card = view.locator(".selected").bounding_box(), view.locator(".sheet").bounding_box()
            assert card["y"] + card["height"] == height  # at the bottom of the screen
            assert mark["y"] + mark["height"] <= card["y"]
            view.click(".close")
            assert not view.locator(".sheet").is_visible()
            view.click("#words button >> nth=2")
            mark = view.locator(".selected").bounding_box()
            assert 0 < mark["y"] < view.locator(".sheet").bounding_box()["y"]
    view.emulate_media(media="print")
    view.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert view.text_content(".text") == words_text(3000)
    assert not view.locator(".close").is_visible()
    assert view.eval_on_selector(".text", "box => box.scrollHeight <= box.clientHeight + 8")
    view.emulate_media(media="screen", forced_colors="active")
    view.evaluate("dispatchEvent(new Event('afterprint'))")
    view.click("#views button[value=surprise]")
    assert "rgba(230" in view.eval_on_selector_all(
        ".block span", "cells => cells.map(cell => getComputedStyle(cell).backgroundColor).join()"
    )


def test_a_long_text_has_few_elements(opened, model):
    view = opened(look_page(model, words_text(15_000)))
    for top in (200, 3000, 1e9, 0):
        view.evaluate(f"document.querySelector('.text').scrollTop = {top}")
        place = 14_999 if top == 1e9 else 0
        if top in (1e9, 0):
            view.wait_for_selector(f'[data-index="{place}"]')
        assert view.locator(".block span").count() < 10_000
    assert view.text_content(".text") == words_text(15_000)  # which the browser can search
