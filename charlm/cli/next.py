"""charlm next."""

from typing import Annotated, Any

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

Prompt = Annotated[
    str, typer.Option(metavar="TEXT", help="Text to read first; without it the model is at the start of a line.")
]
Top = Annotated[int, typer.Option(min=1, metavar="K", help="How many characters to list; bytes for a byte model.")]


def next_characters(
    checkpoint: CheckpointPath,
    prompt: Prompt = "",
    top: Top = 5,
    skip_unknown: SkipUnknown = False,
    device: DeviceOption = "auto",
    precision: PrecisionOption = Precision.auto,
    json: Json = False,
) -> None:
    """List the likeliest next characters and their probabilities.

    These are the model's own probabilities, as `charlm sample` uses them at temperature 1. A byte model lists bytes. A
    model that reads backward lists the characters before the prompt; with --json they are called "previous".

    \b
    Examples:
      charlm next runs/mine --prompt "To b"
      charlm next runs/mine --prompt "To b" --top 20 --json
    """
    check_there(runs=[checkpoint])

    from charlm.inference import load

    trained = load(checkpoint, device, precision)
    report_backend(trained)
    text = known_prompt(trained, prompt, "--prompt", skip_unknown)
    found = trained.next(text, k=top)
    backward = trained.vocabulary.backward
    if json:
        listed = {"previous" if backward else "next": _as_json(trained, found)}
        print_json({"checkpoint": str(trained.path), "prompt": _readable(text), **listed})
    else:
        if backward:
            say("backward", "these characters come before the prompt")
        print_table({repr(_symbol(trained, character)): f"{p:.4f}" for character, p in found})


def _symbol(trained: Any, character: str) -> str | bytes:
    """What a character stands for: itself, or a byte."""
    return character.encode("utf-8", "surrogateescape") if trained.vocabulary.level == "byte" else character


def _as_json(trained: Any, found: list[tuple[str, float]]) -> list[dict[str, Any]]:
    rows = []
    for character, probability in found:
        symbol = _symbol(trained, character)
        named = {"byte": symbol[0]} if isinstance(symbol, bytes) else {"character": symbol}
        rows.append({**named, "probability": probability})
    return rows


def _readable(text: str) -> str:
    from charlm.data.vocabulary import readable

    return readable(text)
