"""charlm sample."""

import secrets
import sys
from collections.abc import Iterable
from pathlib import Path
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
    check_escapes,
    check_files,
    known_prompt,
    print_json,
    report_backend,
    usage_error,
)
from charlm.system.console import say
from charlm.system.formatting import counted, printable

Prompt = Annotated[str | None, typer.Option(metavar="TEXT", help="Text to continue.")]
PromptFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Read the prompt from a file; - is stdin.")]
Length = Annotated[
    int, typer.Option(min=1, max=10**9, metavar="N", help="Characters to write; bytes for a byte model.")
]
Temperature = Annotated[
    float,
    typer.Option(
        min=0, metavar="X", help="Below 1 is safer, above 1 is wilder; 0 always takes the likeliest character."
    ),
]
TopK = Annotated[int, typer.Option(min=0, metavar="K", help="Draw from the K likeliest characters only; 0 for all.")]
TopP = Annotated[
    float,
    typer.Option(
        min=0, max=1, metavar="P", help="Draw from the likeliest characters that together have probability P."
    ),
]
MinP = Annotated[
    float,
    typer.Option(
        min=0,
        max=1,
        metavar="P",
        help="Draw from the characters at least P times as likely as the likeliest; 0 for all.",
    ),
]
Count = Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help="How many samples to write.")]
Seed = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=2**63 - 1,
        metavar="N",
        help="The same seed gives the same text; further samples take seed + 1, seed + 2, …  "
        "[default: a new one, printed on stderr]",
    ),
]
Stop = Annotated[str, typer.Option(metavar="TEXT", help="End the sample as soon as it contains this text.")]
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
    str | None,
    typer.Option(metavar="TEXT", help="With a model of labels: write lines with this label, and not the label."),
]


