"""The page as it is used: opened from a file in a real browser, without a network."""

import json
import re
from dataclasses import replace

import pytest

from charlm.report.page import report_page
from charlm.report.run import read_run
from tests.browser import check_access
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


def drag(view, start, end):
    point_at(view, start)
    view.mouse.down()
    point_at(view, end)
    view.mouse.up()


def ticks(view, chart="loss"):
    return view.eval_on_selector_all(f"#chart-{chart} text.label", "labels => labels.map(label => label.textContent)")


def curve(view):
    return view.get_attribute("#chart-loss path.line", "d")


def test_pointer_legend_axes_and_zoom(view):
    assert (lines(view), lines(view, "lr"), lines(view, "grad"), lines(view, "speed")) == (4, 2, 2, 2)
    read = "2 networks learned to guess every next character of text.txt."
    assert view.text_content("#story") == f"{read} Loss: how much the text surprised them; lower is better."
    point_at(view, 1.0)
    tip = view.locator("#chart-loss .tip")
    rows = view.locator("#chart-loss .tip li").all_text_contents()  # as high as their lines lie
    assert tip.text_content().startswith("update 200")
    values = ["two validation2.0200", "two training2.0150", "one validation1.0200", "one training1.0150"]
    assert [row.strip() for row in rows] == values
    assert view.locator("#chart-grad .cursor circle").count() == 2  # the cursor is on all charts
    assert not view.locator("#chart-grad .tip").is_visible()
    point_at(view, 0.0)
    assert "training4.0000" in tip.text_content()
    assert "validation" not in tip.text_content()  # the first was at step 50
    view.mouse.move(5, 5)
    assert not tip.is_visible()

    view.click("#legend button >> nth=0")
    assert lines(view) == 2
    assert view.locator("#samples article").count() == 1
    view.click("#legend button >> nth=0")
    assert lines(view) == 4
    view.uncheck("#show-valid")
    assert lines(view) == 2
    view.uncheck("#show-train")
    assert "nothing to show" in view.text_content("#chart-loss")
    view.check("#show-train")
    view.check("#show-valid")

    drag(view, 0.5, 0.75)
    assert view.locator("#zoomed").is_visible()
    steps = [int(text) for text in ticks(view, "grad") if text.isdigit() and int(text) > 50]
    assert steps
    assert all(100 <= step <= 151 for step in steps)
    view.keyboard.press("Escape")
    assert not view.locator("#zoomed").is_visible()
    assert "200" in ticks(view)
    drag(view, 0.55, 0.7)  # between two evaluations there is no point, but the line
    numbers = [float(text) for text in ticks(view) if "." in text or text.isdigit()]
    assert max(value for value in numbers if value < 10) < 2.2  # not 4, where the loss began
    assert "one validation has no values; " in view.get_attribute("#chart-loss .area", "aria-label")
    view.keyboard.press("Escape")

    view.click("#axis button[value=chars]")
    point_at(view, 1.0)
    assert view.text_content("#chart-loss .tip p") == "8 k characters"
    view.click("#axis button[value=elapsed_s]")
    point_at(view, 1.0)
    assert view.text_content("#chart-loss .tip p") == "20 s"
    assert "seconds" in ticks(view, "grad")
    view.click("#unit button[value=bits]")
    point_at(view, 1.0)
    assert "one training1.4643" in tip.text_content()
    assert "1.4715" in view.text_content("#scores")
    before = curve(view)
    view.check("#log-x")
    logarithmic = curve(view)
    assert logarithmic != before
    view.fill("#smooth", "0")
    assert curve(view) != logarithmic
    assert lines(view, kind="raw") == 0
    flat = curve(view)
    view.click("#chart-loss .small")
    assert curve(view) != flat
    check_access(view, 24)


