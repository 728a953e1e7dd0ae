"""The page as it is used: opened from a file in a real browser, without a network."""

import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from charlm.cells import LSTM
from charlm.data.vocabulary import Vocabulary
from charlm.inference.trained import load
from charlm.layers import RecurrentLayers
from charlm.look import look_page
from charlm.model import CharLM
from tests.browser import HOSTILE, data_of, unnamed, unpacked
from tests.text import words_text


@pytest.fixture(scope="module")
def page(trained_run) -> str:
    """A model beside itself."""
    model = load(trained_run, "cpu")
    return look_page(model, words_text(3000), model)


@pytest.fixture
def view(opened, page):
    return opened(page)


def shaded(view) -> int:
    return view.eval_on_selector_all(".row span", "cells => cells.filter(cell => cell.style.backgroundColor).length")


def test_pointing_at_a_character_tells_its_prediction(view, page):
    assert view.text_content("#facts").startswith("lstm, 1 × 16 units · ")
    view.click("#views button[value=surprise]")
    assert shaded(view) > 100
    view.hover('[data-index="40"]')
    assert "character 41 of 3,000" in view.text_content("#prediction")
    assert view.locator("#prediction .bars").first.locator("li").count() in (5, 6)
    rank = unpacked(data_of(page)["reading"]["rank"])[40]
    ordinal = {1: "1st", 2: "2nd", 3: "3rd"}.get(rank, f"{rank}th")
    surprise = rf"\d+\.\d\d bits \(1 bit: a coin toss\), probability .+\s%, its {ordinal} guess\."
    said = view.text_content("#prediction .beside p >> nth=0")
    assert re.fullmatch(rf"{surprise} It expected \d\.\d\d bits on average\.", said)
    view.click('[data-index="50"]')
    view.hover('[data-index="60"]')  # a click holds the character
    assert "character 51 of" in view.text_content("#prediction")
    view.focus("#unit-search")
    view.keyboard.press("Escape")
    view.hover('[data-index="61"]')
    assert "character 62 of" in view.text_content("#prediction")
    view.click("#words button >> nth=5")
    selected = view.get_attribute(".row .selected", "data-index")
    view.hover(f'[data-index="{int(selected) + 1}"]')  # a jump holds nothing
    assert f"character {int(selected) + 2:,} of" in view.text_content("#prediction")
    word = view.text_content("#words button .what >> nth=5")
    assert words_text(3000)[int(selected) :].startswith(word)
    assert "".join(view.locator(".row .framed").all_text_contents()) == word
    view.keyboard.press("Escape")
    assert view.locator(".row .framed").count() == 0
    assert "3000 characters" in view.text_content("#copied")
    assert view.locator(".row .copied").count() > 100
    view.uncheck("#copies")
    assert view.locator(".row .copied").count() == 0
    assert view.locator("#memory svg circle").count() == 20


def test_two_models_are_compared_at_once_and_every_control_and_chart_has_a_name(view):
    assert view.get_attribute("#views button[value=compare]", "aria-checked") == "true"
    assert shaded(view) == 0  # a model beside itself
    facts, name = view.text_content("#facts"), view.text_content("h1")
    bits = facts.split(" bits per character of this text")[0].split()[-1]
    assert f" · {name}: {bits} bits · " in facts
    assert re.fullmatch(
        rf"{name} (\d\.\d\d), {name} \1 bits per character in all 3,000 characters", view.text_content("#range")
    )
    assert view.locator("#memory polyline").count() == 2
    assert view.text_content("#memory").count(f"{name}: From ") == 2
    assert unnamed(view) == []
    label = view.get_attribute("#strip", "aria-label")
    assert label.startswith("Difference of the two models' bits over the text, highest near ")
    view.click("#views button[value=unit]")
    assert unnamed(view) == []


def test_it_says_what_it_is_and_begins_with_the_strongest_surprise_in_sight(opened, trained_run):
    model, text = load(trained_run, "cpu"), words_text(3000)
    page = look_page(model, text)
    view = opened(page)
    minutes = model.progress["elapsed_s"]
    assert minutes < 57
    seconds = max(1, round(minutes))
    source = Path(model.config.data.source).name
    read = f"A network read {source} for {seconds} second{'s' * (seconds > 1)}."
    assert view.text_content("#story") == f"{read} It guesses every next character; orange: it was surprised."
    view.click("#views button[value=unit]")
    assert view.text_content("#story").startswith(f"{read} The color is one number of its memory, a unit: ")
    first, last = (view.locator("#text .row span").nth(place).get_attribute("data-index") for place in (0, -1))
    assert first == "0"
    box, row = view.locator("#text").bounding_box(), 24
    in_sight = text[: int(last)].split("\n")[: int((box["height"] - 11) / row)]
    bits = unpacked(data_of(page)["reading"]["bits"]).astype(float)
    bits[0] = 0
    strongest = int(bits[: len("\n".join(in_sight))].argmax())
    assert view.get_attribute(".row .selected", "data-index") == str(strongest)
    for card in view.locator("aside .card:visible").all():
        assert card.locator("p").first.text_content()  # says what the card is


