"""The page as it is used: opened from a file in a real browser, without a network."""

import json
import re
from dataclasses import replace

import pytest

from charlm.report.page import report_page
from charlm.report.run import read_run
from tests.browser import unnamed
from tests.report.conftest import train_row


@pytest.fixture
def view(opened, learning):
    """The page of a run of 200 steps that ends at 1 nat, and one that ends at 2."""
    return opened(report_page([read_run(learning("one", 1.0)), read_run(learning("two", 2.0))]))


def lines(view, chart="loss", kind="line"):
    return view.locator(f"#chart-{chart} path.{kind}").count()


def point_at(view, share, chart="loss"):
    box = view.locator(f"#chart-{chart} .area").bounding_box()
    left, right = 62, 24  # margins of the plot
    view.mouse.move(box["x"] + left + share * (box["width"] - left - right), box["y"] + 60)


def ticks(view, chart="loss"):
    return view.eval_on_selector_all(f"#chart-{chart} text.label", "labels => labels.map(label => label.textContent)")


def test_pointing_at_a_chart_tells_the_values_of_all_runs(view):
    assert (lines(view), lines(view, "lr"), lines(view, "grad"), lines(view, "speed")) == (4, 2, 2, 2)
    read = "2 networks learned to guess every next character of text.txt."
    assert view.text_content("#story") == f"{read} Loss: how much the text surprised them; lower is better."
    point_at(view, 1.0)
    tip = view.text_content("#chart-loss .tip")
    assert tip.startswith("update 200")
    for text in ("one training1.0150", "one validation1.0200", "two training2.0150", "two validation2.0200"):
        assert text in tip
    assert view.locator("#chart-grad .cursor circle").count() == 2  # the cursor is on all charts
    assert not view.locator("#chart-grad .tip").is_visible()
    point_at(view, 0.0)
    assert "training4.0000" in view.text_content("#chart-loss .tip")
    assert "validation" not in view.text_content("#chart-loss .tip")  # the first was at step 50
    view.mouse.move(5, 5)
    assert not view.locator("#chart-loss .tip").is_visible()


def test_axes_units_and_smoothing(view):
    assert "updates" in ticks(view)
    view.click("#axis button[value=chars]")
    point_at(view, 1.0)
    assert view.text_content("#chart-loss .tip p") == "8 k characters"
    view.click("#axis button[value=elapsed_s]")
    point_at(view, 1.0)
    assert view.text_content("#chart-loss .tip p") == "20 s"
    assert "seconds" in ticks(view, "grad")
    view.click("#unit button[value=bits]")
    point_at(view, 1.0)
    assert "one training1.4643" in view.text_content("#chart-loss .tip")
    assert "1.4715" in view.text_content("#scores")
    before = view.get_attribute("#chart-loss path.line", "d")
    view.check("#log-x")
    logarithmic = view.get_attribute("#chart-loss path.line", "d")
    assert logarithmic != before
    view.fill("#smooth", "0")
    assert view.get_attribute("#chart-loss path.line", "d") != logarithmic
    assert lines(view, kind="raw") == 0
    flat = view.get_attribute("#chart-loss path.line", "d")
    view.click("#chart-loss .small")
    assert view.get_attribute("#chart-loss path.line", "d") != flat


def test_the_legend_hides_runs_and_splits(view):
    view.click("#legend button >> nth=0")
    assert lines(view) == 2
    assert view.locator("#samples article").count() == 1
    view.keyboard.press("1")
    assert lines(view) == 4
    view.click("#legend button >> nth=1", modifiers=["Shift"])
    assert lines(view) == 2
    assert view.get_attribute("#legend button >> nth=0", "aria-pressed") == "false"
    view.uncheck("#show-valid")
    assert lines(view) == 1
    view.uncheck("#show-train")
    assert "nothing to show" in view.text_content("#chart-loss")


def test_dragging_zooms_all_charts(view):
    point_at(view, 0.5)
    view.mouse.down()
    point_at(view, 0.75)
    view.mouse.up()
    assert view.locator("#zoomed").is_visible()
    steps = [int(text) for text in ticks(view, "grad") if text.isdigit() and int(text) > 50]
    assert steps
    assert all(100 <= step <= 151 for step in steps)
    view.keyboard.press("Escape")
    assert not view.locator("#zoomed").is_visible()
    assert "200" in ticks(view)


def test_lines_of_a_part_lead_to_its_edges(view):
    """Between two evaluations there is no point, but the line; the axis holds what is in sight of it."""
    point_at(view, 0.55)
    view.mouse.down()
    point_at(view, 0.7)
    view.mouse.up()
    drawn = view.eval_on_selector_all(
        "#chart-loss path.line.valid",
        "paths => paths.map(path => path.getAttribute('d').split(/[ML ]/).filter(Boolean).map(Number))",
    )
    left, right = 62, view.locator("#chart-loss svg.plot").bounding_box()["width"] - 24
    assert len(drawn) == 2
    for numbers in drawn:
        assert len(numbers) == 4
        assert numbers[0] < left
        assert numbers[2] > right
    numbers = [float(text) for text in ticks(view) if "." in text or text.isdigit()]
    assert max(value for value in numbers if value < 10) < 2.2  # not 4, where the loss began
    view.focus("#chart-loss .area")
    view.keyboard.press("Home")
    assert int(view.text_content("#spoken").split(":")[0].removeprefix("update ")) >= 110
    label = view.get_attribute("#chart-loss .area", "aria-label")
    assert "one validation has no values; " in label


