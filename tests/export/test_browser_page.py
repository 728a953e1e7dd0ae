"""The page of an exported model as it is used: opened from a file in a real browser, without a network."""

import math
import re
from dataclasses import replace
from pathlib import Path
from unicodedata import category

import numpy as np
import pytest
import torch

from charlm.data.vocabulary import Vocabulary
from charlm.export import export
from charlm.inference.trained import TrainedModel
from charlm.look import look_page, opening
from charlm.model import build_model
from tests.browser import HOSTILE, check_access, data_of
from tests.export.models import CHARACTERS, model_of
from tests.inference.models import outputs_of
from tests.pairwise import pairwise


@pytest.fixture
def page(opened, tmp_path, without_training_text):
    """Exports a model, whose training text is gone, and opens its page with all settings in sight, for a person who
    wants little motion: the page writes as fast as it can."""

    def page(trained: TrainedModel, **options):
        export(trained, "html", tmp_path / "exported.html", int8=False)
        view = opened((tmp_path / "exported.html").read_text(encoding="utf-8"), reduced_motion="reduce", **options)
        done(view)
        view.click("summary")
        return view

    return page


def done(view) -> None:
    view.wait_for_selector("#paper[aria-busy=false]")


def until(view, condition: str) -> None:
    """Wait for a condition; its policy forbids the page to evaluate one again and again."""
    while not view.evaluate(condition):
        view.wait_for_timeout(20)


def shown(view) -> str:
    return view.text_content("#paper")


def written(view, **fields: object) -> str:
    """What the page writes with these fields."""
    for name, value in ({"seed": 1, "length": 60} | fields).items():
        view.fill(f"#{name.replace('_', '-')}", str(value))
    view.click("#write")
    done(view)
    return shown(view)


CHOICES = [  # Each stays in its fields until it is replaced.
    {"temperature": 0},
    {"temperature": 0.9, "top_p": 0.6},
    {"temperature": 1.2, "top_p": 1, "top_k": 3},
    {"temperature": 1.5, "top_k": 5, "top_p": 0.9},
]


@pytest.mark.parametrize("level", ["char", "byte"])
def test_the_same_seed_gives_the_text_of_charlm_sample(page, level):
    trained = model_of("gru", level=level)
    view = page(trained)

    def in_sight(text: str) -> str:
        """Control characters have signs."""
        kept = "\n\t\u00ad\u200c\u200d"
        return "".join(c for c in text if c in kept or (category(c)[0] != "C" and category(c) not in ("Zl", "Zp")))

    assert view.input_value("#seed") == "1"
    assert shown(view) == in_sight(trained.sample(length=1000, seed=1))
    for prompt, seed in (("", 10**18 - 1), ("abé\nfe", 7)):
        expected = prompt + trained.sample(prompt, length=60, seed=seed)
        assert written(view, prompt=prompt, seed=seed) == in_sight(expected)
        given = "".join(view.locator("#paper .given").all_text_contents())
        assert given == prompt.replace("\n", "")
    for seed, choice in enumerate(CHOICES):
        expected = in_sight(trained.sample(length=60, seed=seed, **choice))
        assert written(view, prompt="", seed=seed, **choice) == expected


def with_bias(trained: TrainedModel, character: str, bias: float = 50) -> TrainedModel:
    """The model with one character far likelier than the others."""
    with torch.no_grad():
        trained.network.decoder.bias[int(trained.vocabulary.encode(character)[0])] += bias
    return trained


