"""charlm sample, charlm next."""

import itertools
import secrets
from dataclasses import replace
from typing import Annotated, Any

import typer

from charlm.cli import usage
from charlm.cli.common import known_text, open_model, print_exactly, print_json, print_table
from charlm.inference.options import SamplingOptions
from charlm.system.console import say
from charlm.system.formatting import counted
from charlm.system.number import LARGEST

Prompt = Annotated[str, usage.option("TEXT", "Text to continue; with a model of records, the beginning of one.")]
Length = Annotated[int, usage.option("N", "Characters to write; bytes for a byte model.")]
Temperature = Annotated[
    float, usage.option("X", "Below 1 is safer, above 1 is wilder; 0 always takes the likeliest character.")
]
TopK = Annotated[int, usage.option("K", "Draw from the K likeliest characters only; 0 for all.")]
TopP = Annotated[float, usage.option("P", "Draw from the likeliest characters that together have probability P.")]
Stop = Annotated[
    list[str] | None, usage.option("TEXT", "End the sample as soon as it contains this text; repeatable.", "--stop")
]
Count = Annotated[int, usage.option("N", "How many samples to write.", min=1, max=10_000)]
Seed = Annotated[
    int | None,
    usage.option("N", "The same seed gives the same text; the next sample has seed + 1.", min=0, max=2**63 - 1),
]
Novelty = Annotated[bool, typer.Option("--novelty", help="Say how much of each sample the training text has.")]
New = Annotated[
    bool,
    typer.Option("--new", help="With a model of records: only new ones, no repeats and none of the training text."),
]
_TRIES = 20
"""Samples that are drawn for each new one wanted, at most."""


def sample(
    checkpoint: usage.Checkpoint,
    prompt: Prompt = "",
    length: Length = 500,
    temperature: Temperature = 0.8,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    stop: Stop = None,
    count: Count = 1,
    seed: Seed = None,
    novelty: Novelty = False,
    new: New = False,
    device: usage.Device = "auto",
    precision: usage.Precision = "auto",
    json: usage.Json = False,
) -> None:
    """Write text with a trained model.

    Prints the prompt, then one character after another as the model draws them. With --json the text comes without the
    prompt, as it does from `sample` in Python, and says what ended it: stop, length, or record for the end of a record.

    \b
    Examples:
      charlm sample runs/quickstart-20260102-030405
      charlm sample runs/mine --prompt "ROMEO:" --length 1000 --temperature 0.7 --seed 1
      charlm sample runs/mine --prompt "def " --stop $'\\n\\n' --count 5 --json
      charlm sample runs/mine/checkpoints/last.safetensors --top-p 0.9
      charlm sample runs/mine --length 2000 --novelty
      charlm sample runs/names --count 50 --new
      charlm sample runs/titles --prompt $'horror\\t' --count 10
    """
    usage.refuse_if(new and novelty, "--novelty and --new exclude one another")
    try:
        options = SamplingOptions(length, temperature, top_k, top_p, stop or ())
    except ValueError as refused:
        name, _, fault = str(refused).partition(":")
        raise usage.error(f"--{name.replace('_', '-')}:{fault}") from None
    trained = open_model(checkpoint, device, precision)

    from charlm.data.records import text_records
    from charlm.inference.sampling import new_records, sample_many, sample_text

    separator = trained.config.data.records
    usage.refuse_if(new and not separator, "--new needs a model of records (`charlm train TEXT --lines`)")
    if separator and separator in prompt:
        raise usage.error(f"--prompt: found {separator!r}, the end of a record; allowed: the beginning of one record")
    prompt = known_text(trained, prompt, "--prompt")
    options = replace(options, stop=[known_text(trained, text, "--stop") for text in options.stop])
    if novelty:
        _ = trained.training_splits  # fail now, not after the sample
    if seed is None:
        seed = secrets.randbelow(2**32)
        say("seed", str(seed))
    show = (lambda text: None) if json else print_exactly
    drawing = trained.network, trained.vocabulary, prompt, options
    rows: list[dict[str, Any]] = []
    if count == 1 and not new:
        pieces = [prompt]
        show(prompt)
        for [piece] in sample_text(*drawing, [seed]):
            show(piece)
            pieces.append(piece)
        show("\n")
        rows.append(_row(trained, prompt, "".join(pieces[1:]), options, seed, novelty))
    else:
        samples = sample_many(*drawing, range(seed, seed + count * (_TRIES if new else 1)))
        if new:
            known = text_records(trained.training_splits["train"][1:], trained.vocabulary, separator)
            samples = itertools.islice(new_records(samples, prompt, known), count)
        for own_seed, text in samples:
            show(f"{prompt}{text}{separator}" if separator else f"--- seed {own_seed} ---\n{prompt}{text}\n")
            rows.append(_row(trained, prompt, text, options, own_seed, novelty))
    unstopped = sum(row["ended_by"] != "stop" for row in rows)
    if options.stop and unstopped:
        say("stop", f"{unstopped} of {counted(len(rows), 'sample')} without a stop text")
    if novelty and not json:
        for row in rows:
            _say_novelty(row, trained.vocabulary.level)
    if json:
        print_json({"checkpoint": str(trained.path), "samples": rows})
    if len(rows) < count:
        say("new", f"gave up with {len(rows)} of {count}: the others are repeats or in the training text")


