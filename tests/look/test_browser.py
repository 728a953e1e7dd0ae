"""The page as it is used: opened from a file in a real browser, without a network."""

import re
from pathlib import Path

import pytest
import torch

from charlm.inference.loading import load
from charlm.look import look_page
from tests.browser import HOSTILE, check_access, data_of, pages_in, unpacked, wait_until_ready
from tests.export.models import model_of
from tests.text import words_text

pytestmark = pytest.mark.slow

TEXT = words_text(12_000)


@pytest.fixture(scope="module")
def html(trained_run) -> str:
    """A model beside the same with random weights."""
    model = load(trained_run, "cpu")
    return look_page(model, TEXT, model.untrained(), gradients=True)


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
    assert " bits per character (the text) · " in view.text_content("#facts")
    seen = "run was trained on 100% of this text"
    assert seen in view.text_content("#compared p >> nth=0")
    bits, other = (unpacked(each["reading"]["bits"])[1:] for each in (data, data["compare"]))
    assert selected(view) == 1 + int(bits[:199].argmax())
    assert view.get_attribute("#views button[value=compare]", "aria-checked") == "true"
    share = 100 * (bits < other).sum() / (bits != other).sum()
    assert f"bits; better in {share:.0f}% of the characters." in view.text_content("#compared p >> nth=1")
    shown = colors(view)
    better = int((other - bits)[:999].argmax()) + 1
    assert shown[better].startswith("rgba(30, 110, 210")  # blue where the first is better
    assert view.locator("#memory path.line").count() == 4  # two models, and each with the whole text
    assert view.text_content("#memory").count(": From ") == 2
    assert view.locator("#gradients path.line").count() == 4  # two models, trained and untrained
    check_access(view, 12)


def test_the_pointer_tells_of_a_character(view, html):
    data = data_of(html)
    view.click("#views button[value=surprise]")
    assert sum(map(bool, colors(view))) > 100
    assert view.text_content("#story").endswith(" It guesses every next character; orange: it was surprised.")
    view.hover('[data-index="40"]')
    assert "character 41 of 12,000" in view.text_content(".prediction")
    bits = unpacked(data["reading"]["bits"])[40]
    assert view.text_content(".prediction .beside p >> nth=0").startswith(f"{bits:.2f} bits (1 bit: a coin toss), ")
    view.click('[data-index="50"]')
    view.hover('[data-index="60"]')  # a click holds the character
    assert "character 51 of" in view.text_content(".prediction")
    view.keyboard.press("Escape")
    word = view.text_content("#words button .what >> nth=5")
    view.click("#words button >> nth=5")
    assert TEXT[selected(view) :].startswith(word)
    assert "100.0% in stretches of 20 or more" in view.text_content("#copies-says")
    assert view.locator(".block .copied").count() > 100
    view.uncheck("#copies")
    assert view.locator(".block .copied").count() == 0


def test_keys_move_through_the_text(view):
    view.focus("[role=application]")
    for key in ("Control+Home", "ArrowRight", "ArrowRight", "ArrowLeft"):
        view.keyboard.press(key)
    assert selected(view) == 1
    view.keyboard.press("Control+End")
    assert "character 12,000 of" in view.text_content(".prediction")
    assert view.locator(".block span").count() < 10_000  # of a long text, only what is near
    view.keyboard.press("Control+Home")
    view.keyboard.press("n")
    assert float(view.text_content(".prediction .beside p >> nth=0").split()[0]) >= 4
    strip = view.locator("#strip").bounding_box()
    view.mouse.click(strip["x"] + 0.75 * strip["width"], strip["y"] + 9)
    assert view.locator('[data-index="9000"]').is_visible()


def test_units_and_copying(view):
    view.click("#views button[value=unit]")
    view.click("#unit-list button >> nth=1")
    unit = view.text_content("#unit-says strong")
    before = colors(view)
    assert re.search(rf"{unit}: (output h|memory c) is .* after it", view.text_content(".prediction"))
    view.select_option("#gate", "gate f")
    assert colors(view) != before
    assert view.text_content("#story").endswith("at 0 it forgets, at 1 (orange) it keeps.")
    copied = """() => {
        getSelection().selectAllChildren(document.querySelector(".text"));
        return String(getSelection());
    }"""
    assert view.evaluate(copied) == TEXT  # no signs, and no ends of rows


def test_all_numbers_of_a_character_agree(opened, of_characters):
    """Those of a probability just below 98.5%, and of one that 65535ths cannot tell from 0."""
    model = of_characters("abc")
    with torch.no_grad():
        model.network.decoder.weight.zero_()
        model.network.decoder.bias.copy_(torch.tensor([0.984996, 0.015004, 2.0**-80]).log())
    view = opened(look_page(model, "cabca"))
    for place, said in enumerate(("0.02 bits", "6.06 bits", "80.00 bits"), start=1):
        view.hover(f'[data-index="{place}"]')
        sentence = view.text_content(".prediction .beside p")
        assert sentence.startswith(said)
        assert f"probability {view.text_content('.prediction .true .number')}," in sentence


def test_a_model_of_records_counts_what_it_scores(opened):
    view = opened(look_page(model_of(records="\n"), "abba\nfee\n"))
    assert view.text_content("#facts").endswith(" · 9 characters")
    assert view.get_attribute("[role=application]", "aria-label") == "The text, 9 characters"
    view.hover('[data-index="0"]')
    assert view.text_content(".prediction").endswith("character 1 of 9")


def test_a_long_line_breaks_only_at_the_edge(opened):
    view = opened(look_page(model_of(), "ab" * 1100))
    tops = view.eval_on_selector_all(".block span", "cells => cells.map((cell) => cell.getBoundingClientRect().top)")
    columns = tops.count(tops[0])
    assert [tops.count(top) for top in sorted(set(tops))] == [*[columns] * (2200 // columns), 2200 % columns]


def test_words_and_context_are_without_parts_of_characters(opened, of_characters):
    view = opened(look_page(of_characters("", "byte"), "a λόγος"))
    assert view.text_content("#words .what") == "λόγος"
    view.hover('[data-index="5"]')
    assert view.text_content(".prediction .context") == "a λό"


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
    assert view.text_content("h1") == "<script>window.broken=1"


def test_on_a_phone(opened, html):
    view = opened(html, color_scheme="dark", has_touch=True)
    assert view.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    view.set_viewport_size({"width": 390, "height": 844})
    view.reload()
    wait_until_ready(view)
    assert view.evaluate("document.documentElement.scrollWidth") <= 390
    assert view.locator(".sheet").is_hidden()  # it would cover most of the text
    view.tap("[data-index='300']")
    mark, card = view.locator(".selected").bounding_box(), view.locator(".sheet").bounding_box()
    assert mark["y"] + mark["height"] <= card["y"]
