"""Debian's Chromium, for tests of pages as they are used: opened from a file, without a network.

`tests/conftest.py` imports the fixtures for all tests.
"""

import base64
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

HOSTILE = "</script><script>window.broken=1</script><!--{{data}}\u2028&'\""


def data_of(page: str) -> dict[str, Any]:
    """The data that a page shows."""
    [data] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(data)


def unpacked(packed: dict[str, str]) -> np.ndarray:
    dtype = np.dtype(packed["type"]).newbyteorder("<")
    return np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), dtype)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright; pip install playwright")
    if CHROMIUM is None:
        pytest.skip("no Chromium")
    with playwright.sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens a page from a file; see `pages_in`."""
    with pages_in(chromium, tmp_path) as open_page:
        yield open_page


@contextmanager
def pages_in(chromium: Any, folder: Path) -> Iterator[Callable[..., Any]]:
    """Opens pages from a file in the folder; at the end, nothing must have gone wrong or left the page.

    A page is ready when the attribute `data-ready` of its html element is "yes".
    """
    said: list[str] = []
    asked: list[str] = []
    views: list[Any] = []
    addresses: set[str] = set()

    def open_page(html: str, **options: Any) -> Any:
        path = folder / f"{len(views)}.html"
        addresses.add(path.as_uri())
        path.write_text(html, encoding="utf-8")
        view = chromium.new_page(viewport={"width": 1300, "height": 900}, **options)
        views.append(view)
        view.on("console", lambda message: said.append(message.text))
        view.on("pageerror", lambda error: said.append(str(error)))
        view.on("request", lambda request: asked.append(request.url))
        view.goto(path.as_uri())
        wait_until_ready(view)
        return view

    yield open_page
    for view in views:
        view.close()
    assert said == []
    assert set(asked) <= addresses


def wait_until_ready(view: Any) -> None:
    view.wait_for_selector("html[data-ready=yes]", state="attached")


def check_access(view: Any, most_stops: int) -> None:
    """No rule of axe-core is broken, if CHARLM_AXE names its file, and Tab stops few times, each with an outline."""
    if axe := os.environ.get("CHARLM_AXE"):
        view.evaluate(Path(axe).read_text(encoding="utf-8"))
        broken = view.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
        assert not broken, [(rule["id"], [node["target"] for node in rule["nodes"]]) for rule in broken]
    view.evaluate("document.activeElement.blur()")
    stops = []
    for _ in range(most_stops + 1):
        view.keyboard.press("Tab")
        stop, outline = view.evaluate(
            "[document.activeElement.outerHTML.slice(0, 90), getComputedStyle(document.activeElement).outlineStyle]"
        )
        if stop.startswith("<body") or stop in stops:
            break
        stops.append(stop)
        assert outline != "none" or "checkbox" in stop or "range" in stop, stop
    assert len(stops) <= most_stops
