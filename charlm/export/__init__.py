"""Write a trained model in a form that other programs use without charlm.

    onnx_graph.py     one file for any runtime of ONNX
    html.py           one page of HTML that runs the model in a browser
    c.py              one C file, made of model.c, the layers and the weights
    c_step.py         a layer of any cell as C
    rounding.py       weights in fewer bits, and what that costs

Steps are written from the program of a cell (charlm/cells/program.py), so every cell can be exported.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from charlm.data.outputs import check_output, write_output
from charlm.export.c import c_file
from charlm.export.html import html_file
from charlm.export.onnx_graph import onnx_file
from charlm.inference.trained import TrainedModel
from charlm.system.formatting import format_bytes

FORMATS: dict[str, tuple[Callable[..., tuple[bytes, str]], str]] = {
    "onnx": (onnx_file, "an ONNX model of charlm"),
    "html": (html_file, "a page of charlm export"),
    "c": (c_file, "a C file of charlm export"),
}
"""(trained, options of the format) → the bytes of the file, and what its check found, in words; the kind of output."""


def export(trained: TrainedModel, to: str, out: Path, **options: Any) -> str:
    """Write the model to a file in one of FORMATS, once it is checked; the size and what was found, in words.

    Replaces only an earlier export in this format. DataError if something else is there or the file cannot be written,
    CharlmError if a package is missing or the copy does not compute what charlm computes.
    """
    write, kind = FORMATS[to]
    check_output(out, "--out", kind)
    content, found = write(trained.first_member("export"), **options)
    write_output(out, "--out", content)
    return f"{format_bytes(len(content))}; {found}"
