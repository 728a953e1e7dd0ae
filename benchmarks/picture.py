r"""Takes the pictures of pages in docs/, all but results.png.

    .venv/bin/python benchmarks/picture.py runs

`shakespeare` is in charlm.png, which is the README's too, browser.png and phones.png, and with `other` in report.png.
Make them with `charlm train data/tinyshakespeare.txt --minutes 1 --set model.cell.kind=lstm --run-dir runs/shakespeare`
and with a gru for the other. `rnn`, `lstm` and `rhn` are in gradients.png, with 270, 128 and 96 units:

    charlm train data/tinyshakespeare.txt --config rnn --run-dir runs/rnn \
        --set "model={cell: {kind: rnn, hidden: 270}, layers: 1, embedding: 64, dropout: 0}" \
        --set train.max_steps=2000 --set train.max_minutes=null

Needs Playwright, Chromium, and Pillow, which comes with matplotlib.
"""

import io
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from charlm.export import export
from charlm.inference.loading import load
from charlm.inference.trained import TrainedModel
from charlm.look import look_page, opening
from charlm.report.page import report_page
from charlm.report.run import read_run

DOCS = Path(__file__).parents[1] / "docs"
LENGTH = 5000
DESKTOP: dict[str, Any] = {"viewport": {"width": 1100, "height": 640}, "device_scale_factor": 2}
TALL: dict[str, Any] = {"viewport": {"width": 1100, "height": 760}, "device_scale_factor": 2}
CARD: dict[str, Any] = {"viewport": {"width": 360, "height": 200}, "device_scale_factor": 2}
WIDE: dict[str, Any] = {"viewport": {"width": 1240, "height": 900}}
PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 780},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
    "color_scheme": "dark",
}
_LINE = 2
"""Which of the long lines of the written text the pictures point at."""
_CELLS = ("rnn", "lstm", "rhn")
_GAP = 40

Shot = Callable[..., Image.Image]


@contextmanager
def shots() -> Iterator[Shot]:
    """A function that opens a page, prepares it, and takes a picture of the window, the whole page or a part."""
    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])

        def shot(
            url: str,
            prepare: Callable[[Page], object] = lambda view: None,
            *,
            ready: str = "html[data-ready=yes]",
            whole: bool = False,
            part: str = "",
            **window: Any,
        ) -> Image.Image:
            view = browser.new_page(reduced_motion="reduce", **window)
            view.goto(url)
            view.wait_for_selector(ready, state="attached")
            prepare(view)
            view.wait_for_timeout(200)
            return Image.open(io.BytesIO(view.locator(part).screenshot() if part else view.screenshot(full_page=whole)))

        yield shot
        browser.close()


def take_runs(runs: Path) -> None:
    """Take the pictures of the runs in this folder."""
    trained, both = load(runs / "shakespeare", "cpu"), [read_run(runs / name) for name in ("shakespeare", "other")]
    with shots() as shot, tempfile.TemporaryDirectory() as folder:
        look, model, report, norms = (Path(folder) / f"{name}.html" for name in ("look", "model", "report", "norms"))
        look.write_text(page_of(trained), encoding="utf-8")
        export(trained, "html", model)
        report.write_text(report_page(both), encoding="utf-8")
        save(shot(look.as_uri(), **DESKTOP), "charlm")
        save(shot(model.as_uri(), point_at_text, **TALL), "browser")
        save(shot(report.as_uri(), point_at_loss, whole=True, **WIDE), "report")
        save(beside([shot(look.as_uri(), **PHONE), shot(model.as_uri(), point_at_text, **PHONE)]), "phones")
        cards = []
        for cell in (load(runs / name, "cpu") for name in _CELLS):
            norms.write_text(page_of(cell, gradients=True), encoding="utf-8")
            cards.append(shot(norms.as_uri(), leave_norms, part="#gradients-card", **CARD))
        save(beside(cards), "gradients")


def page_of(trained: TrainedModel, *, gradients: bool = False) -> str:
    """What the model does with its validation text."""
    return look_page(trained, opening(trained, trained.split("valid"), LENGTH), gradients=gradients)


def leave_norms(view: Page) -> None:
    """Leave the chart of gradients alone on the page, below the kind of the model."""
    view.evaluate("""() => {
        const card = document.getElementById("gradients-card");
        card.querySelector("h2").textContent = JSON.parse(document.getElementById("data").textContent).kind;
        document.body.replaceChildren(card);
    }""")


def beside(pictures: list[Image.Image]) -> Image.Image:
    """The pictures side by side."""
    width, height = pictures[0].width, max(picture.height for picture in pictures)
    row = Image.new("RGB", (len(pictures) * (width + _GAP) - _GAP, height), "white")
    for number, picture in enumerate(pictures):
        row.paste(picture, (number * (width + _GAP), 0))
    return row


def point_at_text(view: Page) -> None:
    """Point at a character of what the model wrote."""
    view.wait_for_selector("#paper[aria-busy=false]")
    view.select_option("#pace", "60")
    text = view.text_content("#paper") or ""
    place = [line.start() for line in re.finditer(r"^\w.{20}", text, re.MULTILINE)][_LINE] + 12
    cell = view.locator(f'#paper [data-index="{place}"]')
    view.evaluate("innerWidth < 500 && scrollBy(0, document.getElementById('paper').getBoundingClientRect().top - 200)")
    cell.click()


def point_at_loss(view: Page) -> None:
    """Point at the middle of the chart of the loss, and show a sample of the beginning."""
    view.fill("#sample-slider", "3")
    view.hover("#chart-score .area")


def save(picture: Image.Image, name: str) -> None:
    """Save a picture in few colors."""
    few = picture.convert("RGB").quantize(128, dither=Image.Dither.NONE)
    few.save(DOCS / f"{name}.png", optimize=True)


if __name__ == "__main__":
    take_runs(Path(sys.argv[1]))
