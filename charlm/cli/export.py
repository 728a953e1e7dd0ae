"""charlm export."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from charlm.api import check_there
from charlm.cli.common import CheckpointPath, usage_error
from charlm.system.console import say
from charlm.system.formatting import format_bytes


class Format(StrEnum):
    torch = "torch"
    onnx = "onnx"
    html = "html"


To = Annotated[
    Format,
    typer.Option(
        help="torch: a folder with weights and a Python file that needs PyTorch alone. onnx: a file for ONNX runtimes. "
        "html: a page that runs the model in a browser."
    ),
]
Int8 = Annotated[
    bool | None,
    typer.Option(
        "--int8/--float32",
        help="For html: weights of 8 bits, refused if they raise the loss by more than 0.5 %; or exact ones.  "
        "[default: int8]",
    ),
]


def export(
    checkpoint: CheckpointPath,
    to: To,
    out: Annotated[Path, typer.Option(metavar="PATH", help="The file or folder to write.")],
    int8: Int8 = None,
    novelty: Annotated[
        bool, typer.Option("--novelty", help="For html: the page underlines what it copies from the training text.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
) -> None:
    """Write a trained model for use without charlm.

    The result is checked before it is put in its place: for torch and onnx its logits are those of charlm, for html its
    loss.

    \b
    Examples:
      charlm export runs/mine --to torch --out mine-torch
      charlm export runs/mine --to html --out mine.html --novelty
    """
    if to != Format.html and (int8 is not None or novelty):
        raise usage_error("--int8, --float32 and --novelty need --to html")
    check_there(runs=[checkpoint])

    from charlm.export import export
    from charlm.inference import load

    options = {"int8": int8 is not False, "novelty": novelty} if to == Format.html else {}
    done = export(load(checkpoint, "cpu"), to, out, overwrite=overwrite, **options)
    say("export", f"{done.path}: {format_bytes(done.size_bytes)}; {done.check}")
