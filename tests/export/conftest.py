"""The engine of exported pages alone: in a browser, under the policy of such a page, or in Node where there is none."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from charlm.web.page import content_policy, joined_modules
from tests.browser import CHROMIUM, pages_in

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


@pytest.fixture(autouse=True)
def _kernels(kernels: None) -> None:
    """No test compiles the kernel of a cell again that charlm does not have."""


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A page with the engine as `engine`, under the policy of an exported page; no test leaves anything in it."""
    script = "\n".join([joined_modules("model", roots=ENGINE), _NAMES])
    if CHROMIUM is None:
        if shutil.which("node") is None:
            pytest.skip("neither Chromium nor Node")
        yield _Node(script)
        return
    ready = f"{script}\n{_READY}"
    policy = content_policy(ready, "", wasm=True)
    with pages_in(request.getfixturevalue("chromium"), tmp_path_factory.mktemp("engine")) as open_page:
        yield open_page(
            f'<!doctype html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
            f'<script type="module">{ready}</script>'
        )
