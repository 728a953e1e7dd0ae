"""The page as it is used: opened from a file in a real browser, without a network."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from charlm.report.page import report_page
from charlm.report.run import read_run
from tests.browser import check_access
from tests.report.conftest import train_row

pytestmark = pytest.mark.slow


@pytest.fixture
def view(opened, learning):
    """The page of a run of 200 steps that ends at 1 nat, and one that ends at 2."""
    return opened(report_page([read_run(learning("one", 1.0)), read_run(learning("two", 2.0))]))


def lines(view, chart="score"):
    return view.locator(f"#chart-{chart} path.line").count()


def point_at(view, share, chart="score"):
    box = view.locator(f"#chart-{chart} .area").bounding_box()
    left, right = 62, 24  # margins of the plot
    view.mouse.move(box["x"] + left + share * (box["width"] - left - right), box["y"] + 60)


def test_a_chart_is_saved_as_it_looks(view):
    with view.expect_download() as saved:
        view.click("#chart-score button:has-text('SVG')")
    picture = Path(saved.value.path()).read_text(encoding="utf-8")
    assert saved.value.suggested_filename == "Score.svg"
    assert picture.startswith("<svg ")
    assert picture.count("stroke: rgb(0, 114, 178)") > 1  # the first run's color, without a style sheet
    assert all(f">{text}<" in picture for text in ("Score, nats per character", "one training", "two validation"))


def curve(view):
    return view.get_attribute("#chart-score path.line", "d")


def test_the_pointer_tells_the_values_of_all_runs(view):
    assert (lines(view), lines(view, "lr"), lines(view, "grad"), lines(view, "speed")) == (4, 2, 2, 2)
    tip = view.locator("#chart-score .tip")

    point_at(view, 1.0)
    assert tip.text_content().startswith("update 200")
    values = ["two validation2.0200", "two training2.0150", "one validation1.0200", "one training1.0150"]
    assert [row.strip() for row in tip.locator("li").all_text_contents()] == values  # as high as their lines lie
    point_at(view, 0.0)
    assert "training4.0000" in tip.text_content()
    assert "validation" not in tip.text_content()  # the first was at step 50
    view.mouse.move(5, 5)
    assert not tip.is_visible()

    view.click("#axis button[value=elapsed_s]")
    point_at(view, 1.0)
    assert view.text_content("#chart-score .tip p") == "20.0 s"
    view.click("#unit button[value=bits]")
    point_at(view, 1.0)
    assert "one training1.4643" in tip.text_content()
    assert "1.4715" in view.text_content("#scores")


def test_what_is_hidden_zoomed_and_scaled(view):
    view.click("#legend button >> nth=0")
    assert lines(view) == 2
    assert view.locator("#samples article").count() == 1
    view.click("#legend button >> nth=0")
    view.uncheck("#show-valid")
    assert lines(view) == 2
    view.check("#show-valid")

    point_at(view, 0.5)
    view.mouse.down()
    point_at(view, 0.75)
    view.mouse.up()
    labels = view.locator("#chart-grad text.label").all_text_contents()
    steps = [int(text) for text in labels if text.isdigit() and int(text) > 50]
    assert steps
    assert all(100 <= step <= 151 for step in steps)
    view.keyboard.press("Escape")
    assert not view.locator("#zoomed").is_visible()
    assert "200" in view.locator("#chart-score text.label").all_text_contents()

    curves = [curve(view)]
    view.check("#log-x")
    curves.append(curve(view))
    view.fill("#smooth", "0")
    curves.append(curve(view))
    view.click("#chart-score .small")
    curves.append(curve(view))
    assert len({*curves}) == 4
    check_access(view, 24)


def test_the_keyboard_alone_scores_samples_and_settings(view):
    view.focus("#chart-score .area")
    view.keyboard.press("End")
    view.keyboard.press("End")
    assert view.text_content("#spoken").endswith("two training 2.0150; one validation 1.0200; one training 1.0150")
    view.keyboard.press("ArrowLeft")
    assert view.text_content("#spoken").startswith("update 199:")
    assert view.text_content("#scores .best") == "1.0200"
    rollback = "update 100: rolled back from update 117: loss inf; learning rate × 0.5 from here"
    assert view.text_content("#notes").count(rollback) == 2
    view.focus("#sample-slider")
    view.keyboard.press("Home")
    assert view.text_content("#sample-step") == "update 50"
    assert view.text_content(".sample >> nth=1") == "at 50␍\n<b>\\u202e"
    shades = view.eval_on_selector_all(".sample span", "spans => spans.map(span => span.style.backgroundColor)")
    assert shades[:2] == ["rgba(230, 120, 0, 0.72)", ""]


def test_only_scores_of_the_same_text_are_ranked(opened, learning):
    runs = {name: read_run(learning(name, best)) for name, best in (("a", 1.0), ("other", 0.5), ("b", 2.0), ("c", 0.4))}
    own = runs["a"].about.scored
    seen = replace(runs["a"].about, path=Path("seen"), best_nats=0.3, scored=replace(own, seen=0.25))
    runs["seen"] = replace(runs["a"], about=seen)
    for name, other in (("other", {"sha256": "f" * 64}), ("c", {"sha256": "0" * 64, "name": "last 15% of text.txt"})):
        runs[name] = replace(runs[name], about=replace(runs[name].about, scored=replace(own, **other)))
    view = opened(report_page([*runs.values()]))
    rows = [row.locator("td").all_text_contents() for row in view.locator("#scores tbody tr").all()]
    names = f"{own.name} ({own.sha256[:6]})", f"{own.name} (ffffff)", "last 15% of text.txt"
    names += (f"{names[0]}, 25% of it trained on",)
    assert [row[:2] for row in rows] == [
        ["1.0200", names[0]], ["2.0200", names[0]], ["0.5200", names[1]], ["0.4200", names[2]], ["0.3000", names[3]]
    ]  # fmt: skip
    assert view.locator("#scores .best").all_text_contents() == ["1.0200"]
    bold = "Bold: the best of the runs that are scored on the same text. "
    assert view.text_content("#ranked") == f"{bold}Scores on different texts cannot be compared: {'; '.join(names)}."
    assert opened(report_page([runs["a"]])).text_content("#ranked") == ""


def test_damaged_and_hostile_runs_have_their_line(opened, run_of, learning):
    mark = "</script><script>window.broken=1</script><img src=x onerror=window.broken=1>"
    hostile = run_of("<script>window.broken=1", [train_row(1), {"step": 1, "split": mark}],
                     [{"step": 1, "text": mark, "bits": [1.0] * len(mark)}])  # fmt: skip
    config = hostile / "config.yaml"
    config.write_text(re.sub("source: .*", f"source: {json.dumps(mark)}", config.read_text()))
    empty, alone = run_of("empty", [], []), run_of("alone", [train_row(1, lr=0.0, nats=float("nan"))], [])
    (empty / "config.yaml").write_text("model: 3")
    view = opened(report_page([read_run(run) for run in (hostile, empty, alone, learning())]))
    point_at(view, 0.5)
    view.click("summary")
    assert mark in view.text_content("#settings")
    assert view.evaluate("window.broken") is None
    assert view.locator("img").count() == 0
    assert "<script>window.broken=1" in view.text_content("#legend")
    assert "empty config.yaml cannot be read" in view.text_content("#notes")
    view.check("#log-x")
    for chart in ("score", "lr", "grad", "speed"):
        view.click(f"#chart-{chart} .small")
        assert not re.search("NaN|Infinity", view.inner_html(f"#chart-{chart}"))