def test_the_stop_text_and_faults(page):
    trained = model_of()
    view = page(trained)
    expected = trained.sample(length=900, seed=4, stop="ab")
    assert expected.endswith("ab")
    assert written(view, length=900, seed=4, stop_text="ab") == expected
    view.click("summary")  # closed: what is wrong comes into sight, is marked, and has the focus
    for field, value, message in (
        ("stop-text", "aß", "The model never writes “ß” (U+00DF)."),
        ("temperature", "-1", "Value must be greater than or equal to 0."),
        ("top-k", "1.5", "Please enter a valid value. The two nearest valid values are 1 and 2."),
        ("length", "", "Please fill out this field."),
        ("seed", "-3", "Please match the requested format."),
    ):
        old = view.input_value(f"#{field}")
        view.evaluate("([id, value]) => { document.getElementById(id).value = value; }", [field, value])
        view.dispatch_event(f"#{field}", "input")
        view.click("#write")
        assert view.evaluate("[document.activeElement.id, document.activeElement.validationMessage]") == [
            field,
            message,
        ]
        assert view.eval_on_selector(":invalid:not(form)", "field => getComputedStyle(field).outlineWidth") == "2px"
        view.fill(f"#{field}", old)
    view.fill("#prompt", "aß\tb")
    view.click("#write")
    message = "The model has never seen “tab” (U+0009), “ß” (U+00DF), and cannot read or write that. Delete them"
    assert view.text_content("#write-fault") == message
    assert view.evaluate("document.activeElement.id") == "prompt"
    assert view.get_attribute("#prompt", "aria-invalid") == "true"
    check_access(view, 25)
    assert shown(view) == expected
    view.click("#write-fault button")
    done(view)
    assert view.input_value("#prompt") == "ab"
    assert view.get_attribute("#prompt", "aria-invalid") is None
    assert shown(view) == f"ab{trained.sample('ab', length=900, seed=4, stop='ab')}"
    vocabulary = Vocabulary("char", CHARACTERS.replace("é", "'"))
    view = page(replace(model_of(), vocabulary=vocabulary))
    view.fill("#prompt", "“a” b’")
    view.click("#write")
    assert view.locator("#write-fault button").all_text_contents() == ["Replace “ ” by '", "Delete them"]
    view.click("#write-fault button >> nth=0")
    assert view.input_value("#prompt") == "'a' b'"


def test_a_model_of_lines_writes_lines(page):
    trained = model_of("lstm", unit="line")
    view = page(trained)
    lines = [f"c{trained.sample('c', length=40, seed=seed)}" for seed in (5, 6, 7)]
    assert written(view, prompt="c", count=3, length=40, seed=5) == "\n".join(lines)
    view.fill("#prompt", "a\nb")
    view.click("#write")
    assert view.evaluate("document.activeElement.validationMessage") == "A part of one line, without a line end."


def test_the_page_answers_while_it_writes(page):
    view = page(model_of(layers=3))
    view.fill("#length", "1000000")
    view.click("#write")
    view.click("#stop")
    done(view)
    assert 0 < len(shown(view)) < 1_000_000
    view.focus("#length")
    view.keyboard.press("Enter")
    view.wait_for_selector("#paper[aria-busy=true]")
    view.click("#complete-tab")
    view.keyboard.press("Escape")  # is for this tab
    assert view.get_attribute("#paper", "aria-busy") == "true"
    view.click("#write-tab")
    view.keyboard.press("Escape")
    done(view)
    view.evaluate("document.getElementById('prompt').value = 'ab '.repeat(2e5)")  # to type it takes long
    view.click("#write")
    view.wait_for_selector("#write-status:has-text('reading the prompt: ')")
    view.keyboard.press("Escape")
    done(view)
    seed = view.input_value("#seed")
    written(view, prompt="", length=5, seed=seed)
    assert not view.is_checked("#new-seed")  # a seed that is typed stays
    view.click("#write")
    done(view)
    assert view.input_value("#seed") == seed


def test_a_long_text_has_few_elements_and_its_end_is_followed(page):
    view = page(with_bias(model_of("gru"), "\n", 3))
    text = written(view, length=30_000)
    assert len(text) == 30_000
    assert view.locator("#paper span").count() < 6000
    where = "({ scrollTop, scrollHeight, clientHeight }) => [scrollTop, scrollHeight - scrollTop - clientHeight]"
    near, far = view.eval_on_selector("#paper", where)
    assert near < 2  # the beginning stays in sight
    assert far > 500
    view.select_option("#pace", "400")
    view.click("#write")
    until(view, "document.getElementById('paper').textContent.length > 150")
    view.evaluate("document.getElementById('paper').scrollTop = 1e9")
    until(view, "document.getElementById('paper').textContent.length > 300")
    near, far = view.eval_on_selector("#paper", where)
    assert far < 40  # whoever has scrolled to the end follows it
    assert near > 300
    view.keyboard.press("Escape")
    done(view)


def signs(view) -> str:
    """For each character on the paper whether it is blue (−), orange (+) or not colored (0)."""
    colors = view.eval_on_selector_all("#paper span", "cells => cells.map(cell => cell.style.backgroundColor)")
    return "".join("0" if not color else "+" if color.startswith("rgba(230") else "-" for color in colors)


