"""The page of an exported model as it is used: opened from a file in a real browser, without a network."""

import re
from dataclasses import replace
from pathlib import Path
from unicodedata import category

import pytest
import torch

from charlm.data.vocabulary import Vocabulary
from charlm.inference.loading import load
from charlm.model import build_model
from tests.browser import HOSTILE, check_access, data_of
from tests.conftest import train
from tests.export.models import CHARACTERS, model_of
from tests.text import words_text

pytestmark = pytest.mark.slow

MODELS = {
    "characters": {"case": "gru"},
    "bytes": {"case": "slstm", "level": "byte"},
    "lines": {"case": "rhn", "records": "\n"},
}
DEFAULTS = {"prompt": "", "seed": 1, "length": 60, "temperature": 0.8, "top_k": 0, "top_p": 1}


@pytest.fixture(scope="module")
def opened_model(page):
    """One of MODELS and its page, which is opened once for all tests."""
    opened = {}

    def opened_model(name: str):
        if name not in opened:
            torch.manual_seed(0)
            trained = model_of(**MODELS[name])
            opened[name] = trained, page(trained)
        return opened[name]

    return opened_model


def done(view) -> None:
    view.wait_for_selector("#paper[aria-busy=false]")


def written(view, **fields: object) -> str:
    """What the page writes with these fields."""
    view.click("#write-tab")
    for name, value in (DEFAULTS | fields).items():
        view.fill(f"#{name.replace('_', '-')}", str(value))
    view.click("#write")
    done(view)
    return view.text_content("#paper")


def names(likeliest: list[tuple[str, float]]) -> list[str]:
    return [{" ": "space", "\n": "line end"}.get(character, character) for character, _ in likeliest]


def next_names(view) -> list[str]:
    return view.locator("#next .glyph").all_text_contents()


@pytest.mark.parametrize("name", ["characters", "bytes"])
def test_the_same_seed_gives_the_text_of_charlm_sample(opened_model, name):
    trained, view = opened_model(name)

    def in_sight(text: str) -> str:
        """Control characters have signs; the end of a record is also the end of a line."""
        text, kept = text.replace("\x1e", "\n"), "\n\t\u00ad\u200c\u200d"
        return "".join(c for c in text if c in kept or (category(c)[0] != "C" and category(c) not in ("Zl", "Zp")))

    view.reload()
    done(view)
    assert view.input_value("#seed") == "1"
    assert view.text_content("#paper") == in_sight(trained.sample(length=1000, seed=1))
    view.click("summary")
    for prompt, seed in (("", 10**18 - 1), ("abé\nfe", 7)):
        expected = prompt + trained.sample(prompt, length=60, seed=seed)
        assert written(view, prompt=prompt, seed=seed) == in_sight(expected)
    for choice in ({"temperature": 0}, {"temperature": 1.5, "top_k": 5, "top_p": 0.9}):
        assert written(view, **choice) == in_sight(trained.sample(length=60, seed=1, **choice))


def test_a_model_of_lines_writes_lines(opened_model):
    trained, view = opened_model("lines")
    lines = [f"c{trained.sample('c', length=40, seed=seed)}" for seed in (5, 6, 7)]
    assert written(view, prompt="c", count=3, length=40, seed=5).rstrip("\n") == "\n".join(lines)
    text = written(view, count=30, length=40)
    assert text.count("\n") == 30  # all end by themselves, so their ends are written, too
    assert view.text_content("#write-status").startswith(f"{len(text)} characters written")
    place = text.index("\n")
    view.hover(f'#paper [data-index="{place}"]')
    assert view.text_content("#written .prediction").endswith(f"character {place + 1} of {len(text)}")
    assert view.text_content("#written .true .glyph") == "line end"
    view.fill("#prompt", "a\nb")
    view.click("#write")
    assert view.evaluate("document.activeElement.validationMessage") == "A part of one record, without its end."


