"""One file of HTML from a page's body, style, modules and data, in the frame of shared/page.html.

Modules import only one another, one import per line: `import { name } from "./other.js";`, or `"../shared/other.js"`.
They become one script, each module after its imports, without import lines and `export`; so names must be unique among
a page's modules. The Content-Security-Policy admits only this script and the style, by their hashes.
"""

import base64
import hashlib
import html
import posixpath
import re
import zlib
from collections.abc import Iterable
from importlib.resources import files
from typing import Any

import numpy as np

from charlm.system.formatting import to_json

_IMPORT = re.compile(r"^import \{[^}]*\} from \"((?:\./|\.\./[\w-]+/)[\w-]+\.js)\";\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=function|const|class|async)", re.MULTILINE)


def html_page(name: str, title: str, data: dict[str, Any], *, wasm: bool = False) -> str:
    """The page of charlm/web/<name>/ with this title and data; nothing in either can become markup or code.

    wasm: whether the script may compile WebAssembly.
    """
    script = joined_modules(name)
    style = _source("shared/base.css") + _source(f"{name}/page.css")
    comment, _, body = _source(f"{name}/page.html").partition("\n")
    fields = {
        "comment": comment,
        "policy": html.escape(content_policy(script, style, wasm=wasm), quote=True),
        "title": html.escape(title),
        "style": style,
        "body": body,
        "data": to_json(data).replace("<", "\\u003c"),  # no "<" may end the script element
        "script": script,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: fields[match[1]], _source("shared/page.html"))


def content_policy(script: str, style: str, *, wasm: bool) -> str:
    """A Content-Security-Policy that admits this script and this style; with `wasm` also WebAssembly, never `eval`."""
    compiling = " 'wasm-unsafe-eval'" if wasm else ""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'{compiling}; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def joined_modules(name: str, roots: Iterable[str] = ("main.js",)) -> str:
    """These modules of a page, and all that they import, as one script."""
    sources: dict[str, str] = {}

    def add(module: str) -> None:
        if module in sources:
            return
        source = _source(module)
        for match in _IMPORT.finditer(source):
            add(posixpath.normpath(posixpath.join(posixpath.dirname(module), match[1])))
        sources[module] = source

    for root in roots:
        add(f"{name}/{root}")
    return "".join(_EXPORT.sub("", _IMPORT.sub("", source)) for source in sources.values())


def _source(file: str) -> str:
    return files("charlm.web").joinpath(*file.split("/")).read_text(encoding="utf-8")


def packed(values: np.ndarray) -> dict[str, str]:
    """An array as JSON: its type, and its bytes, little-endian, deflated, as base64."""
    little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    data = base64.b64encode(zlib.compress(little.tobytes(), 9)).decode("ascii")
    return {"type": f"{values.dtype.kind}{values.dtype.itemsize}", "data": data}


def _hash(text: str) -> str:
    """As a Content-Security-Policy names an inline script or style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"
