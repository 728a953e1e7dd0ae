"""Exported pages, and their engine alone, in a browser that opens each once for all tests of a file."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from charlm.export import export
from charlm.inference.trained import TrainedModel
from charlm.web.page import content_policy, joined_modules
from tests.browser import pages_in

ENGINE = ["engine.js", "random.js", "choose.js", "vocabulary.js"]
SCRIPT = """
globalThis.engine = { openModel, Uniform, choose, probabilities, Vocabulary, unpacked };
document.documentElement.dataset.ready = "yes";"""


@pytest.fixture(autouse=True)
def _kernels(kernels: None) -> None:
    """No test compiles the kernel of a cell again that charlm does not have."""


@pytest.fixture(scope="module")
def engine(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A page with the engine as `engine`, under the policy of an exported page; no test leaves anything in it."""
    script = joined_modules("model", roots=ENGINE) + SCRIPT
    policy = content_policy(script, "", wasm=True)
    with pages_in(chromium, tmp_path_factory.mktemp("engine")) as open_page:
        yield open_page(
            f'<!doctype html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
            f'<script type="module">{script}</script>'
        )


@pytest.fixture(scope="module")
def page(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Exports a model and opens its page with all settings in sight, once it has written its first text.

    It is for a person who wants little motion: the page writes as fast as it can.
    """
    folder = tmp_path_factory.mktemp("pages")
    with pages_in(chromium, folder) as open_page:

        def page(trained: TrainedModel, **options: Any) -> Any:
            export(trained, "html", folder / "exported.html", weights="float32")
            html = (folder / "exported.html").read_text(encoding="utf-8")
            view = open_page(html, **{"reduced_motion": "reduce", **options})
            view.wait_for_selector("#paper[aria-busy=false]")
            view.click("summary")
            return view

        yield page
