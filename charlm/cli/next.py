"""charlm next."""

from typing import Annotated

import typer

from charlm.api import check_there
from charlm.cli.common import (
    CheckpointPath,
    DeviceOption,
    Json,
    Precision,
    PrecisionOption,
    SkipUnknown,
    known_prompt,
    print_json,
    print_table,
    report_backend,
)
from charlm.system.console import say


def next_characters(
    checkpoint: CheckpointPath,
    prompt: Annotated[
        str, typer.Option(metavar="TEXT", help="Text to read first; without it the model is at the start of a line.")
    ] = "",
    top: Annotated[
        int, typer.Option(min=1, metavar="K", help="How many characters to list; bytes for a byte model.")
    ] = 5,
    skip_unknown: SkipUnknown = False,
    device: DeviceOption = "auto",
    precision: PrecisionOption = Precision.auto,
    json: Json = False,
) -> None:
    """List the likeliest next characters and their probabilities, as `charlm sample` uses them at temperature 1.

    A model that reads backward lists the characters before the prompt; with --json they are called "previous".

    \b
    Example:
      charlm next runs/mine --prompt "To b" --top 20 --json
    """
    check_there(runs=[checkpoint])

    from charlm.data.vocabulary import readable
    from charlm.inference import load

    trained = load(checkpoint, device, precision)
    report_backend(trained)
    text = known_prompt(trained, prompt, "--prompt", skip_unknown)
    likeliest = trained.next(text, k=top)
    vocabulary, name = trained.vocabulary, "character"
    if vocabulary.level == "byte":
        name, likeliest = "byte", [(character.encode("utf-8", "surrogateescape"), p) for character, p in likeliest]
    if json:
        rows = [{name: symbol[0], "probability": p} for symbol, p in likeliest]  # b"x"[0] is a number
        listed = {"previous" if vocabulary.backward else "next": rows}
        print_json({"checkpoint": str(trained.path), "prompt": readable(text), **listed})
        return
    if vocabulary.backward:
        say("backward", "these characters come before the prompt")
    print_table({repr(symbol): f"{p:.4f}" for symbol, p in likeliest})
