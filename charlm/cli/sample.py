"""charlm sample, charlm next."""

import itertools
import re
import secrets
from collections.abc import Container, Iterator
from dataclasses import fields, replace
from typing import Annotated, Any

import typer

from charlm.cli import usage
from charlm.cli.common import known_text, open_model, print_exactly, print_json, print_table
from charlm.inference.options import SamplingOptions
from charlm.system.console import say
from charlm.system.formatting import counted, readable
from charlm.system.number import LARGEST

_LENGTHS = re.compile(r"(?:(\d{1,10})-)?(\d{1,10})", re.ASCII)
_TRIES = 20
"""Samples that are drawn for each one wanted, at most."""
_NOTHING_FOUND = 3
"""The exit code if no sample matches, or none is new."""

Prompt = Annotated[str, usage.option("TEXT", "Text to continue; for a model of records, the beginning of a record.")]
_about = {option.name: option.metadata["about"] for option in fields(SamplingOptions)}
Length = Annotated[str, usage.option("N", f"{_about['length']} 100-500: --stop ends no sample before 100.")]
Temperature = Annotated[float, usage.option("X", _about["temperature"])]
TopK = Annotated[int, usage.option("K", _about["top_k"])]
TopP = Annotated[float, usage.option("P", _about["top_p"])]
Stop = Annotated[list[str] | None, usage.option("TEXT", f"{_about['stop']}; repeatable.")]
Ban = Annotated[str, usage.option("CHARS", _about["ban"])]
Match = Annotated[
    str | None,
    usage.option("REGEX", f"Keep only samples that match, prompt included; draws at most {_TRIES} for each."),
]
Prompts = Annotated[
    str | None, usage.option("FILE", "Read prompts, one per line (- is stdin), and print one line of JSON per sample.")
]
Count = Annotated[int, usage.option("N", "How many samples to write.", min=1, max=10_000)]
Seed = Annotated[
    int | None,
    usage.option("N", "The same seed gives the same text; the next sample has seed + 1.", min=0, max=2**63 - 1),
]
New = Annotated[
    bool,
    typer.Option("--new", help="For a model of records: leave out repeats, and records that it was trained on."),
]


def sample(
    checkpoint: usage.Checkpoint,
    prompt: Prompt = "",
    prompts: Prompts = None,
    length: Length = str(SamplingOptions.length),
    temperature: Temperature = SamplingOptions.temperature,
    top_k: TopK = SamplingOptions.top_k,
    top_p: TopP = SamplingOptions.top_p,
    stop: Stop = None,
    ban: Ban = "",
    match: Match = None,
    count: Count = 1,
    seed: Seed = None,
    new: New = False,
    device: usage.Device = "auto",
    precision: usage.Precision = "auto",
    json: usage.Json = False,
) -> None:
    """Write text with a trained model.

    Prints the prompt, and then each character as it is drawn. --json gives the text without the prompt, and what ended
    it: stop, length, or record (the end of a record). The exit code is 3 if no sample matches, or none is new.

    \b
    Examples:
      charlm sample runs/quickstart-20260102-030405
      charlm sample runs/mine --prompt "ROMEO:" --length 1000 --temperature 0.7 --seed 1
      charlm sample runs/mine --prompt "def " --stop $'\\n\\n' --count 5 --json
      charlm sample runs/mine/checkpoints/last.safetensors --top-p 0.9
      charlm sample runs/names --count 50 --new
      charlm sample runs/titles --prompt $'horror\\t' --count 10
    """
    usage.refuse_if(prompts is not None and prompt, "--prompt and --prompts exclude one another")
    least, most = _lengths(length)
    usage.refuse_if(least and not stop, f"--length {length} needs --stop, which ends a sample after {least} characters")
    try:
        stops = [usage.unescaped(text) for text in stop or ()]
        options = SamplingOptions(most, temperature, top_k, top_p, least, usage.unescaped(ban), stops)
    except ValueError as refused:
        name, _, fault = str(refused).partition(":")
        raise usage.error(f"--{name.replace('_', '-')}:{fault}") from None
    wanted = usage.regex("--match", match or "")
    trained = open_model(checkpoint, device, precision, prompts)

    from charlm.data.records import arriving_records
    from charlm.inference.sampling import sample_text
    from charlm.inference.seen import seen_records

    separator = trained.config.data.records
    usage.refuse_if(new and not separator, "--new needs a model of records (`charlm train TEXT --lines`)")
    prompt = _checked(trained, prompt, "--prompt")
    options = replace(options, stop=[known_text(trained, text, "--stop") for text in options.stop])
    if seed is None:
        seed = secrets.randbelow(2**32)
        say("seed", str(seed))
    known = None
    if new:
        seen, _ = trained.seen
        known = frozenset(map(hash, seen_records(seen, trained.vocabulary, separator)))
    nothing = typer.Exit(_NOTHING_FOUND if new or match else 0)
    if prompts is not None:
        found = 0
        lines = itertools.chain.from_iterable(arriving_records(prompts, trained.vocabulary, ""))
        for number, line in enumerate(lines, 1):
            line = _checked(trained, line, f"--prompts, line {number}")
            for _, row in _drawn(trained, line, options, seed, count, wanted, known):
                print_json(row)
                found += 1
        if not found:
            raise nothing
        return
    show = (lambda text: None) if json else print_exactly
    rows: list[dict[str, Any]] = []
    if count == 1 and known is None and match is None:
        text = ""
        show(prompt)
        for [piece] in sample_text(trained.network, trained.vocabulary, prompt, options, [seed]):
            show(piece)
            text += piece
        show("\n")
        rows.append(_row(trained, prompt, text, options, seed))
    else:
        for text, row in _drawn(trained, prompt, options, seed, count, wanted, known):
            show(f"{prompt}{text}{separator}" if separator else f"--- seed {row['seed']} ---\n{prompt}{text}\n")
            rows.append(row)
    unstopped = sum(row["ended_by"] != "stop" for row in rows)
    if options.stop and unstopped:
        say("stop", f"{unstopped} of {counted(len(rows), 'sample')} without a stop text")
    if json:
        print_json({"checkpoint": str(trained.path), "samples": rows})
    if not rows:
        raise nothing