def test_colors_and_names_of_units(opened, model, tmp_path):
    export(model, "html", tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    units = data_of(look_page(model, opening(model, 5000)))["units"]
    named = data_of(page)["units"]
    assert len(named) > 3
    assert named == [{name: unit[name] for name in named[0]} for unit in units]
    view = opened(page, reduced_motion="reduce")
    done(view)
    assert {*signs(view)} == {"+"}  # the surprise
    view.select_option("#color", "nothing")
    assert {*signs(view)} == {"0"}
    labels = [f"{unit['state']} {unit['unit']}, layer {unit['layer']}: {unit['feature']}" for unit in named]
    assert view.locator("#color option").all_text_contents() == ["surprise", "nothing", *labels]
    unit = next(unit for unit in named if unit["state"] == "h")
    view.select_option("#color", labels[named.index(unit)])
    until(view, "document.querySelector('#paper span').style.backgroundColor !== ''")
    values_N = outputs_of(model, f"\n{shown(view)}")[1:, unit["unit"]]
    far = np.abs(values_N) > 0.1  # int8 weights
    assert "".join(np.array([*signs(view)])[far]) == "".join("0+-"[int(sign)] for sign in np.sign(values_N[far]))
    assert view.text_content("#unit-name").startswith(f"correlation {unit['correlation']:.2f}".replace("-", "−"))
    view.evaluate("document.getElementById('length').value = '100000'")
    view.select_option("#pace", "60")
    view.click("#write")
    until(view, "document.getElementById('paper').textContent.length >= 20")
    for chosen, colors in (("nothing", {"0"}), ("surprise", {"+"})):  # on all letters at once while it writes
        view.select_option("#color", chosen)
        assert view.get_attribute("#paper", "aria-busy") == "true"
        assert {*signs(view)} - {"0"} == colors - {"0"}, chosen


def test_pointing_at_written_text_tells_what_else_could_have_come(page):
    trained = with_bias(model_of("gru"), "a", 2)
    view = page(trained)
    assert view.text_content(".prediction >> nth=0") == "Point at a character that it wrote, or tap it."
    text = written(view, prompt="ab", length=80)
    place = next(place for place in range(20, 60) if text[place] in "abcdefgh")
    view.hover(f'#paper [data-index="{place}"]')
    assert view.locator("#written .glyph").all_text_contents()[:5] == names(trained.next(text[:place], 5))
    [bits] = trained.char_scores([text[: place + 1]])
    assert view.text_content("#written .beside p").startswith(f"{bits[-1]:.2f} bits (")
    assert view.text_content("#written mark") == text[place]
    [bits] = trained.char_scores([f"\n{text}"])
    shades = view.eval_on_selector_all("#paper span", "cells => cells.map(cell => cell.style.backgroundColor)")
    alphas = [float(shade.split(",")[-1].rstrip(")")) if shade else 0.0 for shade in shades]
    expected = 0.72 * np.rint(16 * np.sqrt(np.minimum(bits[2:] / 8, 1))) / 16
    assert alphas[2:] == pytest.approx(expected, abs=0.046)
    view.hover('#paper [data-index="0"]')
    assert "was given this character" in view.text_content("#written .prediction")
    view.focus("#paper")
    for _ in range(3):
        view.keyboard.press("ArrowRight")
    assert ", probability " in view.text_content("#spoken")
    view.context.grant_permissions(["clipboard-read", "clipboard-write"])
    view.click("#copy")
    assert view.evaluate("navigator.clipboard.readText()") == text


def test_it_begins_simply_and_writes_at_a_pace_that_can_be_read(opened, tmp_path, page):
    page(model_of())
    view = opened((tmp_path / "exported.html").read_text(encoding="utf-8"))
    assert view.input_value("#pace") == "60"
    for name in ("prompt", "wildness", "temperature", "write", "pace"):
        assert view.locator(f"#{name}").is_visible()
    assert not any(view.locator(f"#{name}").is_visible() for name in ("length", "top-k", "top-p", "seed", "stop-text"))
    writes = "It writes: every next character is drawn from its guesses."
    assert view.text_content("#story") == f"A network that has not been trained yet. {writes}"
    view.fill("#wildness", "1.5")
    assert view.input_value("#temperature") == "1.5"
    view.fill("#temperature", "0.25")
    assert view.input_value("#wildness") == "0.25"
    started = view.evaluate("performance.now()")
    view.click("#write")
    until(view, "document.getElementById('paper').textContent.length >= 30")
    assert view.evaluate("performance.now()") - started > 350  # 60 characters/s; a slow machine writes no faster
    assert len(shown(view)) < 1000
    view.select_option("#pace", "as fast as it can")
    done(view)
    assert len(shown(view)) == 1000


def names(likeliest: list[tuple[str, float]]) -> list[str]:
    return [{" ": "space", "\n": "line end"}.get(character, character) for character, _ in likeliest]


def next_names(view) -> list[str]:
    return view.locator("#next .glyph").all_text_contents()


def test_the_next_characters_while_typing(page, model):
    view = page(model)
    bits = model.progress["valid_nats"] / math.log(2)
    assert f" · {bits:.3f} bits per character of validation text · " in view.text_content("#facts")
    view.click("#complete-tab")
    example = data_of(view.content())["example"]
    assert view.input_value("#typed") == example  # it opens with a text that it can complete
    assert next_names(view) == names(model.next(example))
    view.fill("#typed", "")
    view.keyboard.type("rttarn")
    assert next_names(view) == names(model.next("rttarn"))
    ahead = view.text_content("#ghost .ahead").replace("⏎", "\n")
    assert ahead == model.sample("rttarn", length=48, temperature=0, stop="\n")
    found = re.match(r"\s*\S+|\s+", ahead)
    assert found
    word = found[0]
    assert view.text_content("#take").startswith(f"Tab: “{word[:20]}")
    for composing in ({"isComposing": True}, {"keyCode": 229}):  # an input method has these keys
        view.dispatch_event("#typed", "keydown", {"key": "Tab", **composing})
        view.dispatch_event("#typed", "keydown", {"key": "2", "code": "Digit2", "altKey": True, **composing})
    assert view.input_value("#typed") == "rttarn"
    view.keyboard.press("Tab")
    assert view.input_value("#typed") == f"rttarn{word}"
    [(second, _)] = model.next(f"rttarn{word}")[1:2]
    view.keyboard.press("Alt+2")
    assert view.input_value("#typed") == f"rttarn{word}{second}"
    [(third, _)] = model.next(f"rttarn{word}{second}")[2:3]
    view.click("#next button >> nth=2")
    assert view.input_value("#typed") == f"rttarn{word}{second}{third}"
    view.keyboard.press("Control+Home")
    view.keyboard.type("a")
    assert view.text_content("#ghost .ahead") == ""  # there is text behind the cursor
    assert view.text_content("#beside") != ""
    view.keyboard.press("Escape")
    view.keyboard.press("Tab")
    assert view.evaluate("document.activeElement.id") != "typed"


def test_completions_of_lines_and_to_the_left(page):
    trained = with_bias(model_of("rhn", unit="line"), "a")
    view = page(trained)
    view.click("#complete-tab")
    view.fill("#typed", "abc\nde")
    assert next_names(view) == names(trained.next("de"))
    # Letters from left to right after such letters in a line from right to left: what is typed stays where it is.
    view.fill("#typed", "\u05e9\u05dc\u05d5\u05dd de")
    assert view.text_content("#ghost .ahead").startswith("aaaa")
    places = "typed => [...typed.getClientRects()].map(({ left, right }) => [left, right])"
    beside_gray = view.eval_on_selector("#ghost .typed", places)
    view.focus("#typed")
    view.keyboard.press("Escape")
    assert view.text_content("#ghost .ahead") == ""
    assert view.eval_on_selector("#ghost .typed", places) == beside_gray
    vocabulary = Vocabulary("char", CHARACTERS.replace("é", "\u6211"))
    ideographs = with_bias(replace(model_of("rhn"), vocabulary=vocabulary), "\u6211")
    view = page(ideographs)
    view.click("#complete-tab")
    view.fill("#typed", "abc")
    [(likeliest, _)] = ideographs.next("abc", 1)
    view.wait_for_selector("#next button")
    assert view.text_content("#take") == "Tab: “\u6211”"  # an ideograph is a word
    view.keyboard.press("Alt+1")
    assert view.input_value("#typed") == f"abc{likeliest}"
    assert view.evaluate("document.getElementById('typed').selectionStart") == 4


@pairwise(level=["char", "byte"], unit=["text", "line"])
def test_a_text_is_scored(page, level, unit):
    trained = model_of("slstm", level=level, unit=unit)
    view = page(trained)
    view.click("#score-tab")
    assert view.text_content("#story").endswith("It reads your text; orange: it was surprised.")
    text = "abé😀 fe\nhh"
    view.fill("#pasted", text)
    view.click("#score")
    bits = trained.evaluate(text).bits_per_char
    assert view.text_content("#score-status").startswith(f"{bits:.3f} bits per {'byte' if level == 'byte' else 'char'}")
    size = len(text.encode()) if level == "byte" else len(text)
    assert view.locator("#scored .block span").count() == size + (unit == "line")
    assert view.text_content("#scored .text") == text + ("\n" if unit == "line" else "")
    view.hover('#scored [data-index="3"]')
    assert view.locator("#scored .bars li").count() >= 5
    view.click('#scored [data-index="2"]')
    view.focus("#scored [role=application]")
    view.keyboard.press("ArrowRight")
    assert "4 of" in view.text_content("#scored .prediction")
    if level == "byte" or unit == "line":
        return
    view.fill("#pasted", "a")
    assert view.text_content("#score-status") == ""  # that of another text is gone
    assert not view.locator("#score-result").is_visible()
    view.click("#score")
    assert view.text_content("#score-fault") == "Text: found 1 character; allowed: 2 or more"
    assert view.evaluate("document.activeElement.id") == "pasted"
    view.fill("#pasted", "abß")
    view.click("#score")
    view.click("#score-fault button")
    assert "bits per character" in view.text_content("#score-status")
    assert view.input_value("#pasted") == "ab"


def test_a_hostile_model_does_nothing(page):
    trained = model_of("lstm", unit="line")
    hostile = f"\u202e{HOSTILE}"
    vocabulary = Vocabulary("char", "".join(sorted({*hostile, *trained.vocabulary.characters})))
    network = build_model(trained.config.model, len(vocabulary)).eval()
    network.reset_id = int(vocabulary.encode("\n")[0])
    path = Path("runs/<script>window.broken=1/checkpoints/x")
    view = page(replace(trained, vocabulary=vocabulary, network=network, path=path))
    assert written(view, prompt=hostile).startswith(HOSTILE.replace("\u2028", ""))
    view.click("#complete-tab")
    view.fill("#typed", hostile)
    view.click("#score-tab")
    view.fill("#pasted", hostile)
    view.click("#score")
    view.hover('#scored [data-index="1"]')
    assert view.text_content("#scored .context") == r"\u202e<"
    assert view.evaluate("window.broken") is None
    assert view.locator("img").count() == 0
    assert view.text_content("h1") == "<script>window.broken=1"
    assert view.title() == "<script>window.broken=1 · charlm"


def test_on_a_phone_and_by_keyboard(page):
    view = page(model_of(), color_scheme="dark")
    assert view.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    view.set_viewport_size({"width": 360, "height": 700})
    view.focus("#write-tab")
    for name in ("complete", "score", "write"):
        view.keyboard.press("ArrowRight")
        assert view.locator(f"#{name}-panel").is_visible()
        assert view.evaluate("document.activeElement.id") == f"{name}-tab"
        assert view.evaluate("document.documentElement.scrollWidth") <= 360
        view.focus(f"#{name}-tab")
    view.click("#score-tab")
    view.fill("#pasted", "abc\nabc")
    view.click("#score")
    for pane in ("scored", "written"):
        if pane == "written":
            view.click("#write-tab")
        view.evaluate(f"document.querySelector('#{pane} .text').scrollIntoView()")
        view.click(f'#{pane} [data-index="1"]')
        card = view.locator(f"#{pane} .sheet")
        assert card.is_visible()  # the answer is in sight, and so is the character
        assert view.locator(f"#{pane} .selected").bounding_box()["y"] < card.bounding_box()["y"]
        view.click(f"#{pane} .close")
        assert not card.is_visible()
    for name in ("complete", "score", "write"):
        view.click(f"#{name}-tab")
        check_access(view, 30)


def test_a_text_from_right_to_left(page):
    """Lines run as their letters do; characters that are next to each other in the text stand next to each other."""
    trained = model_of()
    vocabulary = Vocabulary("char", " " + "".join(map(chr, range(0x5D0, 0x5EB))))
    network = build_model(trained.config.model, len(vocabulary)).eval()
    view = page(replace(trained, network=network, vocabulary=vocabulary))
    written(view, length=20, prompt="\u05e9\u05dc\u05d5\u05dd ")
    lefts = view.eval_on_selector_all("#paper span", "spans => spans.map(span => span.getBoundingClientRect().left)")
    assert len(lefts) >= 15
    assert lefts == sorted({*lefts}, reverse=True)
    view.click("#complete-tab")
    view.fill("#typed", "\u05e9\u05dc\u05d5\u05dd")
    for box in ("#typed", "#ghost"):
        assert view.eval_on_selector(box, "box => getComputedStyle(box).direction") == "rtl"
    assert view.text_content("#ghost").startswith("\u05e9\u05dc\u05d5\u05dd")
