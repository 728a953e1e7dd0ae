"""charlm look."""

from pathlib import Path
from typing import Annotated

import typer

from charlm.cli import usage
from charlm.cli.common import check_text, encode_text, write_page
from charlm.runs import find_checkpoint
from charlm.system.console import say


def look(
    checkpoint: usage.Checkpoint,
    file: Annotated[
        Path | None, usage.option("FILE", "Look at this text; - is stdin.  [default: validation text]")
    ] = None,
    length: Annotated[
        int, usage.option("N", "Read at most N characters, from the beginning.", min=2, max=1_000_000)
    ] = 5000,
    compare: Annotated[
        Path | None,
        usage.option("CKPT", "Show where this model is better or worse."),
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
    find_checkpoint(checkpoint)
    if compare is not None:
        find_checkpoint(compare, "--compare")
    check_text(file)

    from charlm.data.outputs import check_output
    from charlm.inference.trained import load
    from charlm.look import beginning, look_page, opening, shown_part

    trained = load(checkpoint, "cpu", "fp32")
    check_output(out, "--out", "a page of charlm look")
    other = None if compare is None else load(compare, "cpu", "fp32")
    if file is not None:
        whole = encode_text(trained, file, skip_unknown)
        ids = beginning(trained, trained.scored_ids(whole), length)
        shown = len(shown_part(trained, ids))
        called = "the text from stdin" if str(file) == "-" else file.name
        if len(whole) > length:
            say("text", f"{file}: the first {shown:,} of {len(whole):,} characters; --length takes more")
    else:
        whole = shown_part(trained, trained.split("valid"))
        ids = opening(trained, length)
        shown = len(shown_part(trained, ids))
        called = "its validation text"
        if len(whole) < length:
            say("text", f"the validation text has {len(whole):,} characters; --length asks for {length:,}")
    if len(whole) > length:
        called = f"the beginning of {called}"
    say("look", f"reading {shown:,} characters, and looking for what units track and what is copied ...")
    write_page(out, look_page(trained, ids, other, gradients=gradients, called=called))
