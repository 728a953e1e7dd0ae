"""charlm look."""

from pathlib import Path
from typing import Annotated

import typer

from charlm.cli import usage
from charlm.cli.common import write_page
from charlm.data.outputs import check_output
from charlm.runs import find_checkpoint
from charlm.system.console import say


def look(
    checkpoint: usage.Checkpoint,
    file: Annotated[
        Path | None, usage.option("FILE", "Look at this text; - is stdin.  [default: validation text]")
    ] = None,
    length: Annotated[
        int,
        usage.option("N", "Read at most N characters (bytes of a byte model) of its beginning.", min=2, max=100_000),
    ] = 5000,
    compare: Annotated[
        Path | None,
        usage.option("CKPT", "Show where this model is better or worse, on text that neither was trained on."),
    ] = None,
    gradients: Annotated[bool, typer.Option("--gradients", help="Show how far gradients reach.")] = False,
    out: usage.PageFile = Path("look.html"),
    skip_unknown: usage.SkipUnknown = False,
) -> None:
    """Write a page of HTML that shows what a model does with a text.

    Shows how surprising each character is, what single units respond to, how far back the model looks, and what is
    copied from the training text. One file: open it in a browser, offline.

    \b
    Examples:
      charlm look runs/mine --file my.txt --compare runs/other
      charlm sample runs/mine --length 2000 | charlm look runs/mine --file -
    """
    from charlm.data.sources import check_exists

    find_checkpoint(checkpoint)
    if compare is not None:
        find_checkpoint(compare, "--compare")
    if file is not None:
        check_exists(str(file), or_pipe=True)

    from charlm.inference.loading import load
    from charlm.look import beginning, look_page, opening, shown_part, unseen_text

    trained = load(checkpoint, "cpu", "fp32")
    check_output(out, "--out", "a page of charlm look")
    other = None if compare is None else load(compare, "cpu", "fp32")
    if file is not None:
        whole = trained.read(file, skip_unknown=skip_unknown)
        text = beginning(trained, whole, length)
    else:
        unseen = None if other is None else unseen_text((trained, other), length)
        whole = unseen or trained.split("valid")
        text = opening(trained, whole, length)
    shown, available = (len(shown_part(trained, each.ids)) for each in (text, whole))
    say("text", f"{shown:,} of {available:,} {trained.vocabulary.unit}s of {whole.name}; see --length")
    say("look", "looking for what units track and what is copied ...")
    write_page(out, look_page(trained, text, other, gradients=gradients))