def test_the_keyboard_alone_scores_samples_and_settings(view):
    view.focus("#chart-loss .area")
    view.keyboard.press("End")
    assert view.text_content("#spoken").startswith("update 1: two training 5.0000; one training 4.0000")
    view.keyboard.press("End")
    assert view.text_content("#spoken").endswith("two training 2.0150; one validation 1.0200; one training 1.0150")
    view.keyboard.press("ArrowLeft")
    assert view.text_content("#spoken").startswith("update 199:")
    view.keyboard.press("+")
    assert view.locator("#zoomed").is_visible()
    view.keyboard.press("Escape")
    assert not view.locator("#zoomed").is_visible()
    view.focus("#axis button[aria-checked=true]")
    view.keyboard.press("ArrowDown")
    assert view.get_attribute("#axis button[value=chars]", "aria-checked") == "true"
    assert view.locator("#scores tbody tr").count() == 2
    assert view.text_content("#scores .best") == "1.0200"
    rollback = "update 100: rolled back from update 117: loss inf; learning rate × 0.5 from here"
    assert view.text_content("#notes").count(rollback) == 2
    assert view.locator("#chart-grad .note").count() == 2
    assert view.text_content("#chart-grad title >> nth=0") == f"one: {rollback.removeprefix('update 100: ')}"
    assert view.text_content("#same") == "The runs have the same settings."
    view.click("summary")
    assert view.locator("#settings tbody tr").count() > 40
    assert view.text_content("#sample-step") == "update 150"
    view.focus("#sample-slider")
    view.keyboard.press("Home")
    view.keyboard.press("1")
    assert lines(view) == 4  # a digit is no command
    assert view.text_content("#sample-step") == "update 50"
    assert view.text_content(".sample >> nth=1") == "at 50␍\n<b>\\u202e"
    shaded = view.locator(".sample >> nth=0").locator("span")
    assert shaded.all_text_contents() == ["at 5", "0␍\n<b>\\u202e"]
    colors = [each.evaluate("span => span.style.backgroundColor") for each in shaded.all()]
    assert colors == ["rgba(230, 120, 0, 0.72)", ""]
    loss = view.get_attribute("#chart-loss .area", "aria-label")
    assert loss.startswith("Loss, nats per character: chart; one training from 4.0000 to 1.0150, lowest 1.0150; ")
    assert view.get_attribute("#smooth", "aria-valuetext") == "1 % of the axis"


def test_every_axis_has_two_labels(opened, run_of):
    rows = [train_row(step, 2 - step / 1e4, lr=1e-3 * 0.93**step, grad_norm=3.1 + step / 100, chars_per_s=1e5 + step)
            for step in range(20, 31)]  # fmt: skip
    view = opened(report_page([read_run(run_of("narrow", rows, []))]))
    assert not view.locator("#smooth").is_visible()  # so few points are not smoothed
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


def test_what_is_ranked_and_what_is_on_one_axis(opened, learning, run_of):
    """A text that was moved is the same; another text, or one that is divided in another way, is not."""
    runs = {name: learning(name, best) for name, best in (("a", 1.0), ("moved", 2.0), ("other", 0.5), ("split", 0.4))}
    runs["bytes"] = run_of("bytes", [train_row(1)], [])
    intervals = {f"{option}_every: 1": f"{option}_every: 77" for option in ("log", "save")}
    for name, changed in (
        ("moved", {"source: ": "source: /elsewhere"} | intervals),
        ("split", {"- 0.9\n  - 0.05": "- 0.8\n  - 0.15"}),
        ("bytes", {"level: char": "level: byte"}),
    ):
        config = runs[name] / "config.yaml"
        text = config.read_text()
        for old, new in changed.items():
            text = text.replace(old, new, 1)
        config.write_text(text)
    records = {name: read_run(run) for name, run in runs.items()}
    assert records["a"].about.corpus_sha256
    records["other"] = replace(records["other"], about=replace(records["other"].about, corpus_sha256="0"))
    view = opened(report_page([*records.values()]))
    assert view.locator("#scores .best").all_text_contents() == ["1.0200"]
    unranked = view.text_content("#ranked")
    assert "Not on that of a: other (another split of text.txt), split (another split of text.txt), bytes" in unranked
    assert "8 k characters" in view.text_content("#scores")
    assert "40 bytes" in view.text_content("#scores")
    assert lines(view) == 8
    view.click("#symbol button[value=byte]")
    assert lines(view) == 1
    assert view.text_content("#chart-loss h2") == "Loss, nats per byte"
    assert view.text_content("#no-samples") == "Without samples: bytes."
    view = opened(report_page([records["a"], records["moved"]]))
    assert "log_every" not in view.text_content("#differing")  # intervals are no differences


