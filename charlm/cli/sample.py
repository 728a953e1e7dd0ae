"""charlm sample."""

import io
import itertools
import secrets
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from charlm.cli.common import (
    CheckpointPath,
    Device,
    DeviceOption,
    Json,
    SkipUnknown,
    print_json,
    report_slow_layers,
    trained_splits,
    usage_error,
)
from charlm.system.console import say
from charlm.system.formatting import printable


def sample(
    checkpoint: CheckpointPath,
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="Text to go on from.")] = None,
    prompt_file: Annotated[Path | None, typer.Option(metavar="FILE", help="The same, from a file; -: stdin.")] = None,
    length: Annotated[
        int, typer.Option(min=1, max=10**9, metavar="N", help="Characters to write (bytes at data.level: byte).")
    ] = 500,
    temperature: Annotated[
        float,
        typer.Option(min=0, metavar="X", help="Below 1: safer; above: wilder; 0: always the likeliest character."),
    ] = 0.8,
    top_k: Annotated[
        int, typer.Option(min=0, metavar="K", help="Draw among the k likeliest characters only; 0: all.")
    ] = 0,
    top_p: Annotated[
        float,
        typer.Option(
            min=0, max=1, metavar="P", help="Draw among the likeliest characters that make up this probability."
        ),
    ] = 1.0,
    count: Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help="Samples to write.")] = 1,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=2**63 - 1,
            metavar="N",
            help="Of the first sample, the next has seed + 1; none: a new one, printed.",
        ),
    ] = None,
    stop: Annotated[str, typer.Option(metavar="TEXT", help="End a sample where this text first occurs in it.")] = "",
    novelty: Annotated[
        bool,
        typer.Option(
            "--novelty",
            help="Tell on stderr (or in --json) how much of each sample stands verbatim in the training text: its "
            "longest such stretch, and the share of its windows of 20 characters. The prompt does not count.",
        ),
    ] = False,
    skip_unknown: SkipUnknown = False,
    device: DeviceOption = Device.auto,
    json: Json = False,
) -> None:
    """Write text with a trained model, the prompt first, character by character as it is made.

    \b
    Examples:
      charlm sample runs/quickstart-20260102-030405
      charlm sample runs/mine --prompt "ROMEO:" --length 1000 --temperature 0.7 --seed 1
      charlm sample runs/mine --prompt "def " --stop $'\\n\\n' --count 5 --json
      charlm sample runs/mine/checkpoints/last.safetensors --top-p 0.95
      charlm sample runs/mine --length 2000 --novelty
    """
    if prompt is not None and prompt_file is not None:
        raise usage_error("--prompt and --prompt-file exclude one another")
    for name, value in (("--temperature", temperature), ("--top-p", top_p)):
        if not 0 <= value < float("inf"):
            raise usage_error(f"{name}: found {value}; allowed: a finite number")

    from charlm.checkpoint import find_checkpoint, load_model, read_checkpoint
    from charlm.data.vocabulary import describe_characters, readable
    from charlm.errors import VocabularyError
    from charlm.inference.sampling import Choice, sample_text
    from charlm.system.device import resolve_device

    where = resolve_device(device)
    path = find_checkpoint(checkpoint)
    loaded = read_checkpoint(path)
    model = load_model(loaded, where)
    report_slow_layers(model, where)
    text = _read_prompt(prompt_file, loaded.vocabulary.level) if prompt_file is not None else prompt or ""
    text = _known(text, "--prompt" if prompt_file is None else f"--prompt-file {prompt_file}", loaded, skip_unknown)
    if never := loaded.vocabulary.unknown(stop):
        raise VocabularyError(
            f"--stop: found {describe_characters(never)}, which the model never writes; "
            f"allowed: its {len(loaded.vocabulary)} characters"
        )
    train_ids = trained_splits(loaded, "--novelty")["train"] if novelty else None
    if seed is None:
        seed = secrets.randbelow(2**32)
        say("seed", str(seed))
    seeds = [seed + n for n in range(count)]

    def pieces(of: list[int]) -> Iterator[list[str]]:
        return sample_text(
            model,
            loaded.vocabulary,
            prompt=text,
            length=length,
            choice=Choice(temperature, top_k, top_p),
            seeds=of,
            device=where,
            stop=stop,
        )

    if json:
        texts = ["".join(parts) for parts in zip(*pieces(seeds), strict=True)]
        samples = [
            {"seed": s, "prompt": readable(text), "text": readable(t)} for s, t in zip(seeds, texts, strict=True)
        ]
        if train_ids is not None:
            found = _found_in(train_ids, texts, loaded.vocabulary)
            samples = [sample | {"novelty": each} for sample, each in zip(samples, found, strict=True)]
        print_json({"checkpoint": str(path), "samples": samples})
        return
    for each in seeds:
        if count > 1:
            typer.echo(f"--- seed {each} ---")
        written = _stream(text, (piece for [piece] in pieces([each])))
        if train_ids is not None:
            [found] = _found_in(train_ids, [written], loaded.vocabulary)
            say("novelty", _novelty_line(each, found, loaded.vocabulary.level))


