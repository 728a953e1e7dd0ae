"""charlm look."""

from pathlib import Path
from typing import Annotated, Any

import typer

from charlm.api import check_there
from charlm.cli.common import (
    CheckpointPath,
    PageFile,
    SkipUnknown,
    finite,
    known_ids,
    known_prompt,
    usage_error,
    write_page,
)
from charlm.cli.completion import complete_run
from charlm.system.console import say


def look(
    checkpoint: CheckpointPath,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Look at this text.  [default: validation text]")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Look at this text; with --sample the model continues it.")
    ] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Look at N characters that the model writes itself.")
    ] = None,
    length: Annotated[
        int, typer.Option(min=2, max=1_000_000, metavar="N", help="Characters of the text at most, from its beginning.")
    ] = 5000,
    temperature: Annotated[
        float, typer.Option(min=0, metavar="X", callback=finite, help="For --sample: below 1 is safer, above wilder.")
    ] = 0.8,
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, metavar="N", help="For --sample: another seed, another text.")
    ] = 1,
    compare: Annotated[
        Path | None,
        typer.Option(metavar="CKPT", help="Show where this model is better or worse.", autocompletion=complete_run),
    ] = None,
    units: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="How many units to show.")] = 24,
    out: PageFile = Path("look.html"),
    skip_unknown: SkipUnknown = False,
) -> None:
    """Write a page of HTML that shows what a model does with a text.

    Every character shaded by its surprise, what single units respond to, how far back the model looks, and what is
    copied from the training text. One file: open it in a browser, offline.

    \b
    Examples:
      charlm look runs/mine --file my.txt --compare runs/other
      charlm look runs/mine --prompt "Once upon" --sample 2000
    """
    if file is not None and (prompt is not None or sample is not None):
        raise usage_error("--file excludes --prompt and --sample")
    check_there(runs=[checkpoint], options={"--compare": compare}, texts=[file])

    from charlm.data.outputs import check_output, page_of
    from charlm.inference import load
    from charlm.look import look_page, written_text

    trained = load(checkpoint, "cpu", "fp32")
    check_output(out, "--out", page_of("look"), trained.config.data, file)
    other = None if compare is None else load(compare, "cpu", "fp32")
    if prompt is None and sample is None:
        ids = _ids(trained, file, length, skip_unknown)
    else:
        text = known_prompt(trained, prompt or "", "--prompt", skip_unknown)
        if sample is not None:
            text = written_text(trained, text, sample, temperature=temperature, seed=seed)
        ids = trained.scored_ids(trained.vocabulary.encode(text))
    write_page(out, look_page(trained, ids, other, units=units))


def _ids(trained: Any, file: Path | None, length: int, skip_unknown: bool) -> Any:
    """The first `length` characters of the file, or of the run's validation text."""
    if file is None:
        ids = trained.split("valid")
        hidden = int(trained.network.begins is not None)  # the newline before the first line
        return ids[: length + hidden]
    ids = known_ids(trained, file, skip_unknown)
    if len(ids) > length:
        say("text", f"{file}: the first {length:,} of {len(ids):,} characters; --length takes more")
    in_text_order = trained.vocabulary.reversed_if_backward
    return trained.scored_ids(in_text_order(in_text_order(ids)[:length]))
