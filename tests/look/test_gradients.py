"""Gradients and influences on the page, in a real browser."""

import re

import numpy as np
import pytest

from charlm.inference.gradients import influences
from charlm.inference.loading import load
from charlm.look import look_page
from tests.browser import unnamed
from tests.text import words_text


@pytest.fixture(scope="module")
def model(trained_run):
    return load(trained_run, "cpu")


def colors(view) -> dict[int, str]:
    """The color of each character that has one."""
    found = view.eval_on_selector_all(
        ".row span", "cells => cells.map(cell => [Number(cell.dataset.index), cell.style.backgroundColor])"
    )
    return {index: color for index, color in found if color}


def test_the_characters_before_a_prediction_are_shaded_by_their_influence(opened, model):
    text = words_text(600)
    view = opened(look_page(model, text, gradients=True))
    view.click("#views button[value=influence]")
    view.hover('[data-index="200"]')
    shown = colors(view)
    assert shown.keys() <= set(range(136, 200))
    expected = influences(model.network, model.vocabulary.encode(text))[200]  # the last character before it first
    strongest = 199 - int(np.abs(expected).argmax())
    strength = {index: float(re.findall(r"[\d.]+", color)[3]) for index, color in shown.items()}
    assert max(strength, key=strength.__getitem__) == strongest
    for index, color in shown.items():  # orange for what made it likelier, blue for the opposite
        assert color.startswith("rgba(230" if expected[199 - index] > 0 else "rgba(30"), index
    assert f"{200 - strongest} back" in view.text_content("#gradients-card li >> nth=0")
    view.hover('[data-index="150"]')
    assert max(colors(view)) < 150
    view.click('[data-index="160"]')  # a click holds a character
    view.hover('[data-index="170"]')
    assert max(colors(view)) < 160
    view.click("#views button[value=surprise]")
    assert len(colors(view)) > 100
    assert unnamed(view) == []


def test_a_chart_shows_how_far_gradients_reach(opened, model):
    view = opened(look_page(model, words_text(600), model, gradients=True))
    assert view.locator("#gradients polyline").count() == 4  # two models, trained and untrained
    label = view.get_attribute("#gradients svg", "aria-label")
    assert label.count(", trained: ") == label.count(", untrained: ") == 2
    assert re.search(r"trained: below 1 % of its first value \d+ characters back", label)
    points = view.get_attribute("#gradients polyline >> nth=0", "points").split()
    assert float(points[0].split(",")[1]) < float(points[-1].split(",")[1])  # it fades


def test_without_the_option_the_page_has_neither(opened, model):
    view = opened(look_page(model, words_text(300)))
    assert view.locator("#gradients-card").count() == view.locator("#views button[value=influence]").count() == 0