def test_on_every_screen_and_printed(opened, learning):
    runs = [read_run(learning(name)) for name in ("one", *(f"a-run-with-a-rather-long-name-{n}" for n in range(5)))]
    view = opened(report_page(runs), color_scheme="dark", has_touch=True)
    assert view.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"
    for width, height in ((844, 390), (320, 600), (390, 844)):
        view.set_viewport_size({"width": width, "height": height})
        view.wait_for_function(f"document.documentElement.scrollWidth <= {width}")
    assert view.locator("#chart-loss .area").bounding_box()["y"] < 500  # long names leave it in sight
    for x in (100, 200, 330):
        view.touchscreen.tap(x, view.locator("#chart-loss .area").bounding_box()["y"] + 60)
        box = view.locator("#chart-loss .tip").bounding_box()  # after the finger has left
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
    view.touchscreen.tap(200, 20)
    assert not view.locator("#chart-loss .tip").is_visible()
    view.dispatch_event("#chart-loss .area", "pointerdown", {"button": 0, "clientX": 100})
    view.dispatch_event("#chart-loss .area", "pointercancel")  # the finger scrolls the page
    view.dispatch_event("body", "pointerup", {"clientX": 300})
    assert not view.locator("#zoomed").is_visible()
    table = view.locator("#scores").locator("..")
    table.evaluate("box => box.scrollLeft = 200")
    name, box = view.locator("#scores tbody th").first.bounding_box(), table.bounding_box()
    assert abs(name["x"] - box["x"]) < 2  # names stay in sight
    view.set_viewport_size({"width": 720, "height": 1000})
    view.evaluate("dispatchEvent(new Event('beforeprint'))")
    view.emulate_media(media="print")
    assert not view.locator("#axis").is_visible()
    widths = view.eval_on_selector_all(
        ".plot", "plots => plots.map(plot => [plot.viewBox.baseVal.width, plot.clientWidth])"
    )
    assert all(abs(drawn - shown) < 2 for drawn, shown in widths)  # labels have the size of text
    cut = "boxes => boxes.filter(box => box.scrollWidth > box.clientWidth).length"
    assert view.eval_on_selector_all(".wide", cut) == 0


def test_damaged_and_hostile_runs_have_their_line(opened, run_of, learning):
    mark = "</script><script>window.broken=1</script><img src=x onerror=window.broken=1>"
    hostile = run_of("<script>window.broken=1", [train_row(1), {"step": 1, "split": mark}],
                     [{"step": 1, "text": mark, "bits": [1.0] * len(mark)}])  # fmt: skip
    config = hostile / "config.yaml"
    config.write_text(re.sub("source: .*", f"source: {json.dumps(mark)}", config.read_text()))
    view = opened(report_page([read_run(hostile)]))
    point_at(view, 0.5)
    view.click("summary")
    assert mark in view.text_content("#settings")
    assert view.evaluate("window.broken") is None
    assert view.locator("img").count() == 0
    assert view.text_content("h1") == "<script>window.broken=1"
    empty, alone = run_of("empty", [], []), run_of("alone", [train_row(1, lr=0.0, nats=float("nan"))], [])
    (empty / "config.yaml").write_text("model: 3")
    view = opened(report_page([read_run(run) for run in (empty, alone, learning())]))
    assert "empty config.yaml cannot be read" in view.text_content("#notes")
    assert view.locator("#differing").is_hidden()
    view.check("#log-x")
    for chart in ("loss", "lr", "grad", "speed"):
        view.click(f"#chart-{chart} .small")
        assert "NaN" not in view.inner_html(f"#chart-{chart}")
        assert "Infinity" not in view.inner_html(f"#chart-{chart}")
    view.click("#legend button >> nth=2")
    assert "nothing to show" in view.text_content("#chart-loss")


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
