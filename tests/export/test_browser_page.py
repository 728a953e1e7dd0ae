"""The page of an exported model as it is used: opened from a file in a real browser, without a network."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from charlm.data.vocabulary import Vocabulary
from charlm.errors import DataError
from charlm.export import export
from charlm.inference.trained import TrainedModel
from charlm.look import look_page, opening
from charlm.model import build_model
from charlm.system.formatting import printable
from tests.browser import HOSTILE, data_of, unnamed
from tests.export.models import CHARACTERS, model_of
from tests.inference.models import outputs_of
from tests.pairwise import pairwise


@pytest.fixture
def page(opened, tmp_path, monkeypatch):
    """Exports a model, whose training text is gone, and opens its page with all settings in sight, for a person who
    wants little motion: the page writes as fast as it can."""

    def gone(*_):
        raise DataError("the text is gone")

    monkeypatch.setattr(TrainedModel, "training_splits", property(gone))

    def page(trained: TrainedModel, **options: bool):
        viewport = {"color_scheme": "dark"} if options.pop("dark", False) else {}
        export(trained, "html", tmp_path / "exported.html", **{"int8": False, **options})
        view = opened((tmp_path / "exported.html").read_text(encoding="utf-8"), reduced_motion="reduce", **viewport)
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


def written(view, **fields: object) -> str:
    """What the page writes with these fields; `series` is chosen by its text."""
    for name, value in ({"seed": 1, "length": 60} | fields).items():
        view.fill(f"#{name.replace('_', '-')}", str(value))
    view.click("#write")
    done(view)
    return view.text_content("#paper")


CHOICES = [  # Each stays in its fields until it is replaced.
    {"temperature": 0},
    {"temperature": 0.9, "top_p": 0.6},
    {"temperature": 1.2, "top_p": 1, "top_k": 3},
    {"temperature": 1.5, "top_k": 5, "top_p": 0.9},
]


def shown(text: str) -> str:
    """A text as the page shows it."""
    return printable(text.replace("\r", "␍"))


@pytest.mark.parametrize("level", ["char", "byte"])
def test_the_same_seed_gives_the_text_of_charlm_sample(page, level):
    trained = model_of("gru", level=level)
    view = page(trained)
    assert view.input_value("#seed") == "1"
    assert view.text_content("#paper") == shown(trained.sample(length=1000, seed=1))
    for prompt, seed in (("", 2**63 - 1), ("abé\nfe", 7)):
        expected = prompt + trained.sample(prompt, length=60, seed=seed)
        assert written(view, prompt=prompt, seed=seed) == shown(expected)
        assert "".join(view.locator("#paper .prompt").all_text_contents()) == prompt
    for seed, choice in enumerate(CHOICES):
        expected = shown(trained.sample(length=60, seed=seed, **choice))
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
    for field, value, message in (
        ("stop-text", "aß", "Stop text: found “ß” (U+00DF), which the model never writes"),
        ("temperature", "-1", "Temperature: found “-1”; allowed: a number from 0 to 100"),
        ("top-k", "1.5", "Top-k: found “1.5”; allowed: a whole number from 0 to 1000000"),
        ("length", "", "Length: found “”; allowed: a whole number from 1 to 1000000"),
        ("seed", "-3", "Seed: found “-3”; allowed: a whole number from 0 to 9223372036854775807"),
        ("prompt", "aß\tb", "The model has never seen “tab” (U+0009), “ß” (U+00DF), and cannot read or write that. "
         "Delete them"),
    ):  # fmt: skip
        old = view.input_value(f"#{field}")
        view.fill(f"#{field}", value)
        view.uncheck("#new-seed")
        view.click("#write")
        assert view.text_content("#write-fault") == message
        if field != "prompt":
            view.fill(f"#{field}", old)
    assert view.text_content("#paper") == expected
    view.click("#write-fault button")
    done(view)
    assert view.input_value("#prompt") == "ab"
    assert view.text_content("#paper") == f"ab{trained.sample('ab', length=900, seed=4, stop='ab')}"


def test_a_model_of_lines_writes_lines(page):
    trained = model_of("lstm", unit="line")
    view = page(trained)
    lines = [f"c{trained.sample('c', length=40, seed=seed)}" for seed in (5, 6, 7)]
    assert written(view, prompt="c", count=3, length=40, seed=5) == "\n".join(lines)
    assert view.locator("#paper .line").count() == 3
    view.fill("#prompt", "a\nb")
    view.click("#write")
    assert view.text_content("#write-fault") == "Prompt: found a line end; allowed: a part of one line"


def test_the_page_answers_while_it_writes(page):
    view = page(model_of(layers=3))
    view.fill("#length", "1000000")
    view.click("#write")
    view.click("#stop")
    done(view)
    assert 0 < len(view.text_content("#paper")) < 1_000_000
    view.fill("#length", "1000000")
    view.focus("#length")
    view.keyboard.press("Enter")
    view.wait_for_selector("#paper[aria-busy=true]")
    view.keyboard.press("Escape")
    done(view)
    view.evaluate("document.getElementById('prompt').value = 'ab '.repeat(2e5)")  # to type it takes long
    view.click("#write")
    view.wait_for_selector("#write-status:has-text('reading the prompt: ')")
    view.focus("#write-tab")  # outside of the panel
    view.keyboard.press("Escape")
    done(view)
    assert view.text_content("#write-status").startswith("0 of 1,000,000 characters")
    seed = view.input_value("#seed")
    written(view, prompt="", length=5, seed=seed)
    assert not view.is_checked("#new-seed")  # a seed that is typed stays
    view.click("#write")
    done(view)
    assert view.input_value("#seed") == seed


def signs(view) -> str:
    """For each character on the paper whether it is blue (−), orange (+) or not colored (0)."""
    colors = view.eval_on_selector_all(
        "#paper .line",
        """lines => lines.flatMap(line => [...line.childNodes].flatMap(part => Array.from(part.textContent).map(() =>
        !part.style?.backgroundColor ? '0' : part.style.backgroundColor.startsWith('rgba(230') ? '+' : '-')))""",
    )
    return "".join(colors)


def test_a_unit_colors_the_text(page):
    trained = model_of("lstm", layers=2)
    view = page(trained)
    assert {*signs(view)} == {"+"}  # the surprise
    view.select_option("#series", "nothing")
    view.wait_for_selector("#paper span", state="detached")
    assert {*signs(view)} == {"0"}
    options = view.locator("#series option").all_text_contents()
    names = ("h", "c", "gate i", "gate f", "gate g", "gate o")
    assert options == ["surprise", "nothing", *(f"layer {layer}, {name}" for layer in (1, 2) for name in names)]
    view.select_option("#series", "layer 2, h")
    view.wait_for_selector("#paper span", state="attached")
    for unit in (0, 1, 2):
        text = written(view, length=200, seed=unit)
        outputs_TH = outputs_of(trained, f"\n{text}")
        shades = np.rint(16 * outputs_TH[1:, unit]).astype(int)
        assert signs(view) == "".join("0+-"[np.sign(shade)] for shade in shades)
        assert view.text_content("#unit-name") == f"h {unit}"
        view.focus("#unit")
        view.keyboard.press("ArrowRight")
    view.select_option("#series", "nothing")
    view.wait_for_selector("#paper span", state="detached")


def test_another_color_is_on_all_letters_at_once_while_it_writes(page):
    view = page(model_of("lstm"))
    view.select_option("#pace", "60")
    view.fill("#length", "100000")
    view.fill("#seed", "1")
    view.click("#write")
    until(view, "document.getElementById('paper').textContent.length >= 20")
    for chosen, colors in (("nothing", {"0"}), ("layer 1, h", {"+", "-"}), ("surprise", {"+"})):
        view.select_option("#series", chosen)
        until(view, "document.getElementById('unit-legend').hidden === " + ("true" if chosen == "nothing" else "false"))
        view.wait_for_timeout(100)
        seen = signs(view)
        assert view.get_attribute("#paper", "aria-busy") == "true"
        assert len(seen) >= 20
        assert {*seen} - {"0"} == colors - {"0"}, chosen
    view.click("#stop")
    done(view)


def test_units_have_the_names_that_look_gives_them(opened, model, tmp_path):
    export(model, "html", tmp_path / "a.html")
    shown = data_of(look_page(model, opening(model, 5000)))["units"]
    named = data_of((tmp_path / "a.html").read_text(encoding="utf-8"))["units"]
    assert len(named) > 3
    assert named == [{name: unit[name] for name in named[0]} for unit in shown]
    view = opened((tmp_path / "a.html").read_text(encoding="utf-8"), reduced_motion="reduce")
    labels = [f"{unit['state']} {unit['unit']}, layer {unit['layer']}: {unit['feature']}" for unit in named]
    assert view.locator("#series optgroup >> nth=0").locator("option").all_text_contents() == labels
    unit = next(unit for unit in named if unit["state"] == "h")
    view.select_option("#series", labels[named.index(unit)])
    done(view)
    text = view.text_content("#paper")
    outputs_TH = outputs_of(model, f"\n{text}")
    values = np.abs(outputs_TH[1:, unit["unit"]])
    far = values > 0.1  # int8 weights
    expected = np.sign(outputs_TH[1:, unit["unit"]])
    assert [sign for sign, is_far in zip(signs(view), far, strict=True) if is_far] == [
        "0+-"[int(sign)] for sign in expected[far]
    ]
    assert view.text_content("#unit-name").startswith(f"correlation {unit['correlation']:.2f}".replace("-", "−"))
    assert not view.locator("#unit-field").is_visible()


CENTER = """([index]) => {
  const walker = document.createTreeWalker(document.getElementById("paper"), NodeFilter.SHOW_TEXT);
  let [node, passed] = [walker.nextNode(), 0];
  while (passed + node.length <= index) [passed, node] = [passed + node.length, walker.nextNode()];
  const range = document.createRange();
  range.setStart(node, index - passed);
  range.setEnd(node, index - passed + 1);
  const { left, top, width, height } = range.getBoundingClientRect();
  return [left + width / 2, top + height / 2];
}"""


def test_pointing_at_written_text_tells_what_else_could_have_come(page):
    trained = with_bias(model_of("gru"), "a", 2)
    view = page(trained)

    def center(text: str, place: int) -> list[float]:
        """Where a character is in the window."""
        return view.evaluate(CENTER, [len(text[:place].encode("utf-16-le")) // 2])

    assert view.text_content("#alternatives") == "Point at a character that it wrote, or tap it."
    text = written(view, prompt="ab", length=80)
    wrote = text[2:]
    place = next(place for place in range(20, 60) if wrote[place] in "abcdefgh")
    before, character = "ab" + wrote[:place], wrote[place]
    view.mouse.move(*center(text, place + 2))
    assert view.locator("#alternatives .glyph").all_text_contents()[:5] == names(trained.next(before, 5))
    [bits] = trained.char_scores([before + character])
    assert view.text_content("#alternatives p >> nth=1").startswith(f"{bits[-1]:.2f} bits (")
    assert view.text_content("#alternatives mark") == character
    frame, point = view.locator("#frame").bounding_box(), center(text, place + 2)
    assert abs(frame["x"] + frame["width"] / 2 - point[0]) < 1
    assert abs(frame["y"] + frame["height"] / 2 - point[1]) < 1
    view.mouse.move(*center(text, 0))
    assert "The prompt: it was given this." in view.text_content("#alternatives")
    view.focus("#paper")
    view.keyboard.press("ArrowRight")
    view.keyboard.press("ArrowRight")
    assert ", probability " in view.text_content("#spoken")
    view.click("#write")
    done(view)
    assert view.text_content("#alternatives").startswith("Point at ")


def test_the_text_is_shaded_by_its_surprise(page):
    trained = with_bias(model_of("gru"), "a", 3)
    view = page(trained)
    text = written(view, length=200)
    [bits] = trained.char_scores([f"\n{text}"])
    alphas = view.eval_on_selector_all(
        "#paper .line",
        """lines => lines.flatMap(line => [...line.childNodes].flatMap(part => Array.from(part.textContent).map(() =>
        Number(part.style?.backgroundColor.split(",").at(-1).replace(")", "") ?? 0))))""",
    )
    assert alphas == pytest.approx(0.72 * np.rint(16 * np.sqrt(np.minimum(bits / 8, 1))) / 16, abs=0.046)
    assert len({*alphas}) > 4


def test_it_begins_simply_and_writes_at_a_pace_that_can_be_read(opened, tmp_path, page):
    page(model_of())
    view = opened((tmp_path / "exported.html").read_text(encoding="utf-8"))
    assert view.input_value("#pace") == "60"
    fields = [
        name for name in ("prompt", "wildness", "temperature", "write", "pace") if view.locator(f"#{name}").is_visible()
    ]
    assert len(fields) == 5
    assert not any(view.locator(f"#{name}").is_visible() for name in ("length", "top-k", "top-p", "seed", "stop-text"))
    assert (
        view.text_content("#story")
        == "A network that has not been trained yet. It writes: every next character is drawn from its guesses."
    )
    view.fill("#wildness", "1.5")
    assert view.input_value("#temperature") == "1.5"
    view.fill("#temperature", "0.25")
    assert view.input_value("#wildness") == "0.25"
    started = view.evaluate("performance.now()")
    view.click("#write")
    until(view, "document.getElementById('paper').textContent.length >= 30")
    assert view.evaluate("performance.now()") - started > 350  # 60 characters/s; a slow machine writes no faster
    assert len(view.text_content("#paper")) < 1000
    view.select_option("#pace", "as fast as it can")
    done(view)
    assert len(view.text_content("#paper")) == 1000
    assert view.evaluate("document.getElementById('more').open") is False
    view.evaluate("document.getElementById('seed').value = 'x'")
    view.evaluate("document.getElementById('new-seed').checked = false")
    view.click("#write")
    assert "Seed: found “x”" in view.text_content("#write-fault")
    assert view.locator("#seed").is_visible()  # what is wrong comes into sight


def test_the_beginning_stays_in_sight(page):
    view = page(with_bias(model_of("gru"), "\n", 3))
    written(view, length=600)
    where = "({ scrollTop, scrollHeight, clientHeight }) => [scrollTop, scrollHeight - scrollTop - clientHeight]"
    near, far = view.eval_on_selector("#paper", where)
    assert near < 2
    assert far > 500
    view.select_option("#pace", "400")
    view.click("#write")
    until(view, "document.querySelectorAll('#paper .line').length > 30")
    view.evaluate("document.getElementById('paper').scrollTop = 1e9")
    until(view, "document.querySelectorAll('#paper .line').length > 45")
    near, far = view.eval_on_selector("#paper", where)
    assert far < 40  # whoever has scrolled to the end follows it
    assert near > 300
    view.keyboard.press("Escape")
    done(view)


def names(likeliest: list[tuple[str, float]]) -> list[str]:
    return [{" ": "space", "\n": "line end"}.get(character, character) for character, _ in likeliest]


def next_names(view) -> list[str]:
    return view.locator("#next .glyph").all_text_contents()


def test_the_next_characters_while_typing(page, model):
    view = page(model)
    bits = model.progress["valid_nats"] / math.log(2)
    assert f" · {bits:.3f} bits per character of validation text · " in view.text_content("#facts")
    view.click("#complete-tab")
    view.focus("#typed")
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
    text = "abé😀 fe\nhh"
    view.fill("#pasted", text)
    view.click("#score")
    bits = trained.evaluate(text).bits_per_char
    assert view.text_content("#score-status").startswith(f"{bits:.3f} bits per {'byte' if level == 'byte' else 'char'}")
    size = len(text.encode()) if level == "byte" else len(text)
    assert view.locator("#score-box .row span").count() == size + (unit == "line")
    view.hover('[data-index="3"]')
    assert view.locator("#prediction .bars li").count() >= 5
    view.click('[data-index="2"]')
    view.keyboard.press("ArrowRight")
    assert "4 of" in view.text_content("#prediction")
    if level == "byte" or unit == "line":
        return
    view.fill("#pasted", "a")
    view.click("#score")
    assert view.text_content("#score-fault") == "Text: found 1 character; allowed: 2 or more"
    assert view.text_content("#score-status") == ""  # the earlier result is gone
    assert not view.locator("#score-result").is_visible()
    view.fill("#pasted", "abß")
    view.click("#score")
    view.click("#score-fault button")
    assert "bits per character" in view.text_content("#score-status")
    assert view.input_value("#pasted") == "ab"


def test_copies_are_underlined(page, monkeypatch):
    trained = model_of("gru")
    text = trained.sample(length=100, seed=8)
    training = trained.vocabulary.encode(text)
    between = next(index for index in range(9) if index not in (training[29], training[75]))
    # Two stretches of the sample that overlap in it.
    training = {"train": np.concatenate([training[45:75], [between], training[30:60]])}
    monkeypatch.setattr(TrainedModel, "training_splits", training)
    view = page(trained, novelty=True)
    assert written(view, length=100, seed=8) == text
    assert "".join(view.locator("#paper .copied").all_text_contents()) == text[30:75]
    assert view.text_content("#write-status").endswith(" · 45.0 % copied, at most 30 characters in a row")
    assert "(all 61 characters of it are known here)" in view.text_content("#copies-note")
    written(view, length=100, seed=9)
    assert view.text_content("#write-status").endswith("nothing copied")


def test_a_hostile_model_does_nothing(page):
    trained = model_of("lstm", unit="line")
    hostile = f"\u202e{HOSTILE}"
    vocabulary = Vocabulary("char", "".join(sorted({*hostile, *trained.vocabulary.characters})))
    network = build_model(trained.config.model, len(vocabulary)).eval()
    network.reset_id = int(vocabulary.encode("\n")[0])
    path = Path("runs/<script>window.broken=1/checkpoints/x")
    view = page(replace(trained, vocabulary=vocabulary, network=network, path=path))
    assert written(view, prompt=hostile).startswith(printable(hostile))
    view.click("#complete-tab")
    view.fill("#typed", hostile)
    view.click("#score-tab")
    view.fill("#pasted", hostile)
    view.click("#score")
    view.hover('#score-box [data-index="1"]')
    assert view.text_content("#prediction .context") == r"\u202e<"
    assert view.evaluate("window.broken") is None
    assert view.locator("img").count() == 0
    assert view.text_content("h1") == "<script>window.broken=1"
    assert view.title() == "<script>window.broken=1 · charlm"


def test_dark_narrow_and_by_keyboard(page):
    view = page(model_of(), dark=True)
    assert view.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    view.set_viewport_size({"width": 360, "height": 700})
    view.focus("#write-tab")
    for name in ("complete", "score", "write"):
        view.keyboard.press("ArrowRight")
        assert view.locator(f"#{name}-panel").is_visible()
        assert view.evaluate("document.activeElement.id") == f"{name}-tab"
        assert view.evaluate("document.documentElement.scrollWidth") <= 360
    for name in ("complete", "score", "write"):
        view.click(f"#{name}-tab")
        assert unnamed(view) == []
    assert not view.locator("#guess").is_visible()
    view.evaluate("document.getElementById('paper').scrollIntoView()")
    letter = re.search("[a-h]", view.text_content("#paper"))
    assert letter
    view.mouse.click(*view.evaluate(CENTER, [letter.start()]))
    assert view.locator("#guess .bars").is_visible()
    assert view.locator("#frame").bounding_box()["y"] < view.locator("#guess").bounding_box()["y"]
    view.click("#close-guess")
    assert not view.locator("#guess").is_visible()
    assert view.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_text_from_right_to_left(page):
    """Lines run as their letters do; characters that are next to each other in the text stand next to each other."""
    trained = model_of()
    vocabulary = Vocabulary("char", " " + "".join(map(chr, range(0x5D0, 0x5EB))))
    network = build_model(trained.config.model, len(vocabulary)).eval()
    view = page(replace(trained, network=network, vocabulary=vocabulary))
    view.select_option("#series", "layer 1, h")
    view.wait_for_selector("#paper span", state="attached")
    written(view, length=20, prompt="\u05e9\u05dc\u05d5\u05dd ")
    lefts = view.eval_on_selector(
        "#paper .line", "line => [...line.querySelectorAll('span')].map(s => s.getBoundingClientRect().left)"
    )
    assert len(lefts) >= 15
    assert lefts == sorted({*lefts}, reverse=True)
    assert view.eval_on_selector("#paper .line", "line => getComputedStyle(line).direction") == "rtl"
    view.evaluate(
        """() => {
          window.added = 0;
          const count = (changes) => changes.forEach(({ addedNodes }) => (window.added += addedNodes.length));
          new MutationObserver(count).observe(document.getElementById("paper"), { childList: true, subtree: true });
        }"""
    )
    written(view, length=2000)  # a line, colored: it grows by runs, and is drawn as a whole once, at the end
    view.wait_for_selector("#paper .prompt[style*=rgba]")
    assert view.evaluate("window.added") < 3 * view.locator("#paper .line > *").count()
    view.click("#complete-tab")
    view.fill("#typed", "\u05e9\u05dc\u05d5\u05dd")
    for box in ("#typed", "#ghost"):
        assert view.eval_on_selector(box, "box => getComputedStyle(box).direction") == "rtl"
    assert view.text_content("#ghost").startswith("\u05e9\u05dc\u05d5\u05dd")