def _lengths(length: str) -> tuple[int, int]:
    """The least and the most characters of a sample."""
    found = _LENGTHS.fullmatch(length)
    least, most = (int(found[1] or 0), int(found[2])) if found else (1, 0)
    if least > most:
        raise usage.error(f"--length: found {length!r}; allowed: an integer such as 500, or two such as 100-500")
    return least, most


def _checked(trained: Any, prompt: str, option: str) -> str:
    """A prompt in the model's characters; a usage error if it ends a record."""
    from charlm.data.records import holds_end

    separator = trained.config.data.records
    if separator and holds_end(prompt, separator):
        raise usage.error(f"{option}: found {separator!r}, the end of a record; allowed: the beginning of one record")
    return known_text(trained, prompt, option)


def _drawn(
    trained: Any,
    prompt: str,
    options: SamplingOptions,
    seed: int,
    count: int,
    wanted: re.Pattern[str],
    known: Container[int] | None,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield samples that match, and their rows of --json, until there are `count`; prints how many it drew.

    known: hashes of records: leave out these records, and repeats; None: neither.
    """
    from charlm.inference.sampling import sample_many

    wanted = trained.vocabulary.canonical_pattern(wanted)
    is_choosing = known is not None or bool(wanted.pattern)
    seeds = range(seed, seed + count * (_TRIES if is_choosing else 1))
    found, last, drawn_records = 0, seed - 1, set[int]()
    for last, text in sample_many(trained.network, trained.vocabulary, prompt, options, seeds):
        if known is not None:
            record = hash(prompt + text)
            if record in known or record in drawn_records:
                continue
            drawn_records.add(record)
        if wanted.search(prompt + text):
            found += 1
            yield text, _row(trained, prompt, text, options, last)
            if found == count:
                break
    if is_choosing:
        drawn = len(seeds) if found < count else last - seed + 1
        say("drawn", f"{counted(drawn, 'sample')} for {found} of {count}")


def _row(trained: Any, prompt: str, text: str, options: SamplingOptions, seed: int) -> dict[str, Any]:
    row: dict[str, Any] = {"seed": seed, "prompt": readable(prompt), "text": readable(text)}
    row["ended_by"] = options.ended_by(text, trained.vocabulary.level)
    return row


def next_characters(
    checkpoint: usage.Checkpoint,
    prompt: Annotated[str, usage.option("TEXT", "Text before the character; default: the start of a line.")] = "",
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