def test_every_axis_has_two_labels(opened, run_of):
    rows = [train_row(step, 2 - step / 1e4, lr=1e-3 * 0.93**step, grad_norm=3.1 + step / 100, chars_per_s=1e5 + step)
            for step in range(20, 31)]  # fmt: skip
    view = opened(report_page([read_run(run_of("narrow", rows, []))]))
    assert lines(view, kind="raw") == 0  # so few points are not smoothed
    assert view.locator("#legend").is_hidden()  # of one run
    for width in (1300, 390):
        view.set_viewport_size({"width": width, "height": 800})
        for log in (False, True):
            for chart in ("loss", "lr", "grad", "speed"):
                if (view.get_attribute(f"#chart-{chart} .small", "aria-pressed") == "true") != log:
                    view.click(f"#chart-{chart} .small")
                for side in ("middle", "end:not(:last-child)"):
                    labels = view.locator(f"#chart-{chart} text.label.{side}").all_text_contents()
                    assert len({*labels}) >= 2, (chart, log, side, labels)


def test_scores_are_ranked_on_the_same_text_only(opened, learning):
    """A text that was moved is the same; another text, or one that is divided in another way, is not."""
    runs = {name: learning(name, best) for name, best in (("a", 1.0), ("moved", 2.0), ("other", 0.5), ("split", 0.4))}
    for name, old, new in (
        ("moved", "source: ", "source: /elsewhere"),
        ("split", "- 0.9\n  - 0.05", "- 0.8\n  - 0.15"),
    ):
        config = runs[name] / "config.yaml"
        assert old in config.read_text()
        config.write_text(config.read_text().replace(old, new, 1))
    records = {name: read_run(run) for name, run in runs.items()}
    assert records["a"].about.corpus_sha256
    records["other"] = replace(records["other"], about=replace(records["other"].about, corpus_sha256="0"))
    view = opened(report_page([*records.values()]))
    assert view.locator("#scores .best").all_text_contents() == ["1.0200"]
    assert view.text_content("#scores thead th >> nth=1") == "text"
    assert view.locator("#scores tbody tr td:nth-of-type(1)").all_text_contents() == ["text.txt"] * 4
    assert view.locator("#ranked").is_visible()


def test_runs_without_samples_are_named_and_intervals_are_no_differences(opened, learning, run_of):
    without = run_of("without", [train_row(1)], [])
    config = without / "config.yaml"
    text = config.read_text()
    for option in ("log_every", "eval_every", "save_every", "sample_every"):
        assert re.search(f"{option}: \\d+", text)
        text = re.sub(f"{option}: \\d+", f"{option}: 77", text)
    config.write_text(text)
    view = opened(report_page([read_run(learning("one")), read_run(without)]))
    assert view.text_content("#no-samples") == "Without samples: without."
    assert view.text_content("#same") == "The runs have the same settings."
    assert view.locator("#differing").is_hidden()
    view.click("summary")
    assert "77" in view.text_content("#settings")
    view.click("#legend button >> nth=1")
    assert view.text_content("#no-samples") == ""


def test_the_keyboard_alone(view):
    view.focus("#chart-loss .area")
    view.keyboard.press("End")
    assert view.text_content("#spoken").startswith("update 1: one training 4.0000")
    view.keyboard.press("End")
    assert view.text_content("#spoken").startswith(
        "update 200: one training 1.0150; one validation 1.0200; two training"
    )
    view.keyboard.press("ArrowLeft")
    assert view.text_content("#spoken").startswith("update 199:")
    view.keyboard.press("+")
    assert view.locator("#zoomed").is_visible()
    view.keyboard.press("Escape")
    assert not view.locator("#zoomed").is_visible()
    view.focus("#axis button[aria-checked=true]")
    view.keyboard.press("ArrowDown")
    assert view.get_attribute("#axis button[value=chars]", "aria-checked") == "true"


def test_scores_notes_and_settings(view):
    assert view.locator("#scores tbody tr").count() == 2
    assert view.text_content("#scores .best") == "1.0200"
    rollback = "update 100: rolled back from update 117: loss inf; learning rate × 0.5 from here"
    assert view.text_content("#notes").count(rollback) == 2
    assert view.locator("#chart-grad .note").count() == 2
    assert view.text_content("#chart-grad title >> nth=0") == f"one: {rollback.removeprefix('update 100: ')}"
    assert view.text_content("#same") == "The runs have the same settings."
    assert not view.locator("#settings").is_visible()
    view.click("summary")
    assert view.locator("#settings tbody tr").count() > 40


