"""The engine of exported pages alone, in a browser, under the policy of such a page."""

from collections.abc import Iterator
from typing import Any

import pytest

from charlm.errors import DataError
from charlm.inference.trained import TrainedModel
from charlm.web.page import content_policy, joined_modules
from tests.browser import pages_in

ENGINE = ["engine.js", "random.js", "choose.js", "vocabulary.js"]
_SCRIPT = """
globalThis.engine = { openModel, Uniform, choose, probabilities, Vocabulary, unpacked };
document.documentElement.dataset.ready = "yes";"""


@pytest.fixture(autouse=True)
def _kernels(kernels: None) -> None:
    """No test compiles the kernel of a cell again that charlm does not have."""


@pytest.fixture
def without_training_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise DataError("the text is gone")

    monkeypatch.setattr(TrainedModel, "training_splits", property(gone))


@pytest.fixture(scope="module")
def engine(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A page with the engine as `engine`; no test leaves anything in it."""
    script = joined_modules("model", roots=ENGINE) + _SCRIPT
    policy = content_policy(script, "", wasm=True)
    with pages_in(chromium, tmp_path_factory.mktemp("engine")) as open_page:
        yield open_page(
            f'<!doctype html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
            f'<script type="module">{script}</script>'
        )
