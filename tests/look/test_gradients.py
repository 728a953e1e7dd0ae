"""Gradients on the page, in a real browser."""

import re

from charlm.inference.trained import load
from charlm.look import look_page
from tests.browser import unnamed
from tests.text import words_text


def test_a_chart_shows_how_far_gradients_reach(opened, trained_run):
    model = load(trained_run, "cpu")
    view = opened(look_page(model, words_text(600), model, gradients=True))
    assert view.locator("#gradients polyline").count() == 4  # two models, trained and untrained
    label = view.get_attribute("#gradients svg", "aria-label")
    assert label.count(", trained: ") == label.count(", untrained: ") == 2
    assert re.search(r"trained: below 1 % of its first value \d+ characters back", label)
    points = view.get_attribute("#gradients polyline >> nth=0", "points").split()
    assert float(points[0].split(",")[1]) < float(points[-1].split(",")[1])  # it fades
    assert unnamed(view) == []
