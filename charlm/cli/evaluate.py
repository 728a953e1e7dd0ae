"""charlm eval."""

import contextlib
import csv
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO

import typer

from charlm.cli.common import (
    CheckpointPath,
    Device,
    DeviceOption,
    Json,
    SkipUnknown,
    print_json,
    print_table,
    report_slow_layers,
    usage_error,
)


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
        int,
        typer.Option(min=1, metavar="N", help="Parts of the text read side by side; 1: exactly as one, and slower."),
    ] = 64,
    skip_unknown: SkipUnknown = False,
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
    model = load_model(loaded, where)
    report_slow_layers(model, where)
    score = score_text(model, ids, where, streams=streams, per_char=per_char is not None)
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
    from charlm.data.corpus import load_unchanged_corpus
    from charlm.errors import DataError

    sha256 = loaded.progress.get("corpus_sha256")
    splits = load_unchanged_corpus(loaded.config.data, loaded.vocabulary, sha256, report=_report).splits
    if name not in splits:
        raise DataError(f"--split {name}: the run has none; allowed: {' | '.join(splits)}, or --file FILE")
    return splits[name]


def _report(text: str) -> None:
    typer.echo(text, err=True)


def _encoded_file(file: Path, vocabulary: Any, skip_unknown: bool) -> Any:
    from charlm.data.corpus import encode_file
    from charlm.vocabulary import describe_characters

    ids, skipped = encode_file(file, vocabulary, skip_unknown=skip_unknown, report=_report)
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