def sample(
    checkpoint: CheckpointPath,
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    label: Label = None,
    length: Length = 500,
    temperature: Temperature = 0.8,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    count: Count = 1,
    seed: Seed = None,
    stop: Stop = "",
    novelty: Novelty = False,
    unique: Unique = False,
    novel: Novel = False,
    skip_unknown: SkipUnknown = False,
    device: DeviceOption = "auto",
    precision: PrecisionOption = Precision.auto,
    json: Json = False,
) -> None:
    """Write text with a trained model.

    Prints the prompt, then one character after another as the model draws them. A model that reads backward writes to
    the left of the prompt; its text is printed when it is done. With --json the text comes without the prompt, as it
    does from `sample` in Python.

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
    if prompt is not None and prompt_file is not None:
        raise usage_error("--prompt and --prompt-file exclude one another")
    for name, value in (("--temperature", temperature), ("--top-p", top_p), ("--min-p", min_p)):
        if not 0 <= value < float("inf"):
            raise usage_error(f"{name}: found {value}; allowed: a finite number")

    check_there(runs=[checkpoint])
    check_files(prompt_file=prompt_file)

    from functools import partial

    from charlm.inference import Choice, load
    from charlm.inference.line_samples import LineSamples

    trained = load(checkpoint, device, precision)
    if (unique or novel) and trained.network.begins is None:
        raise usage_error("--unique and --novel need a model of lines (`charlm train TEXT --lines`)")
    if label is not None and not trained.labels:
        raise usage_error("--label needs a model with labels (data.label_separator)")
    prefix = "" if label is None else trained.label_prefix(label)
    if (unique or novel) and novelty:
        raise usage_error("--novelty excludes --unique and --novel")
    if device == "auto" and precision in ("auto", "fp32"):
        trained = trained.for_sampling()
    report_backend(trained)
    text = _prompt(trained, prompt or "", prompt_file, skip_unknown)
    check_escapes(trained, stop, "--stop")
    trained.check_stop(stop)
    if novelty:
        trained.training_splits("--novelty")  # fail now, not after the sample
    if seed is None:
        seed = secrets.randbelow(2**32)
        say("seed", str(seed))
    if trained.network.begins is not None and not novelty:
        choice = Choice(temperature, top_k, top_p, min_p)
        _write_lines(LineSamples(trained, text, seed, length, choice, stop, unique, novel, label), count, json)
        return
    seeds = [seed + n for n in range(count)]
    write = partial(
        trained.stream, prefix + text, length=length, choice=Choice(temperature, top_k, top_p, min_p), stop=stop
    )
    if json:
        texts = ["".join(parts) for parts in zip(*write(seeds), strict=True)]
        print_json(_as_json(trained, label, _samples(trained, seeds, text, texts, novelty)))
        return
    for each in seeds:
        if count > 1:
            typer.echo(f"--- seed {each} ---")
        written = _stream(text, (piece for [piece] in write([each])), trained.vocabulary.backward)
        if novelty:
            say("novelty", _novelty_line(each, vars(trained.novelty([written])[0]), trained.vocabulary.level))


def _write_lines(samples: Any, count: int, json: bool) -> None:
    """A line for each sample; then how many were dropped, if any could be."""
    from charlm.data.vocabulary import readable

    found = []
    for seed, text in samples.drawn(count):
        found.append({"seed": seed, "prompt": readable(samples.prompt), "text": readable(text)})
        if not json:
            _stream(samples.prompt, [text], samples.trained.vocabulary.backward)
    if json:
        print_json(_as_json(samples.trained, samples.label, found))
    if samples.unique or samples.novel:
        missing = f"; gave up with {len(found)} of {count}" if len(found) < count else ""
        copies, repeats = counted(samples.copies, "line"), counted(samples.repeats, "repeat")
        say("dropped", f"{copies} of the training text, {repeats}{missing}")


def _prompt(trained: Any, text: str, file: Path | None, skip_unknown: bool) -> str:
    """The prompt, from the option or the file, without unknown characters."""
    where = "--prompt"
    if file is not None:
        where = f"--prompt-file {file}"
        text = _read_prompt(file, trained.vocabulary.level)
        if trained.network.begins is not None:  # the end of the file's line
            text = text.removesuffix("\n").removesuffix("\r")
    if trained.network.begins is not None and "\n" in text:
        raise usage_error(f"{where}: found a line end; allowed with a model of lines: a part of one line")
    return known_prompt(trained, text, where, skip_unknown)


def _read_prompt(file: Path, level: str) -> str:
    from charlm.data.arriving import open_arriving
    from charlm.data.kinds import check_text
    from charlm.errors import DataError

    try:
        data = b"".join(open_arriving("-").blocks()) if str(file) == "-" else file.read_bytes()
        if level == "char":
            check_text("stdin" if str(file) == "-" else file, data)
        return data.decode("utf-8", "surrogateescape") if level == "byte" else data.decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"--prompt-file {file}: {error.strerror}; allowed: a text file, or - for stdin") from None
    except UnicodeDecodeError as error:
        raise DataError(f"--prompt-file {file}: found no UTF-8 at byte offset {error.start}; allowed: UTF-8") from None


def _samples(trained: Any, seeds: list[int], prompt: str, texts: list[str], novelty: bool) -> list[dict[str, Any]]:
    """The samples as JSON."""
    from charlm.data.vocabulary import readable

    samples = [
        {"seed": seed, "prompt": readable(prompt), "text": readable(text)}
        for seed, text in zip(seeds, texts, strict=True)
    ]
    if not novelty:
        return samples
    found = trained.novelty(texts)
    return [sample | {"novelty": vars(each)} for sample, each in zip(samples, found, strict=True)]


def _as_json(trained: Any, label: str | None, samples: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole result, with the label if there is one.

    A model that reads backward says so, because its texts stand before their prompts.
    """
    from charlm.data.vocabulary import readable

    named = {} if label is None else {"label": readable(label)}
    direction = {"direction": "backward"} if trained.vocabulary.backward else {}
    return {"checkpoint": str(trained.path), **named, **direction, "samples": samples}


def _novelty_line(seed: int, found: dict[str, Any], level: str) -> str:
    unit = "bytes" if level == "byte" else "characters"
    share = found["windows_share"]
    windows = f"shorter than 20 {unit}" if share is None else f"{share:.1%} of its windows of 20 {unit}"
    return (
        f"seed {seed}; verbatim in the training text: {windows}; "
        f"at most {found['longest']} {unit} in a row: {found['stretch']!r}"
    )


def _stream(prompt: str, pieces: Iterable[str], backward: bool = False) -> str:
    """Write the prompt, and after it, or before it if `backward`, the text as it comes; returns the text alone.

    A file or pipe gets the exact bytes of a byte model; a terminal gets no control characters.
    """
    written = []
    terminal = sys.stdout.isatty()

    def write(piece: str) -> None:
        sys.stdout.write(printable(piece) if terminal else piece)
        sys.stdout.flush()

    if not backward:
        write(prompt)
    for piece in pieces:
        write(piece)
        written.append(piece)
    if backward:
        write(prompt)
    write("\n")
    return "".join(written)
