"""One file of HTML from a page's template, style, modules and data.

A template holds the data as {{data}} and so on, and the parts that `modules.txt` lists: {{curves}} is curves.html.

Modules import only from one another, a line each: `import { name } from "./other.js";`, or `"../look/other.js"` of
another page. Here they become one script in the order of `modules.txt`, without these lines and without `export`; names
are therefore unique among a page's modules.
The script runs under a Content-Security-Policy that admits it and the style by their hashes, and nothing else.
"""

import base64
import hashlib
import html
import posixpath
import re
import zlib
from collections.abc import Collection
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from charlm.system.formatting import one_line, to_json

_IMPORT = re.compile(r"^import \{[^}]*\} from \"((?:\./|\.\./[\w-]+/)[\w-]+\.js)\";\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=function|const|class|async)", re.MULTILINE)


def html_page(name: str, title: str, data: dict[str, Any], *, wasm: bool = False) -> str:
    """The page of charlm/web/<name>/ with this title and data; nothing in either can become markup or code.

    wasm: whether the script may compile WebAssembly.
    """
    folder = files("charlm.web") / name
    script = joined_modules(name)
    style = joined_styles(name)
    parts = {posixpath.basename(file).removesuffix(".html"): part for file, part in _listed(name, ".html").items()}
    fields = parts | {
        "policy": html.escape(content_policy(script, style, wasm=wasm), quote=True),
        "title": html.escape(title),
        "style": style,
        "script": script,
        "data": json_block(data),
    }
    template = (folder / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: fields[match[1]], template)


def content_policy(script: str, style: str, *, wasm: bool = False) -> str:
    """A Content-Security-Policy that admits this script and this style; with `wasm` also WebAssembly, never `eval`."""
    compiling = " 'wasm-unsafe-eval'" if wasm else ""
    return (
        f"default-src 'none'; script-src '{_hash(script)}'{compiling}; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def joined_modules(name: str, roots: Collection[str] = ()) -> str:
    """The modules of a page as one script; with `roots`, only these and what they import."""
    sources = _listed(name, ".js")
    included = set(roots or sources)
    for module, source in reversed(sources.items()):  # a module comes after those that it imports
        if module in included:
            folder = posixpath.dirname(module)
            included.update(posixpath.normpath(posixpath.join(folder, match[1])) for match in _IMPORT.finditer(source))
    return "".join(_EXPORT.sub("", _IMPORT.sub("", source)) for module, source in sources.items() if module in included)


def joined_styles(name: str) -> str:
    """The styles that modules.txt lists, and that of the page itself."""
    page_style = (files("charlm.web") / name / "page.css").read_text(encoding="utf-8")
    return "".join([*_listed(name, ".css").values(), page_style])


def _listed(name: str, ending: str) -> dict[str, str]:
    """The files of this kind in the page's modules.txt, with their text; "../look/text.js" is one of another page's."""
    folder = files("charlm.web") / name
    listed = (folder / "modules.txt").read_text(encoding="utf-8").split()
    return {
        file: folder.joinpath(*file.split("/")).read_text(encoding="utf-8") for file in listed if file.endswith(ending)
    }


def text_name(source: str) -> str:
    """How a page calls a text: by its file or folder; a name with ":" or a pattern as it is."""
    return one_line(source if ":" in source or "*" in source else Path(source).name or source)


def json_block(value: Any) -> str:
    """JSON that can stand in a script element: no "<", and nothing that is not ASCII."""
    return to_json(value).replace("<", "\\u003c")


def packed(values: np.ndarray) -> dict[str, str]:
    """An array as JSON: its type, and its bytes, little-endian, deflated, as base64."""
    little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    data = base64.b64encode(zlib.compress(little.tobytes(), 9)).decode("ascii")
    return {"type": f"{values.dtype.kind}{values.dtype.itemsize}", "data": data}


def _hash(text: str) -> str:
    """As a Content-Security-Policy names an inline script or style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"
