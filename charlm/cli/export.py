"""charlm export."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from charlm.cli.common import CheckpointPath
from charlm.system.console import say
from charlm.system.formatting import format_bytes


class Format(StrEnum):
    torch = "torch"
    onnx = "onnx"


To = Annotated[
    Format,
    typer.Option(
        "--to",
        help="torch: a folder with weights and a Python file that needs PyTorch alone. onnx: a file for ONNX runtimes.",
    ),
]
Out = Annotated[Path, typer.Option(metavar="PATH", help="The file or folder to write.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")]


def export(checkpoint: CheckpointPath, to: To, out: Out, overwrite: Overwrite = False) -> None:
    """Write a trained model for use without charlm.

    The result is checked before it is put in its place: its logits are those of charlm.

    \b
    Examples:
      charlm export runs/mine --to torch --out mine-torch
      charlm export runs/mine --to onnx --out mine.onnx
    """
    from charlm.export import export
    from charlm.inference import load

    done = export(load(checkpoint, "cpu"), to, out, overwrite=overwrite)
    say("export", f"{done.path}: {format_bytes(done.size_bytes)}; logits differ by {done.difference:.1e} at most")