def test_the_stop_text_and_faults(opened_model):
    trained, view = opened_model("characters")
    expected = trained.sample(length=900, seed=4, stop="ab")
    assert expected.endswith("ab")
    assert written(view, length=900, seed=4, stop_text="ab") == expected
    view.click("summary")  # closed: what is wrong comes into sight, is marked, and has the focus
    view.evaluate("document.getElementById('stop-text').value = 'aß'")
    view.dispatch_event("#stop-text", "input")
    view.click("#write")
    told = view.evaluate("[document.activeElement.id, document.activeElement.validationMessage]")
    assert told == ["stop-text", "The model never writes “ß” (U+00DF)."]
    view.fill("#stop-text", "ab")
    view.fill("#prompt", "aß\tb")
    view.click("#write")
    message = "The model has never seen “tab” (U+0009), “ß” (U+00DF), and cannot read or write that. Delete them"
    assert view.text_content("#write-fault") == message
    assert view.evaluate("document.activeElement.id") == "prompt"
    view.click("#write-fault button")
    done(view)
    assert view.input_value("#prompt") == "ab"
    assert view.text_content("#paper") == f"ab{trained.sample('ab', length=900, seed=4, stop='ab')}"
    view.fill("#stop-text", "")


def test_the_page_answers_while_it_writes_or_reads(opened_model):
    _, view = opened_model("bytes")
    view.click("#write-tab")
    view.fill("#length", "1000000")
    view.click("#write")
    view.click("#stop")
    done(view)
    assert 0 < len(view.text_content("#paper")) < 1_000_000
    view.evaluate("document.getElementById('prompt').value = 'ab '.repeat(2e5)")  # to type it takes long
    view.click("#write")
    view.wait_for_selector("#write-status:has-text('reading the prompt: ')")
    view.keyboard.press("Escape")
    done(view)


def test_pointing_at_written_text_tells_what_else_could_have_come(opened_model):
    trained, view = opened_model("characters")
    text = written(view, prompt="ab", length=80)
    place = next(place for place in range(20, 60) if text[place] in "abcdefgh")
    view.hover(f'#paper [data-index="{place}"]')
    assert view.locator("#written .glyph").all_text_contents()[:5] == names(trained.next(text[:place], 5))
    [bits] = trained.char_surprise([f"\n{text}"])
    sentence = view.text_content("#written .beside p")
    assert sentence.startswith(f"{bits[place]:.2f} bits (")
    assert view.text_content("#written .true .number") in sentence.replace("\u00a0", " ")


def test_the_next_characters_while_typing(page, trained_run):
    trained = load(trained_run, "cpu")
    view = page(trained)
    view.click("#complete-tab")
    example = data_of(view.content())["example"]
    assert view.input_value("#typed") == example  # it opens with a text that it can complete
    assert next_names(view) == names(trained.next(example))
    view.fill("#typed", "")
    view.keyboard.type("rttarn")
    assert next_names(view) == names(trained.next("rttarn"))
    ahead = view.text_content("#ghost .ahead").replace("⏎", "\n")
    assert ahead == trained.sample("rttarn", length=48, temperature=0, stop="\n")
    [word] = re.findall(r"^(?:\s*\S+|\s+)", ahead)
    view.keyboard.press("Tab")
    assert view.input_value("#typed") == f"rttarn{word}"
    [(second, _)] = trained.next(f"rttarn{word}")[1:2]
    view.keyboard.press("Alt+2")
    assert view.input_value("#typed") == f"rttarn{word}{second}"
    view.keyboard.press("Escape")
    view.keyboard.press("Tab")
    assert view.evaluate("document.activeElement.id") != "typed"


def test_a_completion_ends_with_the_line(page):
    trained = model_of()
    with torch.no_grad():
        trained.network.decoder.bias[int(trained.vocabulary.encode("\n")[0])] += 50
    view = page(trained)
    view.click("#complete-tab")
    view.fill("#typed", "ab\n\nab")
    view.wait_for_selector("#next button")
    assert view.text_content("#ghost .ahead") == "⏎"
    assert view.text_content("#ghost") == "ab\n\nab⏎"


@pytest.mark.parametrize("name", MODELS)
def test_a_text_is_scored(opened_model, name):
    trained, view = opened_model(name)
    ends, is_bytes = "\n" * ("lines" in name), "bytes" in name
    view.click("#score-tab")
    text = "abé😀 fe\nhh"
    view.fill("#pasted", text)
    view.click("#score")
    bits = trained.evaluate(text).bits_per_char
    assert view.text_content("#score-status").startswith(f"{bits:.3f} bits per character")
    size = len(text.encode()) if is_bytes else len(text)
    view.wait_for_selector("#scored .block span")
    assert view.locator("#scored .block span").count() == size + len(ends)
    assert view.text_content("#scored .text") == text + ends


