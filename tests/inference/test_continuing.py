"""Continuations while a text is written."""

import pytest

from charlm.inference import SamplingOptions
from charlm.inference.continuing import Continuer, Offer, _distinct
from tests.text import words_text


def continuer_of(model, length, prefix=""):
    return Continuer(model, SamplingOptions(length=length), prefix)


def test_they_are_samples_after_the_text(model):
    found = continuer_of(model, 30)("so ")
    assert len(set(found)) == len(found) == 5
    samples = [model.sample("so ", length=30, temperature=0.8, seed=seed) for seed in range(1, 20)]
    assert all(any(sample.startswith(each) for sample in samples) for each in found)


def test_each_key_costs_one_step_and_another_text_is_read_anew(model):
    text, continuer = words_text(300).replace("\n", " "), continuer_of(model, 5)
    for end in (297, 298, 299, 300, 300):
        assert continuer(text[:end]) == continuer_of(model, 5)(text[:end])
    assert continuer.steps == 300
    for other in ("so a", "so", "so it", "so a", "", "soé\tZ "):  # unknown characters are skipped
        assert continuer(other) == continuer_of(model, 5)(other.replace("é\tZ", ""))


def test_a_model_of_lines_reads_the_last_line_only(model):
    model.network.reset_id = int(model.vocabulary.encode("\n")[0])
    continuer = continuer_of(model, 10)
    assert continuer("anything\nso ") == continuer("so ")
    assert continuer.steps == 4
    assert not any("\n" in each for each in continuer("so "))
    assert continuer_of(model, 10, "it")("x\nso ") == continuer("itso ")


@pytest.mark.parametrize(
    ("drawn", "offered"),
    [
        (["a b", "a b", "c"], ["a b", "c"]),
        (["a\nb", "\na\nb", "\n\na"], ["a", "\na", "\n"]),
        (["a  ", "   ", "", "a"], ["a"]),
        (["é\udcff", "\udcffa", "a\x1bb"], ["é", "a"]),
        (list("abcdefg"), list("abcde")),
    ],
)
def test_what_is_offered(drawn, offered):
    assert _distinct(drawn) == offered


def test_what_is_shown_stays_while_it_is_typed():
    offer = Offer()
    assert (offer.shown, offer.word) == ("", "")
    offer.drawn("", ["the cat", "a dog", "the hat"])
    assert (offer.shown, offer.word) == ("the cat", "the")
    offer.choose(-1)
    assert offer.shown == "the hat"
    offer.typed("the ")
    assert offer.options == ["hat", "cat"]
    offer.drawn("the ", ["man", "cat"])
    assert offer.options == ["hat", "man", "cat"]
    offer.typed("the x")
    assert (offer.options, offer.shown) == ([], "")
    offer.choose(1)
    assert offer.shown == ""


def test_continuations_of_an_older_text_are_used_as_far_as_they_fit():
    offer = Offer()
    offer.typed("a")
    offer.typed("a b")
    offer.drawn("a", [" big", " cat", " bat"])
    assert offer.options == ["ig", "at"]
    offer.typed("a bi")
    offer.typed("a")
    assert offer.options == []
    offer.drawn("a bi", ["g"])
    assert offer.options == []


def test_words():
    for shown, word in {"the cat": "the", " the cat": " the", "\nthe cat": "\nthe", "\n": "\n", ".": "."}.items():
        offer = Offer()
        offer.drawn("", [shown])
        assert offer.word == word
