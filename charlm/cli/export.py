"""charlm export."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from charlm.cli import usage
from charlm.runs import find_checkpoint
from charlm.system.console import say


def export(
    checkpoint: usage.Checkpoint,
    to: Annotated[
        Literal["onnx", "html", "c"],
        typer.Option(
            help="onnx: a file for ONNX runtimes. html: a page that runs the model in a browser. c: one file of C."
        ),
    ],
    out: Annotated[Path, usage.option("PATH", "The file to write.")],
    weights: Annotated[
        Literal["float32", "bfloat16", "int8"] | None,
        typer.Option(help="For html and c. int8 and bfloat16 may raise the loss by 0.5 %.  [default: int8]"),
    ] = None,
) -> None:
    """Write a trained model for use without charlm.

    For onnx, charlm runs the file first and compares the logits. For html and c, charlm prints what the rounding of the
    weights costs. Replaces only an earlier export in the same format.

    \b
    Examples:
      charlm export runs/mine --to onnx --out mine.onnx
      charlm export runs/mine --to html --out mine.html
      charlm export runs/mine --to c --out mine.c
    """
    usage.refuse_if(to == "onnx" and weights is not None, "--weights needs --to html or --to c")
    usage.refuse_if(to == "html" and weights == "bfloat16", "--weights bfloat16 needs --to c")
    find_checkpoint(checkpoint)

    from charlm.export import export
    from charlm.inference.trained import load

    trained = load(checkpoint, "cpu")
    options = {} if to == "onnx" else {"weights": weights or "int8"}
    say("export", f"writing {out} and comparing it with charlm's own model ...")
    say("export", f"{out}: {export(trained, to, out, **options)}")
