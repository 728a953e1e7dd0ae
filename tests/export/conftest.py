"""The engine of exported pages alone: in a browser, under the policy of such a page, or in Node where there is none."""

import json
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from charlm.web.page import content_policy, joined_modules
from tests.browser import CHROMIUM

ENGINE = ["engine.js", "random.js", "choose.js", "vocabulary.js"]
_NAMES = "globalThis.engine = { openModel, Uniform, choose, probabilities, Vocabulary, unpackArray };"
_READY = 'document.documentElement.dataset.ready = "yes";'
_ANSWER = """
const chunks = await process.stdin.toArray();
const found = await (FUNCTION)(JSON.parse(Buffer.concat(chunks)));
process.stdout.write(JSON.stringify(found));
"""


class _Node:
    """Calls functions in Node as Playwright does in a page."""

    def __init__(self, script: str) -> None:
        self.script = script

    def evaluate(self, function: str, argument: Any) -> Any:
        """What a function of JavaScript returns, of an argument that JSON can hold."""
        code = self.script + _ANSWER.replace("FUNCTION", function)
        command = ["node", "--disallow-code-generation-from-strings", "--input-type=module", "--eval", code]
        done = subprocess.run(command, input=json.dumps(argument), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Opens a page with the engine as `engine`; it has the policy of an exported page."""
    script = "\n".join([joined_modules("model", roots=ENGINE), _NAMES])
    if CHROMIUM is None:
        if shutil.which("node") is None:
            pytest.skip("neither Chromium nor Node")
        return lambda: _Node(script)
    opened = request.getfixturevalue("opened")

    def open_engine() -> Any:
        ready = f"{script}\n{_READY}"
        policy = content_policy(ready, "", wasm=True)
        return opened(
            f'<!doctype html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
            f'<script type="module">{ready}</script>'
        )

    return open_engine
