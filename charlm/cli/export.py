"""charlm export."""

from pathlib import Path
from typing import Annotated

import typer

from charlm.api import load
from charlm.cli import usage
from charlm.export import FORMATS, FormatName, Weights
from charlm.export import export as write
from charlm.system.console import say

_ROUNDED = [name for name, form in FORMATS.items() if form.rounds]


def export(
    checkpoint: usage.Checkpoint,
    to: Annotated[FormatName, typer.Option(help=" ".join(f"{name}: {form.help}." for name, form in FORMATS.items()))],
    out: Annotated[Path, usage.option("PATH", "The file to write.")],
    weights: Annotated[
        Weights | None,
        typer.Option(help=f"For {' and '.join(_ROUNDED)}. int8 may raise the score by 0.5%.  [default: int8]"),
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
    needs = " or ".join(f"--to {name}" for name in _ROUNDED)
    usage.refuse_if(weights and not FORMATS[to].rounds, f"--weights needs {needs}")
    trained = load(checkpoint, "cpu")
    say("export", f"writing {out} and comparing it with charlm's own model ...")
    say("export", f"{out}: {write(trained, to, out, weights)}")