def test_a_stretch_of_the_text_is_selected_and_units_are_sorted_by_it(opened, trained_run):
    page = look_page(load(trained_run, "cpu"), words_text(3000))
    shown = data_of(page)["units"]
    view = opened(page)
    view.evaluate("document.getElementById('unit-list').scrollTop = 60")
    names = view.locator("#unit-list strong")
    before = names.all_text_contents()
    start, end = (view.locator(f'[data-index="{place}"]').bounding_box() for place in (4, 9))
    view.mouse.move(start["x"] + 1, start["y"] + 8)
    view.mouse.down()
    view.mouse.move(end["x"] + end["width"] - 1, end["y"] + 8)
    view.mouse.up()
    view.wait_for_selector("#range:has-text('characters 5 to 10')")
    apart = {}
    for unit in shown:
        values = next(unpacked(each).astype(float) for each in unit["curves"] if each["name"] == unit["state"])
        distance = abs(values[4:10].mean() - np.delete(values, range(4, 10)).mean()) / values.std()
        apart[f"{unit['state']} {unit['unit']}, layer {unit['layer']}"] = distance
    assert names.all_text_contents() == sorted(apart, key=lambda name: -apart[name])
    assert view.evaluate("document.getElementById('unit-list').scrollTop") == 0
    said = view.locator("#unit-list span").all_text_contents()
    assert said[0].endswith(f" elsewhere: {max(apart.values()):.2f} standard deviations apart")
    assert min(apart.values()) < 0.5
    assert said[-1].endswith("; much the same here as elsewhere")
    view.click("#views button[value=entropy]")  # whose color is not about these bits
    assert view.text_content("#range") == "Selected: characters 5 to 10"
    assert view.text_content("#units-order") == " that differ most in the selection"
    assert [view.locator(f'[data-index="{place}"].outside').count() for place in (3, 4, 9, 10)] == [1, 0, 0, 1]
    view.keyboard.press("Escape")
    assert names.all_text_contents() == before
    assert view.text_content("#range") == ""
    view.click("#views button[value=surprise]")
    view.focus("#text")
    view.keyboard.press("Control+Home")
    for _ in range(3):
        view.keyboard.press("Shift+ArrowRight")
    assert "characters 1 to 4" in view.text_content("#range")


def test_on_a_phone_jumps_lead_to_the_text_and_the_card_can_be_closed(opened, page):
    view = opened(page, has_touch=True)
    view.set_viewport_size({"width": 390, "height": 780})
    view.reload()
    view.wait_for_selector("html[data-ready=yes]", state="attached")
    selected, card = view.locator(".row .selected").bounding_box(), view.locator("#details").bounding_box()
    assert card["height"] < 330  # of two models
    assert "1 bit: a coin toss" in view.inner_text("#details")
    assert card["y"] + card["height"] == 780  # at the bottom of the screen
    assert selected["y"] + selected["height"] <= card["y"]  # the strongest surprise that is not covered
    view.click("#close-details")
    assert not view.locator("#details").is_visible()
    view.locator("#words").scroll_into_view_if_needed()
    assert view.locator("#text").bounding_box()["y"] < -300
    view.click("#words button >> nth=2")
    assert 0 <= view.locator("#text").bounding_box()["y"] < 30
    assert view.locator("#details").is_visible()
    selected, card = view.locator(".row .selected").bounding_box(), view.locator("#details").bounding_box()
    assert 0 < selected["y"] < card["y"] - selected["height"]


def dark_share(view, x: float, y: float, width: float, height: float) -> float:
    """How much of a part of the page is as dark as its ink."""
    picture = imread(io.BytesIO(view.screenshot(clip={"x": x, "y": y, "width": width, "height": height})))
    return float((picture[..., :3].mean(-1) < 0.3).mean())