def test_samples_by_step_and_text_alternatives(view):
    assert view.text_content("#sample-step") == "update 150"
    view.focus("#sample-slider")
    view.keyboard.press("Home")
    assert view.text_content("#sample-step") == "update 50"
    assert view.text_content(".sample >> nth=1") == "at 50␍\n<b>\\u202e"
    shaded = view.locator(".sample >> nth=0").locator("span")
    assert shaded.all_text_contents() == ["at 5", "0␍\n<b>\\u202e"]
    colors = [each.evaluate("span => span.style.backgroundColor") for each in shaded.all()]
    assert colors == ["rgba(230, 120, 0, 0.72)", ""]
    loss = view.get_attribute("#chart-loss .area", "aria-label")
    assert loss.startswith("Loss, nats per character: chart; one training from 4.0000 to 1.0150, lowest 1.0150; ")
    assert view.get_attribute("#smooth", "aria-valuetext") == "1 % of the axis"
    view.fill("#smooth", "0")
    assert view.get_attribute("#smooth", "aria-valuetext") == "off"
    for button in (0, 1):
        view.click(f"#legend button >> nth={button}")
    assert "nothing to show" in view.get_attribute("#chart-loss .area", "aria-label")
    assert unnamed(view) == []


def test_dark_narrow_and_printed(opened, learning):
    runs = [read_run(learning(name)) for name in ("one", "a-run-with-a-rather-long-name")]
    view = opened(report_page(runs), color_scheme="dark")
    assert view.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    view.set_viewport_size({"width": 390, "height": 800})
    view.wait_for_function("document.documentElement.scrollWidth <= 390")
    view.set_viewport_size({"width": 720, "height": 1000})
    view.emulate_media(media="print")
    assert not view.locator(".controls").is_visible()
    assert view.locator("#chart-loss path.line").first.is_visible()
    cut = "boxes => boxes.filter(box => box.scrollWidth > box.clientWidth).length"
    assert view.eval_on_selector_all(".wide", cut) == 0


def test_a_finger(opened, learning):
    view = opened(report_page([read_run(learning())]), has_touch=True)
    view.touchscreen.tap(600, 300)
    assert view.text_content("#chart-loss .tip").startswith("update ")
    assert view.locator("#chart-loss .tip").is_visible()  # after the finger has left
    view.set_viewport_size({"width": 390, "height": 800})
    for x in (100, 200, 330):
        view.touchscreen.tap(x, 400)
        box = view.locator("#chart-loss .tip").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
    view.set_viewport_size({"width": 1300, "height": 900})
    assert not view.locator("#zoomed").is_visible()
    view.dispatch_event("#chart-loss .area", "pointerdown", {"button": 0, "clientX": 300})
    view.dispatch_event("#chart-loss .area", "pointercancel")  # the finger scrolls the page
    view.dispatch_event("body", "pointerup", {"clientX": 700})
    assert not view.locator("#zoomed").is_visible()
    view.touchscreen.tap(1000, 20)
    assert not view.locator("#chart-loss .tip").is_visible()


def test_damaged_and_empty_runs_have_their_line(opened, run_of, learning):
    empty, alone = run_of("empty", [], []), run_of("alone", [train_row(1, lr=0.0, nats=float("nan"))], [])
    (empty / "config.yaml").write_text("model: 3")
    view = opened(report_page([read_run(run) for run in (empty, alone, learning())]))
    notes = view.text_content("#notes")
    assert "empty config.yaml cannot be read" in notes
    assert view.locator("#differing").is_hidden()
    view.check("#log-x")
    for chart in ("loss", "lr", "grad", "speed"):
        view.click(f"#chart-{chart} .small")
        assert "NaN" not in view.inner_html(f"#chart-{chart}")
        assert "Infinity" not in view.inner_html(f"#chart-{chart}")
    view.keyboard.press("3")
    assert "nothing to show" in view.text_content("#chart-loss")


def test_a_hostile_run_does_nothing(opened, run_of):
    mark = "</script><script>window.broken=1</script><img src=x onerror=window.broken=1>"
    run = run_of("<script>window.broken=1", [train_row(1), {"step": 1, "split": mark}],
                 [{"step": 1, "text": mark, "bits": [1.0] * len(mark)}])  # fmt: skip
    config = run / "config.yaml"
    config.write_text(re.sub("source: .*", f"source: {json.dumps(mark)}", config.read_text()))
    view = opened(report_page([read_run(run)]))
    point_at(view, 0.5)
    view.click("summary")
    assert mark in view.text_content("#settings")
    assert view.evaluate("window.broken") is None
    assert view.locator("img").count() == 0
    assert view.text_content("h1") == "<script>window.broken=1"


def test_many_long_runs(opened, run_of):
    rows = [train_row(step, 2 + (step * 7919 % 1000) / 1000) for step in range(1, 2001)]
    record = read_run(run_of("long", rows, []))
    view = opened(report_page([replace(record, path=record.path.with_name(f"run {n}")) for n in range(20)]))
    assert (lines(view), lines(view, kind="band")) == (20, 20)
    for chart in ("loss", "speed"):
        view.locator(f"#chart-{chart}").scroll_into_view_if_needed()
        point_at(view, 0.5, chart)
        box = view.locator(f"#chart-{chart} .tip").bounding_box()
        assert view.locator(f"#chart-{chart} .tip li").count() == 20
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= 900
