"""Debian's Chromium, for tests of pages as they are used: opened from a file, without a network.

`tests/conftest.py` imports the fixtures for all tests.
"""

import base64
import json
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
    path = folder / "page.html"

    def open_page(html: str, **options: Any) -> Any:
        path.write_text(html, encoding="utf-8")
        view = chromium.new_page(viewport={"width": 1300, "height": 900}, **options)
        views.append(view)
        view.on("console", lambda message: said.append(message.text))
        view.on("pageerror", lambda error: said.append(str(error)))
        view.on("request", lambda request: asked.append(request.url))
        view.goto(path.as_uri())
        view.wait_for_selector("html[data-ready=yes]", state="attached")
        return view

    yield open_page
    for view in views:
        view.close()
    assert said == []
    assert set(asked) <= {path.as_uri()}


_CONTROLS = {
    "application", "button", "checkbox", "combobox", "image", "radio", "radiogroup", "searchbox", "slider", "table",
    "textbox",
}  # fmt: skip


def unnamed(view: Any) -> list[str]:
    """The roles of controls, pictures and tables that have no name in the browser's accessibility tree."""
    session = view.context.new_cdp_session(view)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    seen = [node for node in nodes if not node["ignored"] and node["role"]["value"] in _CONTROLS]
    assert seen
    return [node["role"]["value"] for node in seen if not node.get("name", {}).get("value")]
