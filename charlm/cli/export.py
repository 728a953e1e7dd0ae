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
        Literal["onnx", "html"],
        typer.Option(help="onnx: a file for ONNX runtimes. html: a page that runs the model in a browser."),
    ],
    out: Annotated[Path, usage.option("PATH", "The file to write.")],
    float32: Annotated[
        bool,
        typer.Option("--float32", help="For html: exact weights. Those of 8 bits may raise the loss by 0.5 % at most."),
    ] = False,
) -> None:
    """Write a trained model for use without charlm.

    The file is checked before it is written: for onnx its logits are those of charlm, for html its loss. It replaces
    an earlier export in the same format, and nothing else.

    \b
    Examples:
      charlm export runs/mine --to onnx --out mine.onnx
      charlm export runs/mine --to html --out mine.html
    """
    usage.refuse_if(to != "html" and float32, "--float32 needs --to html")
    find_checkpoint(checkpoint)

    from charlm.export import export
    from charlm.inference.trained import load

    trained = load(checkpoint, "cpu")
    options = {"int8": not float32} if to == "html" else {}
    say("export", f"writing {out} and checking it against charlm's own model ...")
    say("export", f"{out}: {export(trained, to, out, **options)}")
