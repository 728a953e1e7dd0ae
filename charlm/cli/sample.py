"""charlm sample, charlm next."""

import functools
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from charlm.cli import usage
from charlm.cli.common import (
    known_prompt,
    open_model,
    print_exactly,
    print_json,
    print_table,
    read_text,
)  # fmt: skip
from charlm.errors import VocabularyError
from charlm.inference.options import SamplingOptions
from charlm.system.console import say
from charlm.system.formatting import counted

Prompt = Annotated[str | None, usage.option("TEXT", "Text to continue.")]
PromptFile = Annotated[Path | None, usage.option("FILE", "Read the prompt from a file; - is stdin.")]
Count = Annotated[int, usage.option("N", "How many samples to write.", min=1, max=10_000)]
Seed = Annotated[
    int | None,
    usage.option(
        "N",
        "The same seed gives the same text; further samples take seed + 1, seed + 2, …  "
        "[default: a new one, printed on stderr]",
        min=0,
        max=2**63 - 1,
    ),
]
Novelty = Annotated[
    bool,
    typer.Option(
        "--novelty",
        help="Say how much of each sample is copied from the training text: the longest copied stretch, and the share "
        "of 20-character windows that occur there. The prompt does not count.",
    ),
]
Unique = Annotated[bool, typer.Option("--unique", help="With a model of lines: write other lines in place of repeats.")]
Novel = Annotated[
    bool,
    typer.Option("--novel", help="With a model of lines: write other lines in place of those of the training text."),
]
Label = Annotated[
    str | None, usage.option("TEXT", "With a model of labels: write lines with this label, and not the label.")
]


@usage.with_options(SamplingOptions)
def sample(
    checkpoint: usage.Checkpoint,
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    label: Label = None,
    *,
    options: SamplingOptions,
    count: Count = 1,
    seed: Seed = None,
    novelty: Novelty = False,
    unique: Unique = False,
    novel: Novel = False,
    skip_unknown: usage.SkipUnknown = False,
    device: usage.Device = "auto",
    precision: usage.Precision = "auto",
    json: usage.Json = False,
) -> None:
    """Write text with a trained model.

    Prints the prompt, then one character after another as the model draws them. With --json the text comes without the
    prompt, as it does from `sample` in Python.

    \b
    Examples:
      charlm sample runs/quickstart-20260102-030405
      charlm sample runs/mine --prompt "ROMEO:" --length 1000 --temperature 0.7 --seed 1
      charlm sample runs/mine --prompt "def " --stop $'\\n\\n' --count 5 --json
      charlm sample runs/mine/checkpoints/last.safetensors --min-p 0.05
      charlm sample runs/mine --length 2000 --novelty
      charlm sample runs/names --count 50 --novel --unique
      charlm sample runs/titles --label horror --count 10
    """
    usage.refuse_if(prompt is not None and prompt_file is not None, "--prompt and --prompt-file exclude one another")
    usage.refuse_if((unique or novel) and novelty, "--novelty excludes --unique and --novel")
    trained = open_model(checkpoint, device, precision, prompt_file, samples=True)
    is_line_model, vocabulary = trained.network.is_line_model, trained.vocabulary
    if (unique or novel) and not is_line_model:
        raise usage.error("--unique and --novel need a model of lines (`charlm train TEXT --lines`)")
    if label is not None and not trained.labels:
        raise usage.error("--label needs a model with labels (data.label_separator)")
    prefix = "" if label is None else trained.label_prefix(label)

    from charlm.data.vocabulary import readable
    from charlm.inference import sample_text
    from charlm.inference.line_samples import sample_lines

    text = _prompt(trained, prompt or "", prompt_file, skip_unknown)
    _check_stop(trained, options.stop)
    if novelty:
        trained.training_splits("--novelty")  # fail now, not after the sample
    if seed is None:
        seed = secrets.randbelow(2**32)
        say("seed", str(seed))

    kinds, seeds = Counter[str](), range(seed, seed + count)
    samples: Iterable[tuple[int, Iterable[str]]]  # the seed of each, and its pieces
    if is_line_model and not novelty:
        lines = sample_lines(trained, text, options, seed, count, label=label, unique=unique, novel=novel)
        samples = _new_lines(lines, kinds)
    elif json:  # side by side
        steps = sample_text(trained.network, vocabulary, prefix + text, options, seeds)
        samples = zip(seeds, zip(*steps, strict=True), strict=True)
    else:  # as they are drawn
        draw = functools.partial(sample_text, trained.network, vocabulary, prefix + text, options)
        samples = ((each, (piece for [piece] in draw([each]))) for each in seeds)
    rows: list[dict[str, Any]] = []
    for own_seed, pieces in samples:
        if count > 1 and not json and (novelty or not is_line_model):
            typer.echo(f"--- seed {own_seed} ---")
        sample = "".join(pieces) if json else _print(text, pieces)
        rows.append({"seed": own_seed, "prompt": readable(text), "text": readable(sample)})
        if novelty:
            [copied] = trained.novelty([sample])
            rows[-1]["novelty"] = vars(copied)
            if not json:
                say("novelty", _novelty_line(own_seed, copied, vocabulary.level))
    if json:
        labeled = {} if label is None else {"label": readable(label)}
        print_json({"checkpoint": str(trained.path), **labeled, "samples": rows})
    if unique or novel:
        copies, repeats = counted(kinds["copy"], "line"), counted(kinds["repeat"], "repeat")
        missing = f"; gave up with {kinds['new']} of {count}" if kinds["new"] < count else ""
        say("dropped", f"{copies} of the training text, {repeats}{missing}")


