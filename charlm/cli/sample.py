"""charlm sample."""

import secrets
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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
    with_options,
)
from charlm.inference.options import SamplingOptions
from charlm.system.console import say
from charlm.system.formatting import counted, printable

Prompt = Annotated[str | None, typer.Option(metavar="TEXT", help="Text to continue.")]
PromptFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Read the prompt from a file; - is stdin.")]
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


@with_options(SamplingOptions)
def sample(
    checkpoint: CheckpointPath,
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
    if (unique or novel) and novelty:
        raise usage_error("--novelty excludes --unique and --novel")
    check_there(runs=[checkpoint])
    check_files(prompt_file=prompt_file)

    from charlm.data.vocabulary import readable
    from charlm.inference import load
    from charlm.inference.line_samples import sample_lines

    trained = load(checkpoint, device, precision)
    if (unique or novel) and trained.network.begins is None:
        raise usage_error("--unique and --novel need a model of lines (`charlm train TEXT --lines`)")
    if label is not None and not trained.labels:
        raise usage_error("--label needs a model with labels (data.label_separator)")
    prefix = "" if label is None else trained.label_prefix(label)
    if device == "auto" and precision in ("auto", "fp32"):
        trained = trained.for_sampling()
    report_backend(trained)
    text = _prompt(trained, prompt or "", prompt_file, skip_unknown)
    _check_stop(trained, options.stop)
    if novelty:
        trained.training_splits("--novelty")  # fail now, not after the sample
    if seed is None:
        seed = secrets.randbelow(2**32)
        say("seed", str(seed))

    kinds = Counter[str]()
    of_lines = trained.network.begins is not None and not novelty
    if of_lines:
        lines = sample_lines(trained, text, options, seed, count, label=label, unique=unique, novel=novel)
        samples = _new_lines(lines, kinds)
    else:
        samples = _samples(trained, prefix + text, options, range(seed, seed + count), side_by_side=json)
    rows: list[dict[str, Any]] = []
    for own_seed, pieces in samples:
        if count > 1 and not (json or of_lines):
            typer.echo(f"--- seed {own_seed} ---")
        sample = "".join(pieces) if json else _print(text, pieces, trained.vocabulary.backward)
        rows.append({"seed": own_seed, "prompt": readable(text), "text": readable(sample)})
        if novelty:
            [copied] = trained.novelty([sample])
            rows[-1]["novelty"] = vars(copied)
            if not json:
                say("novelty", _novelty_line(own_seed, copied, trained.vocabulary.level))
    if json:
        labeled = {} if label is None else {"label": readable(label)}
        # The texts of a model that reads backward stand before their prompts.
        direction = {"direction": "backward"} if trained.vocabulary.backward else {}
        print_json({"checkpoint": str(trained.path), **labeled, **direction, "samples": rows})
    if unique or novel:
        copies, repeats = counted(kinds["copy"], "line"), counted(kinds["repeat"], "repeat")
        missing = f"; gave up with {kinds['new']} of {count}" if kinds["new"] < count else ""
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
    from charlm.data.kinds import check_text
    from charlm.data.reading import arriving
    from charlm.errors import DataError

    try:
        data = b"".join(arriving("-")) if str(file) == "-" else file.read_bytes()
        if level == "char":
            check_text("stdin" if str(file) == "-" else file, data)
        return data.decode("utf-8", "surrogateescape") if level == "byte" else data.decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"--prompt-file {file}: {error.strerror}; allowed: a text file, or - for stdin") from None
    except UnicodeDecodeError as error:
        raise DataError(f"--prompt-file {file}: found no UTF-8 at byte offset {error.start}; allowed: UTF-8") from None


def _check_stop(trained: Any, stop: str) -> None:
    """VocabularyError if the model can never write the text that a sample is to end with."""
    from charlm.data.vocabulary import describe_characters
    from charlm.errors import VocabularyError

    check_escapes(trained, stop, "--stop")
    if unknown := trained.vocabulary.unknown(stop):
        raise VocabularyError(
            f"--stop: found {describe_characters(unknown)}, which the model never writes; "
            f"allowed: its {counted(len(trained.vocabulary), 'character')}{trained.vocabulary.advice(unknown)}"
        )


Samples = Iterator[tuple[int, Iterable[str]]]
"""The seed of each sample, and its pieces."""


def _samples(
    trained: Any, prompt: str, options: SamplingOptions, seeds: Sequence[int], *, side_by_side: bool
) -> Samples:
    """One sample per seed: side by side, or one after another, as their pieces are taken."""
    from charlm.inference import sample_text

    if side_by_side:
        steps = sample_text(trained.network, trained.vocabulary, prompt, options, seeds)
        yield from zip(seeds, zip(*steps, strict=True), strict=True)
        return
    for seed in seeds:
        yield seed, (piece for [piece] in sample_text(trained.network, trained.vocabulary, prompt, options, [seed]))


def _new_lines(lines: Iterable[tuple[int, str, str]], kinds: Counter[str]) -> Samples:
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


def _print(prompt: str, pieces: Iterable[str], backward: bool) -> str:
    """Write the prompt, and after it, or before it if `backward`, a sample as it comes; returns the sample alone.

    A file or pipe gets the exact bytes of a byte model; a terminal gets no control characters.
    """
    written, terminal = [], sys.stdout.isatty()

    def write(text: str) -> None:
        sys.stdout.write(printable(text) if terminal else text)
        sys.stdout.flush()

    if not backward:
        write(prompt)
    for piece in pieces:
        write(piece)
        written.append(piece)
    write(f"{prompt}\n" if backward else "\n")
    return "".join(written)