def _row(trained: Any, prompt: str, text: str, options: SamplingOptions, seed: int, novelty: bool) -> dict[str, Any]:
    """A sample as a row of --json."""
    from charlm.data.vocabulary import readable

    row: dict[str, Any] = {"seed": seed, "prompt": readable(prompt), "text": readable(text)}
    row["ended_by"] = options.ended_by(text, trained.vocabulary.level)
    if novelty:
        [answer] = trained.novelty([text])
        row["novelty"] = dict(zip(("longest", "stretch", "windows_share"), answer, strict=True))
    return row


def _say_novelty(row: dict[str, Any], level: str) -> None:
    unit = "bytes" if level == "byte" else "characters"
    longest, stretch, share = row["novelty"].values()
    line = f"shorter than a window of 20 {unit}"
    if share is not None:
        line = f"{share:.1%} of its windows of 20 {unit} occur in the training text"
    if longest:
        line += f"; the longest copy has {longest} {unit}: {stretch!r}"
    say("novelty", f"seed {row['seed']}; {line}")


def next_characters(
    checkpoint: usage.Checkpoint,
    prompt: Annotated[
        str, usage.option("TEXT", "Text to read first; without it the model is at the start of a line.")
    ] = "",
    top: Annotated[
        int, usage.option("K", "How many characters to list; bytes for a byte model.", min=1, max=LARGEST)
    ] = 5,
    device: usage.Device = "auto",
    precision: usage.Precision = "auto",
    json: usage.Json = False,
) -> None:
    """List the likeliest next characters and their probabilities, as `charlm sample` uses them at temperature 1.

    \b
    Example:
      charlm next runs/mine --prompt "To b" --top 20 --json
    """
    trained = open_model(checkpoint, device, precision)

    from charlm.data.vocabulary import readable

    prompt = known_text(trained, prompt, "--prompt")
    likeliest = trained.next(prompt, k=top)
    name = "character"
    if trained.vocabulary.level == "byte":
        name = "byte"
        likeliest = [(character.encode("utf-8", "surrogateescape"), p) for character, p in likeliest]
    if json:
        rows = [{name: symbol[0], "probability": p} for symbol, p in likeliest]  # b"x"[0] is a number
        print_json({"checkpoint": str(trained.path), "prompt": readable(prompt), "next": rows})
    else:
        print_table({repr(symbol): f"{p:.4f}" for symbol, p in likeliest})
