"""Write a trained model in a form that other programs use without charlm.

    onnx.py           one file for any runtime of ONNX
    html.py           one page of HTML that runs the model in a browser
    c.py              one C file, made of model.c, the layers and the weights
    c_step.py         a layer of any cell as C
    rounding.py       weights in fewer bits, and what that costs

Steps are written from the program of a cell (charlm/cells/program.py), so every cell can be exported. This file imports
no torch, so that the command line can list the formats.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from charlm.data.outputs import check_output, writing
from charlm.system.formatting import format_bytes

if TYPE_CHECKING:
    from charlm.inference.trained import TrainedModel

Weights = Literal["int8", "float32"]
"""How matrices are stored. Vectors, such as biases, stay float32."""


class Format(NamedTuple):
    """A format of the module with its name, whose `exported` makes the bytes of a file and says what a check found."""

    help: str
    output: str
    """What `check_output` calls such a file."""
    rounds: bool = False
    """Whether the file may have other weights than float32."""
    is_code: bool = False
    """Whether names in the file begin with its own."""


FormatName = Literal["onnx", "html", "c"]
FORMATS: dict[FormatName, Format] = {
    "onnx": Format("a file for ONNX runtimes", "an ONNX model of charlm"),
    "html": Format("a page that runs the model in a browser", "a page of charlm export", rounds=True),
    "c": Format("one file of C", "a C file of charlm export", rounds=True, is_code=True),
}


def export(trained: "TrainedModel", to: FormatName, out: Path, weights: Weights | None = None) -> str:
    """Write the model to a file in one of FORMATS, once it is checked; the size and what was found, in words.

    weights: int8 unless told otherwise, where the format rounds. Replaces only an earlier export in this format.
    DataError if something else is there or the file cannot be written, CharlmError if a package is missing or the copy
    does not compute what charlm computes.
    """
    check_output(out, "--out", FORMATS[to].output)
    options: dict[str, str] = {"weights": weights or "int8"} if FORMATS[to].rounds else {}
    if FORMATS[to].is_code:
        options["name"] = out.stem
    content, found = importlib.import_module(f"charlm.export.{to}").exported(trained.first_member("export"), **options)
    with writing(out, "--out") as file:
        file.write(content)
    return f"{format_bytes(len(content))}; {found}"