def test_keys_move_through_the_text(view):
    view.click('[data-index="0"]')
    view.focus("#text")
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        view.keyboard.press(key)
    assert "character 2 of" in view.text_content("#prediction")
    view.keyboard.press("Control+End")
    assert "character 3,000 of" in view.text_content("#prediction")
    assert view.locator('[data-index="2999"].selected').is_visible()
    view.keyboard.press("Control+Home")
    first = view.locator('[data-index="0"]').bounding_box()
    assert dark_share(view, first["x"] - 1, first["y"] + 5, 1, first["height"] - 10) == 1  # the box around it is whole
    view.keyboard.press("n")
    bits = float(view.text_content("#prediction .beside p >> nth=0").split()[0])
    assert bits >= 4


def test_units_by_list_and_search(view):
    view.click('[data-index="40"]')
    assert " after it." not in view.text_content("#prediction")
    view.click("#views button[value=unit]")
    assert view.locator("#unit-bar").is_visible()
    first = view.text_content("#unit-says strong")
    view.click("#unit-list button >> nth=1")
    second = view.text_content("#unit-says strong")
    assert first != second
    colors = "cells => cells.slice(0, 300).map(cell => cell.style.backgroundColor).join()"
    before = view.eval_on_selector_all(".row span", colors)
    assert re.search(rf"{second}: (output h|memory c) is ", view.text_content("#prediction"))
    options = ["c: memory", "f: forget gate", "g: new value", "h: output", "i: input gate", "o: output gate"]
    assert sorted(view.locator("#gate option").all_text_contents()) == options
    view.select_option("#gate", "gate f")
    assert f"{second}: forget gate f is " in view.text_content("#prediction")
    assert view.eval_on_selector_all(".row span", colors) != before
    keeps = "The color is the forget gate f of one unit: at 0 it forgets, at 1 (orange) it keeps."
    assert view.text_content("#story").endswith(keeps)
    assert view.text_content("#legend") == "0 forgets1 keeps"
    view.select_option("#gate", "gate g")
    assert view.text_content("#story").endswith("The color is the new value g of one unit: orange above 0, blue below.")
    assert view.text_content("#legend") == "negativepositive"
    view.fill("#unit-search", first.replace(",", " "))
    assert view.locator("#unit-list button").count() >= 1
    view.click("#unit-list button >> nth=0")
    assert view.text_content("#unit-list button[aria-pressed=true] strong") == view.text_content("#unit-says strong")
    view.fill("#unit-search", "no such unit")
    assert view.locator("#unit-list button").count() == 0
    assert view.text_content("#unit-list") == "No unit or feature has these words."


def test_gates_without_words(opened, trained_run):
    page = look_page(load(trained_run, "cpu"), words_text(3000))
    view = opened(re.sub(r'"meaning": \[[^]]*\]', '"meaning": []', page))  # as a person's own cell has it
    view.click("#views button[value=unit]")
    assert "gate f" in view.locator("#gate option").all_text_contents()
    view.select_option("#gate", "gate f")
    assert view.text_content("#story").endswith("The color is gate f of one unit: blank at 0, orange at 1.")
    assert view.text_content("#legend") == "01"


def test_cards_without_content_are_not_there(opened, of_characters):
    view = opened(look_page(of_characters("abc"), "abcab"))
    cards = view.locator("aside .card:visible").all()
    assert [card.get_attribute("id") for card in cards] == ["details"]


