"""Takes the README's picture, docs/charlm.png: a page of `charlm look` with the prediction of one character.

    .venv/bin/python benchmarks/picture.py runs/shakespeare

The run is made with `charlm train data/tinyshakespeare.txt --minutes 1`. Needs Playwright, Chromium,
and Pillow, which comes with matplotlib.
"""

import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import ViewportSize, sync_playwright

from charlm.inference import load
from charlm.look import look_page

PICTURE = Path(__file__).parents[1] / "docs/charlm.png"
LENGTH = 5000
TOP, POINTED = "PETRUCHIO:\nYou wrong me", "alities"
WINDOW: ViewportSize = {"width": 1000, "height": 560}


def main(run: Path) -> None:
    """Take the picture of a run."""
    trained = load(run, "cpu")
    ids = trained.split("valid")[:LENGTH]
    text = trained.vocabulary.decode(ids.tolist())
    with sync_playwright() as tools, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        path.write_text(look_page(trained, ids), encoding="utf-8")
        browser = tools.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        view = browser.new_page(viewport=WINDOW, device_scale_factor=2)
        view.goto(path.as_uri())
        view.wait_for_selector("html[data-ready=yes]", state="attached")
        line = text[: text.index(TOP)].count("\n")
        view.evaluate("line => document.getElementById('text').scrollTop = 24 * line + 5", line)
        view.hover(f'[data-place="{text.index(POINTED)}"]')
        shot = Image.open(io.BytesIO(view.screenshot()))
        browser.close()
    shot.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(PICTURE, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
