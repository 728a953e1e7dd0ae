"""A page with the engine of exported pages alone."""

from collections.abc import Callable
from typing import Any

import pytest

from charlm.web.page import content_policy, joined_modules

ENGINE = ["engine.js", "random.js", "choose.js", "vocabulary.js"]
_NAMES = "window.engine = { openModel, Uniform, choose, probabilities, Vocabulary, unpackArray };"
_READY = 'document.documentElement.dataset.ready = "yes";'


@pytest.fixture
def engine(opened: Callable[..., Any]) -> Callable[..., Any]:
    """Opens a page with the engine as `engine`; it has the policy of an exported page."""

    def open_engine() -> Any:
        script = "\n".join([joined_modules("model", roots=ENGINE), _NAMES, _READY])
        policy = content_policy(script, "", wasm=True)
        return opened(
            f'<!doctype html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
            f'<script type="module">{script}</script>'
        )

    return open_engine