def test_a_part_is_selected_on_the_chart_but_not_by_a_finger_that_scrolls(view):
    view.dispatch_event("#strip", "pointercancel")
    for kind, x in (("pointermove", 300), ("pointermove", 500), ("pointerup", 500)):
        view.dispatch_event("#strip", kind, {"clientX": x})
    assert "in all 3,000 characters" in view.text_content("#range")
    box = view.locator("#strip").bounding_box()
    view.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
    view.mouse.down()
    view.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 20)
    view.mouse.up()
    assert "characters 1,501 to 2,25" in view.text_content("#range")
    assert view.locator('[data-index="1500"]').is_visible()
    view.keyboard.press("Escape")
    assert "in all 3,000 characters" in view.text_content("#range")
    view.focus("#strip")
    view.keyboard.press("Shift+ArrowRight")
    assert "bits per character in characters" in view.text_content("#range")


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
        # the letters 9 to 11 of the page are copied
        page = page.replace('"copied": []', '"copied": [[9, 3]]')
    view = opened(page)
    cells = view.locator(".row span").all()
    assert len(cells) == len(data["text"])
    for place, cell in enumerate(cells):
        assert cell.get_attribute("data-index") == str(place)
        shown = cell.text_content()
        assert shown == ("⏎" if data["text"][place] == "\n" else data["text"][place])
    colors = [cell.evaluate("cell => cell.style.backgroundColor") for cell in cells]
    alphas = np.array([float(color.rstrip(")").split(",")[-1]) if color else 0 for color in colors])
    assert alphas[0] == 0  # the first has no prediction
    assert len({*alphas}) > 5
    assert (np.diff(alphas[1:][np.argsort(bits[1:])]) >= 0).all()
    assert view.eval_on_selector_all(".row", "rows => rows.map(row => row.dir)") == ["rtl", "rtl", "ltr"]
    boxes = [cell.bounding_box() for cell in cells]
    last = data["text"].index("\n")
    right_ends = [boxes[place]["x"] for place in range(last + 1) if data["text"][place] in "אבגדהוזח"]
    assert right_ends == sorted(right_ends, reverse=True)
    for place in (1, 4, last):
        view.mouse.move(
            *(boxes[place][side] + boxes[place][size] / 2 for side, size in (("x", "width"), ("y", "height")))
        )
        assert int(view.get_attribute(".row .selected", "data-index")) == place
        assert f" {place + 1} of " in view.text_content("#prediction")
    chart = view.locator("#strip").bounding_box()
    right = chart["x"] + chart["width"] - 2  # the last column within the border
    assert dark_share(view, right, chart["y"] + 20, 1, 20) == 1  # the frame ends where the text ends
    if level == "char":
        assert [cell.get_attribute("class") for cell in cells[8:13]] == [None, "copied", "copied", "copied", None]
    assert view.locator("#copies").is_visible() == (level == "char")  # there are no copies to underline
    view.click('[data-index="1"]')
    view.keyboard.press("ArrowLeft")  # onward, as the text runs
    assert view.locator('[data-index="2"].selected').is_visible()
    assert view.eval_on_selector(".context", "context => getComputedStyle(context).direction") == "rtl"


def test_a_hostile_text_and_vocabulary_do_nothing(opened, of_characters):
    path = Path("runs/<script>window.broken=1/checkpoints/x")
    text = HOSTILE * 9 + "\u202eab <img src=x onerror=window.broken=1>"
    view = opened(look_page(of_characters(text, path=path), text))
    view.hover('[data-index="5"]')
    place = text.index("\u202e") + 1
    view.hover(f'[data-index="{place}"]')
    assert view.text_content("#prediction .context").endswith(r"\u202e" + text[place])
    assert "\u202e" not in view.text_content("main")
    assert view.evaluate("window.broken") is None
    assert view.locator("img").count() == 0
    assert view.title().startswith("<script>window.broken=1 ·")
    assert view.text_content("h1") == "<script>window.broken=1"


def test_line_ends_of_windows_are_quiet(opened, of_characters):
    text = "and so on\r\n" * 30
    view = opened(look_page(of_characters(text), text))
    ends = view.locator("#text .row .sign")
    assert ends.all_text_contents()[:4] == ["␍", "⏎"] * 2


def test_dark_wide_narrow_and_printed(opened, page):
    view = opened(page, color_scheme="dark")
    view.set_viewport_size({"width": 1100, "height": 640})
    assert view.locator("#details").bounding_box()["height"] < 330  # of two models
    assert view.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    view.set_viewport_size({"width": 2500, "height": 900})
    view.evaluate("dispatchEvent(new Event('beforeprint'))")
    view.emulate_media(media="print")
    view.set_viewport_size({"width": 700, "height": 900})
    assert view.locator("#printed .row span").count() == 3000
    widths = view.eval_on_selector_all("#printed .row", "rows => rows.map(row => row.scrollWidth)")
    assert 400 < max(widths) <= 700
    view.emulate_media(media="screen")
    view.evaluate("dispatchEvent(new Event('afterprint'))")
    assert view.locator("#printed .row span").count() == 0
    assert view.locator('[data-index="40"]').first.is_visible()
    view.set_viewport_size({"width": 390, "height": 800})
    view.click("#close-details")
    view.wait_for_function("document.documentElement.scrollWidth <= 390")


def test_a_long_text_has_few_elements_and_its_rows_stay_in_order(opened, model):
    view = opened(look_page(model, words_text(15_000)))
    for top in (200, 3000, 2800, 1000, 1e9, 0):
        view.evaluate(f"document.getElementById('text').scrollTop = {top}")
        view.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        places = view.eval_on_selector_all("#text .row span", "cells => cells.map(cell => Number(cell.dataset.index))")
        assert places == list(range(places[0], places[0] + len(places)))
        assert len(places) < 10_000
        assert (14_999 in places) == (top == 1e9)
        box, row = (view.locator(name).first.bounding_box() for name in ("#text", "#text .row"))
        assert row["y"] <= box["y"] + 12