def _prompt(trained: Any, text: str, file: Path | None, skip_unknown: bool) -> str:
    """The prompt, from the option or the file, without unknown characters."""
    where = "--prompt"
    if file is not None:
        where = f"--prompt-file {file}"
        text = read_text(trained, file)
        if trained.network.is_line_model:  # the end of the file's line
            text = text.removesuffix("\n")
    if trained.network.is_line_model and "\n" in text:
        raise usage.error(f"{where}: found a line end; allowed with a model of lines: a part of one line")
    return known_prompt(trained, text, where, skip_unknown)


def _check_stop(trained: Any, stop: str) -> None:
    """VocabularyError if the model can never write the text that a sample is to end with."""
    from charlm.data.vocabulary import describe_characters

    if unknown := trained.vocabulary.unknown(stop):
        raise VocabularyError(
            f"--stop: found {describe_characters(unknown)}, which the model never writes; "
            f"allowed: its {counted(len(trained.vocabulary), 'character')}"
        )


def _new_lines(lines: Iterable[tuple[int, str, str]], kinds: Counter[str]) -> Iterator[tuple[int, Iterable[str]]]:
    """The new ones of these lines; counts all by their kind."""
    for seed, line, kind in lines:
        kinds[kind] += 1
        if kind == "new":
            yield seed, [line]


def _novelty_line(seed: int, copied: Any, level: str) -> str:
    unit = "bytes" if level == "byte" else "characters"
    share = copied.windows_share
    windows = f"shorter than 20 {unit}" if share is None else f"{share:.1%} of its windows of 20 {unit}"
    return (
        f"seed {seed}; verbatim in the training text: {windows}; "
        f"at most {copied.longest} {unit} in a row: {copied.stretch!r}"
    )


def _print(prompt: str, pieces: Iterable[str]) -> str:
    """Write the prompt, and after it a sample as it comes; returns the sample alone."""
    print_exactly(prompt)
    written = []
    for piece in pieces:
        print_exactly(piece)
        written.append(piece)
    print_exactly("\n")
    return "".join(written)


def next_characters(
    checkpoint: usage.Checkpoint,
    prompt: Annotated[
        str, usage.option("TEXT", "Text to read first; without it the model is at the start of a line.")
    ] = "",
    top: Annotated[int, usage.option("K", "How many characters to list; bytes for a byte model.", min=1)] = 5,
    skip_unknown: usage.SkipUnknown = False,
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

    text = known_prompt(trained, prompt, "--prompt", skip_unknown)
    likeliest = trained.next(text, k=top)
    name = "character"
    if trained.vocabulary.level == "byte":
        name, likeliest = "byte", [(character.encode("utf-8", "surrogateescape"), p) for character, p in likeliest]
    if json:
        rows = [{name: symbol[0], "probability": p} for symbol, p in likeliest]  # b"x"[0] is a number
        print_json({"checkpoint": str(trained.path), "prompt": readable(text), "next": rows})
        return
    print_table({repr(symbol): f"{p:.4f}" for symbol, p in likeliest})