def _found_in(train_ids: Any, texts: list[str], vocabulary: Any) -> list[dict[str, Any]]:
    """What of each text stands in the training text, its longest stretch as a text."""
    from charlm.inference.novelty import novelty

    samples = [vocabulary.encode(text) for text in texts]
    return [
        {
            "longest": found.longest,
            "stretch": vocabulary.decode(ids[found.start : found.start + found.longest].tolist()),
            "windows_share": found.windows_share,
        }
        for ids, found in zip(samples, novelty(samples, train_ids), strict=True)
    ]


def _novelty_line(seed: int, found: dict[str, Any], level: str) -> str:
    unit = "bytes" if level == "byte" else "characters"
    share = found["windows_share"]
    windows = f"shorter than 20 {unit}" if share is None else f"{share:.1%} of its windows of 20 {unit}"
    return (
        f"seed {seed}; verbatim in the training text: {windows}; "
        f"at most {found['longest']} {unit} in a row: {found['stretch']!r}"
    )


def _stream(prompt: str, pieces: Iterable[str]) -> str:
    """Write as it comes: to a file or pipe the very bytes of a byte model, to a terminal nothing that it would obey.

    Returns what was written behind the prompt.
    """
    written = []
    terminal = sys.stdout.isatty()
    if isinstance(sys.stdout, io.TextIOWrapper) and not terminal:
        sys.stdout.reconfigure(errors="surrogateescape")
    for piece in itertools.chain([prompt], pieces):
        sys.stdout.write(printable(piece) if terminal else piece)
        sys.stdout.flush()
        written.append(piece)
    sys.stdout.write("\n")
    sys.stdout.flush()
    return "".join(written[1:])


def _read_prompt(file: Path, level: str) -> str:
    from charlm.errors import DataError

    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return data.decode("utf-8", "surrogateescape") if level == "byte" else data.decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"--prompt-file {file}: {error.strerror}; allowed: a text file, or - for stdin") from None
    except UnicodeDecodeError as error:
        raise DataError(f"--prompt-file {file}: found no UTF-8 at byte offset {error.start}; allowed: UTF-8") from None


def _known(text: str, where: str, loaded: Any, skip_unknown: bool) -> str:
    """The prompt without what the model has no character for, if that is asked for; else an error names it."""
    from charlm.data.vocabulary import describe_characters
    from charlm.errors import VocabularyError

    vocabulary = loaded.vocabulary
    unknown = vocabulary.unknown(text)
    if not unknown:
        return text
    listed = describe_characters(unknown)
    if not skip_unknown:
        raise VocabularyError(
            f"{where}: found {listed}, which the model has never seen; allowed: its {len(vocabulary)} characters; "
            "--skip-unknown leaves others out"
        )
    say("skipped", f"{where}: {listed}")
    return "".join(c for c in text if c not in unknown)
