"""Write a trained model in a form that other programs use without charlm.

    onnx_graph.py     one file for any runtime of ONNX
    onnx_layer.py     a layer's step in that file
    html.py           one page of HTML that runs the model in a browser
    html_model.py     its programs and weights, packed
    check_export.py   what formats share: the vocabulary, and whether a copy computes what charlm does

Steps are written from the program of a cell (charlm/cells/program.py), so every cell can be exported.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from charlm.data.outputs import ONNX_EXPORT, check_output, page_of, write_output
from charlm.export.html import html_file
from charlm.export.onnx_graph import onnx_file
from charlm.inference.trained import TrainedModel
from charlm.system.formatting import format_bytes

FORMATS: dict[str, tuple[str, Callable[..., tuple[bytes, str]]]] = {
    "onnx": (ONNX_EXPORT, onnx_file),
    "html": (page_of("export"), html_file),
}
"""What the file is called, and (trained, options of the format) → its bytes, and what its check found, in words."""


def export(trained: TrainedModel, to: str, out: Path, **options: Any) -> str:
    """Write the model to a file in one of FORMATS, once it is checked; the size and what was found, in words.

    Replaces an earlier export in this format and nothing else. DataError if something else is there or the file cannot
    be written, CharlmError if a package is missing or the copy does not compute what charlm computes.
    """
    kind, file_of = FORMATS[to]
    check_output(out, "--out", kind)
    content, found = file_of(trained.first_member("export"), **options)
    write_output(out, "--out", content)
    return f"{format_bytes(len(content))}; {found}"