def test_records_are_typed_and_copied_with_their_separator(page):
    trained = model_of("lstm", records="\n==\n")
    view = page(trained)
    view.context.grant_permissions(["clipboard-read", "clipboard-write"])
    view.click("#score-tab")
    text = "ab\nfe\n==\nhe\n==\n"
    bits = trained.evaluate(text).bits_per_char
    for typed in (text, text.rstrip("\n")):  # the last end of a line is easily lost
        view.fill("#pasted", typed)
        view.click("#score")
        assert view.text_content("#score-status").startswith(f"{bits:.3f} bits per character")
    view.wait_for_selector("#scored [data-sign='¶']")
    assert view.text_content("#scored .text") == "ab\nfe\nhe\n"
    assert view.locator("#scored [data-sign='¶']").count() == 2
    written(view, prompt="ab", count=2, length=400)
    view.click("#copy")
    view.wait_for_selector("#copy-says:has-text('Copied')")
    expected = [f"ab{trained.sample('ab', length=400, seed=seed)}" for seed in (1, 2)]
    assert view.evaluate("navigator.clipboard.readText()").rstrip("\n=") == "\n==\n".join(expected)


def test_a_separator_is_completed_and_may_be_typed(page):
    trained = model_of(records="\n==\n")
    with torch.no_grad():
        trained.network.decoder.bias[trained.network.reset_id] += 50
    view = page(trained)
    view.click("#complete-tab")
    view.fill("#typed", "ab")
    view.wait_for_selector("#next button")
    view.keyboard.press("Alt+1")
    assert view.input_value("#typed") == "ab\n==\n"
    view.keyboard.type("fe\n=")
    assert view.text_content("#complete-fault") == ""
    view.keyboard.type("e")  # no part of a separator any more
    assert view.text_content("#complete-fault").startswith("The model has never seen “=”")


def test_the_example_of_records_can_be_scored(page, tmp_path):
    text = "\n==\n".join(f"{word} and\n{word}" for word in words_text(3000).split()) + "\n==\n"
    view = page(load(train(tmp_path, text, 'data.records="\\n==\\n"', "train.bptt=16"), "cpu"))
    view.click("#score-tab")
    view.wait_for_selector("#score-status:has-text('bits per character')")


def test_prompt_and_settings_outlive_a_reload(page):
    view = page(model_of("gru"))
    view.fill("#prompt", "abé")
    view.fill("#temperature", "0.3")
    view.select_option("#pace", "Infinity")
    view.select_option("#color", "")
    view.reload()
    done(view)
    assert (view.input_value("#pace"), view.input_value("#color")) == ("Infinity", "")
    assert view.is_hidden("#color-legend")
    assert (view.input_value("#prompt"), view.input_value("#temperature")) == ("abé", "0.3")
    assert view.input_value("#wildness") == "0.3"
    assert view.text_content("#paper").startswith("abé")


def test_what_follows_a_long_prompt_is_in_sight(opened_model):
    _, view = opened_model("characters")
    view.click("#write-tab")
    view.evaluate("document.getElementById('prompt').value = 'ab\\n'.repeat(90)")
    view.click("#write")
    done(view)
    mark = view.locator("#paper [data-index='270']").bounding_box()
    box = view.locator("#paper").bounding_box()
    assert box["y"] <= mark["y"] < box["y"] + box["height"]


def test_a_hostile_model_does_nothing(page):
    trained = model_of("lstm", records="\n")
    hostile = f"\u202e{HOSTILE}"
    vocabulary = Vocabulary("char", "".join(sorted({*hostile, *CHARACTERS})))
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


def test_on_a_phone_and_by_keyboard(page):
    view = page(model_of(), color_scheme="dark")
    assert view.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    view.set_viewport_size({"width": 360, "height": 700})
    view.focus("#write-tab")
    for name in ("complete", "score", "write"):
        view.keyboard.press("ArrowRight")
        assert view.locator(f"#{name}-panel").is_visible()
        assert view.evaluate("document.documentElement.scrollWidth") <= 360
        check_access(view, 30)
        view.focus(f"#{name}-tab")
