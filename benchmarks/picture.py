"""Takes the pictures of pages in docs/: charlm.png (also in README), browser.png, report.png, phones.png, compare.png.

    .venv/bin/python benchmarks/picture.py runs/shakespeare runs/other

The first run is that of the pages of `charlm look` and `charlm export`; the report is on all of them. Make runs with
`charlm train data/tinyshakespeare.txt --minutes 1`, and `--set model.cell.kind=gru` for another. Needs Playwright,
Chromium, and Pillow, which comes with matplotlib. compare.png is of a page that `charlm compare` has written:

    .venv/bin/python benchmarks/picture.py comparisons/tinyshakespeare/comparison.html
"""

import io
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from charlm.export import export
from charlm.inference import load
from charlm.look import look_page, opening
from charlm.report import read_run, report_page

DOCS = Path(__file__).parents[1] / "docs"
LENGTH = 5000
DESKTOP: dict[str, Any] = {"viewport": {"width": 1100, "height": 640}, "device_scale_factor": 2}
TALL: dict[str, Any] = {"viewport": {"width": 1100, "height": 760}, "device_scale_factor": 2}
PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 780},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
    "color_scheme": "dark",
}
_LINE = 4
"""The line of the written text at which the pictures point."""


def main(runs: list[Path]) -> None:
    """Take the pictures of these runs."""
    trained = load(runs[0], "cpu")
    with sync_playwright() as tools, tempfile.TemporaryDirectory() as folder:
        look, model, report = (Path(folder) / f"{name}.html" for name in ("look", "model", "report"))
        look.write_text(look_page(trained, opening(trained, LENGTH)), encoding="utf-8")
        export(trained, "html", model, novelty=True)
        report.write_text(report_page([read_run(run) for run in runs]), encoding="utf-8")
        browser = tools.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])

        def shot(path: Path, prepare: Callable[[Page], object], *, whole: bool = False, **window: Any) -> Image.Image:
            view = browser.new_page(reduced_motion="reduce", **window)
            view.goto(path.as_uri())
            view.wait_for_selector("html[data-ready=yes]", state="attached")
            prepare(view)
            view.wait_for_timeout(200)
            return Image.open(io.BytesIO(view.screenshot(full_page=whole)))

        save(shot(look, lambda view: None, **DESKTOP), "charlm")
        save(shot(model, point_at_text, **TALL), "browser")
        save(shot(report, point_at_loss, whole=True, viewport={"width": 1240, "height": 900}), "report")
        phones = [shot(look, lambda view: None, **PHONE), shot(model, point_at_text, **PHONE)]
        both = Image.new("RGB", (2 * phones[0].width + 40, phones[0].height), "white")
        for number, phone in enumerate(phones):
            both.paste(phone, (number * (phone.width + 40), 0))
        save(both, "phones")
        browser.close()


def take_comparison(page: Path) -> None:
    """Take the picture of a comparison: the table, and what the first kinds make of the passage."""
    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": 1240, "height": 900})
        view.goto(page.absolute().as_uri())
        view.wait_for_selector("html[data-ready=yes]", state="attached")
        for part in (".bar", ".charts", "#keys", "#units article:nth-child(n + 4)"):
            view.eval_on_selector_all(part, "elements => elements.forEach((each) => each.remove())")
        for card in ("#passages", "#continued"):
            view.locator(card).locator("xpath=..").evaluate("card => card.remove()")
        end = view.locator("#units").locator("xpath=..").bounding_box()
        assert end
        clip = {"x": 0, "y": 0, "width": 1240, "height": end["y"] + end["height"] + 14}
        picture = Image.open(io.BytesIO(view.screenshot(full_page=True, clip=clip)))
        save(picture, "compare", 256, Image.Quantize.MAXCOVERAGE)
        browser.close()


def point_at_text(view: Page) -> None:
    """Point at a character of what the model wrote."""
    view.wait_for_selector("#paper[aria-busy=false]")
    view.select_option("#pace", "60")
    line = view.locator("#paper .line").nth(_LINE)
    line.evaluate("line => innerWidth < 500 && scrollBy(0, line.parentElement.getBoundingClientRect().top - 200)")
    box = line.bounding_box()
    assert box
    view.mouse.click(box["x"] + 110, box["y"] + 12)


def point_at_loss(view: Page) -> None:
    """Point at the middle of the chart of the loss, and show a sample of the beginning."""
    view.fill("#sample-slider", "3")
    view.hover("#chart-loss .area")


def save(picture: Image.Image, name: str, colors: int = 128, method: Image.Quantize = Image.Quantize.MEDIANCUT) -> None:
    """Save a picture in few colors; MAXCOVERAGE keeps those of small areas."""
    few = picture.convert("RGB").quantize(colors, method, dither=Image.Dither.NONE)
    few.save(DOCS / f"{name}.png", optimize=True)


if __name__ == "__main__":
    paths = [Path(path) for path in sys.argv[1:]]
    take_comparison(paths[0]) if paths[0].suffix == ".html" else main(paths)
