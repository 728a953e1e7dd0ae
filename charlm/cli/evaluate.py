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
    trained_splits,
    usage_error,
)
from charlm.system.console import say


class Split(StrEnum):
    train = "train"
    valid = "valid"
    test = "test"


def evaluate(
    checkpoint: CheckpointPath,
    split: Annotated[Split | None, typer.Option(help="Which part of the training corpus.  [default: valid]")] = None,
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="Another text instead.")] = None,
    per_char: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the score of every character to a CSV file; with --dynamic the dynamic one."
        ),
    ] = None,
    streams: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Parts of the text read side by side; 1: exactly as one, and slower. With --dynamic more than 1 learn "
            "from one another: quicker, but no longer the score of a text read from left to right.  "
            "[default: 64; with --dynamic 1]",
        ),
    ] = None,
    dynamic: Annotated[
        bool,
        typer.Option(
            "--dynamic",
            help="Score the text a second time, while the model learns from what it has scored (Krause et al. 2018). "
            "Needs the training text; changes nothing in the checkpoint.",
        ),
    ] = False,
    dynamic_lr: Annotated[
        float | None, typer.Option(min=0, metavar="X", help="How far the weights move on a window.  [default: 0.0005]")
    ] = None,
    dynamic_decay: Annotated[
        float | None,
        typer.Option(min=0, max=1, metavar="X", help="How fast they return to the trained ones.  [default: 0.0005]"),
    ] = None,
    dynamic_steps: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Characters of a window.  [default: 50]")
    ] = None,
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
      charlm eval runs/mine --split test --dynamic
    """
    if split is not None and file is not None:
        raise usage_error("--split and --file exclude one another")
    given = {"lr": dynamic_lr, "decay": dynamic_decay, "steps": dynamic_steps}
    chosen = {name: value for name, value in given.items() if value is not None}
    if chosen and not dynamic:
        raise usage_error(f"--dynamic-{next(iter(chosen))} needs --dynamic")
    for option, value in (("--dynamic-lr", dynamic_lr), ("--dynamic-decay", dynamic_decay)):
        if value is not None and not value < float("inf"):
            raise usage_error(f"{option}: found {value}; allowed: a finite number")

    from charlm.checkpoint import find_checkpoint, load_model, read_checkpoint
    from charlm.inference.evaluation import STREAMS
    from charlm.inference.evaluation import evaluate as score_text
    from charlm.system.device import resolve_device

    where = resolve_device(device)
    path = find_checkpoint(checkpoint)
    loaded = read_checkpoint(path)
    if per_char is not None:
        with _writable(per_char, "a"):  # rather now than after a long evaluation
            pass
    splits = trained_splits(loaded, "--dynamic" if dynamic else None) if file is None or dynamic else {}
    if file is not None:
        name, ids = str(file), _encoded_file(file, loaded.vocabulary, skip_unknown)
    else:
        name = str(split or Split.valid)
        ids = _split_of(splits, name)
    model = load_model(loaded, where)
    report_slow_layers(model, where)
    streams = streams or (1 if dynamic else STREAMS)
    score = score_text(model, ids, where, streams=streams, per_char=per_char is not None and not dynamic)
    result = {"checkpoint": str(path), "step": loaded.progress.get("step"), "text": name, **_described(score)}
    if dynamic:
        from charlm.inference.dynamic import Adaptation, evaluate_dynamically

        adaptation = Adaptation(**chosen)
        score = evaluate_dynamically(
            model, ids, splits["train"], where, adaptation, streams=streams, per_char=per_char is not None
        )
        result["dynamic"] = _described(score) | {"streams": streams, **vars(adaptation)}
    if per_char is not None and score.per_char_nats is not None:
        _write_per_char(per_char, loaded.vocabulary, ids, score.per_char_nats)
    _print(result, json)


def _described(score: Any) -> dict[str, Any]:
    names = ("nats_per_char", "bits_per_char", "targets", "chars_per_s")
    return {name: getattr(score, name) for name in names}


def _print(result: dict[str, Any], json: bool) -> None:
    """As JSON, or as a table in which the dynamic score stands beside the static one."""
    if json:
        print_json(result)
        return
    formats = {"nats_per_char": ".4f", "bits_per_char": ".4f", "chars_per_s": ",.0f"}
    rows = {key: format(value, formats.get(key, "")) for key, value in result.items() if key != "dynamic"}
    if dynamic := result.get("dynamic"):
        rows |= {key: f"{rows[key]} static  {dynamic[key]:{form}} dynamic" for key, form in formats.items()}
        rows["dynamic"] = ", ".join(f"{key} {dynamic[key]}" for key in ("streams", "lr", "decay", "steps"))
    print_table(rows)


def _split_of(splits: dict[str, Any], name: str) -> Any:
    from charlm.errors import DataError

    if name not in splits:
        raise DataError(f"--split {name}: the run has none; allowed: {' | '.join(splits)}, or --file FILE")
    return splits[name]


def _encoded_file(file: Path, vocabulary: Any, skip_unknown: bool) -> Any:
    from charlm.data.corpus import encode_file
    from charlm.data.vocabulary import describe_characters

    ids, skipped = encode_file(file, vocabulary, skip_unknown=skip_unknown)
    if skipped:
        say("skipped", f"{file}: {sum(skipped.values())} characters: {describe_characters(skipped)}")
    return ids


def _write_per_char(file: Path, vocabulary: Any, ids: Any, nats: Any) -> None:
    """A line for each scored character: its position in the text, the character (or byte), nats, bits."""
    from charlm.system.formatting import nats_to_bits

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
