"""charlm sample, charlm eval."""

import contextlib
import csv
import secrets
import sys
import unicodedata
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

import typer

from charlm.cli.common import CheckpointPath, Device, DeviceOption, Json, print_json, print_table, usage_error


def sample(
    checkpoint: CheckpointPath,
    prompt: Annotated[str | None, typer.Option(help="Text to go on from.")] = None,
    prompt_file: Annotated[Path | None, typer.Option(metavar="FILE", help="The same, from a file; -: stdin.")] = None,
    length: Annotated[
        int, typer.Option(min=1, max=10**9, help="Characters to write (bytes at data.level: byte).")
    ] = 500,
    temperature: Annotated[
        float, typer.Option(min=0, help="Below 1: safer; above: wilder; 0: always the likeliest character.")
    ] = 0.8,
    top_k: Annotated[int, typer.Option(min=0, help="Draw among the k likeliest characters only; 0: all.")] = 0,
    top_p: Annotated[
        float, typer.Option(min=0, max=1, help="Draw among the likeliest characters that make up this probability.")
    ] = 1.0,
    count: Annotated[int, typer.Option(min=1, max=10_000, help="Samples to write.")] = 1,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, max=2**63 - 1, help="Of the first sample, the next has seed + 1; none: a new one, printed."
        ),
    ] = None,
    stop: Annotated[str, typer.Option(help="End a sample with the first of these texts.")] = "",
    skip_unknown: Annotated[bool, typer.Option(help="Leave out what the model has no character for.")] = False,
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
    """
    if prompt is not None and prompt_file is not None:
        raise usage_error("--prompt and --prompt-file exclude one another")
    for name, value in (("--temperature", temperature), ("--top-p", top_p)):
        if not 0 <= value < float("inf"):
            raise usage_error(f"{name}: found {value}; allowed: a finite number")

    from charlm.checkpoint import find_checkpoint, load_model, read_checkpoint
    from charlm.device import resolve_device
    from charlm.sample import Choice, sample_text

    where = resolve_device(device)
    path = find_checkpoint(checkpoint)
    loaded = read_checkpoint(path)
    model = load_model(loaded, where)
    text = _read_prompt(prompt_file, loaded.vocabulary.level) if prompt_file is not None else prompt or ""
    text = _known(text, "--prompt" if prompt_file is None else f"--prompt-file {prompt_file}", loaded, skip_unknown)
    if seed is None:
        seed = secrets.randbelow(2**32)
        typer.echo(f"seed {seed}", err=True)
    seeds = [seed + n for n in range(count)]
    steps = sample_text(
        model,
        loaded.vocabulary,
        prompt=text,
        length=length,
        choice=Choice(temperature, top_k, top_p),
        seeds=seeds,
        device=where,
        stop=stop,
    )
    if count == 1 and not json:
        _stream(text, (piece for [piece] in steps))
        return
    texts = ["".join(pieces) for pieces in zip(*steps, strict=True)]
    if json:
        samples = [{"seed": s, "prompt": text, "text": t} for s, t in zip(seeds, texts, strict=True)]
        print_json({"checkpoint": str(path), "samples": samples})
        return
    for s, t in zip(seeds, texts, strict=True):
        typer.echo(f"--- seed {s} ---")
        _stream(text, [t])


def _stream(prompt: str, pieces: Any) -> None:
    """Write as it comes; on a terminal, control characters other than line ends and tabs as \\x1b."""
    show = _without_controls if sys.stdout.isatty() else str
    sys.stdout.write(show(prompt))
    for piece in pieces:
        sys.stdout.write(show(piece))
        sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stdout.flush()


def _without_controls(text: str) -> str:
    return "".join(c if c in "\n\t" or unicodedata.category(c) != "Cc" else f"\\x{ord(c):02x}" for c in text)


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
    from charlm.errors import VocabularyError
    from charlm.vocabulary import describe_characters

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
    typer.echo(f"prompt: left out {listed}", err=True)
    return "".join(c for c in text if c not in unknown)


class Split(StrEnum):
    train = "train"
    valid = "valid"
    test = "test"


def evaluate(
    checkpoint: CheckpointPath,
    split: Annotated[Split | None, typer.Option(help="Which part of the training corpus.  [default: valid]")] = None,
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="Another text instead.")] = None,
    per_char: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the score of every character to a CSV file.")
    ] = None,
    streams: Annotated[
        int, typer.Option(min=1, help="Parts of the text read side by side; 1: exactly as one, and slower.")
    ] = 64,
    skip_unknown: Annotated[bool, typer.Option(help="Leave out what the model has no character for.")] = False,
    device: DeviceOption = Device.auto,
    json: Json = False,
) -> None:
    """Score a text: nats and bits per character of a whole split or file, with the state carried through it.

    \b
    Examples:
      charlm eval runs/mine
      charlm eval runs/mine --split test --json
      charlm eval runs/mine --file other.txt --per-char scores.csv
    """
    if split is not None and file is not None:
        raise usage_error("--split and --file exclude one another")

    from charlm.checkpoint import find_checkpoint, load_model, read_checkpoint
    from charlm.device import resolve_device
    from charlm.evaluate import evaluate as score_text

    where = resolve_device(device)
    path = find_checkpoint(checkpoint)
    loaded = read_checkpoint(path)
    if per_char is not None:
        with _writable(per_char, "a"):  # rather now than after a long evaluation
            pass
    if file is not None:
        name, ids = str(file), _encoded_file(file, loaded.vocabulary, skip_unknown)
    else:
        name = str(split or Split.valid)
        ids = _split_of(loaded, name)
    score = score_text(load_model(loaded, where), ids, where, streams=streams, per_char=per_char is not None)
    if per_char is not None and score.per_char_nats is not None:
        _write_per_char(per_char, loaded.vocabulary, ids, score.per_char_nats)
    result = {
        "checkpoint": str(path),
        "step": loaded.progress.get("step"),
        "text": name,
        "nats_per_char": score.nats_per_char,
        "bits_per_char": score.bits_per_char,
        "targets": score.targets,
        "chars_per_s": score.chars_per_s,
    }
    if json:
        print_json(result)
    else:
        result |= {key: f"{result[key]:.4f}" for key in ("nats_per_char", "bits_per_char")}
        print_table({key: f"{value:,.0f}" if key == "chars_per_s" else str(value) for key, value in result.items()})


def _split_of(loaded: Any, name: str) -> Any:
    from charlm.data.corpus import load_configured_corpus
    from charlm.errors import DataError

    corpus = load_configured_corpus(loaded.config.data, loaded.vocabulary)
    if corpus.sha256 != loaded.progress.get("corpus_sha256"):
        raise DataError(
            f"{loaded.config.data.source}: its text has changed since the run was trained, and its splits with it; "
            "allowed: the same text, or another one with --file"
        )
    if name not in corpus.splits:
        raise DataError(f"--split {name}: the run has none; allowed: {' | '.join(corpus.splits)}, or --file FILE")
    return corpus.splits[name]


def _encoded_file(file: Path, vocabulary: Any, skip_unknown: bool) -> Any:
    from charlm.data.corpus import encode_file
    from charlm.vocabulary import describe_characters

    ids, skipped = encode_file(file, vocabulary, skip_unknown=skip_unknown)
    if skipped:
        typer.echo(f"{file}: left out {sum(skipped.values())} characters: {describe_characters(skipped)}", err=True)
    return ids


def _write_per_char(file: Path, vocabulary: Any, ids: Any, nats: Any) -> None:
    """A line for each scored character: its position in the text, the character (or byte), nats, bits."""
    from charlm.units import nats_to_bits

    with _writable(file, "w") as out:
        writer = csv.writer(out)
        writer.writerow(("position", "byte" if vocabulary.level == "byte" else "character", "nats", "bits"))
        for position, loss in enumerate(nats.tolist(), start=1):
            index = int(ids[position])
            symbol = index if vocabulary.level == "byte" else vocabulary.characters[index]
            writer.writerow((position, symbol, f"{loss:.6f}", f"{nats_to_bits(loss):.6f}"))


@contextlib.contextmanager
def _writable(file: Path, mode: Literal["w", "a"]) -> Iterator[TextIO]:
    from charlm.errors import DataError

    try:
        with file.open(mode, encoding="utf-8", newline="") as out:
            yield out
    except OSError as error:
        raise DataError(f"--per-char {file}: {error.strerror}; allowed: a file that can be written") from None
