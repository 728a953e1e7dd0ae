"""charlm eval."""

from enum import StrEnum
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
    finite,
    known_ids,
    print_json,
    print_table,
    report_backend,
    usage_error,
    write_char_scores,
)


class Split(StrEnum):
    train = "train"
    valid = "valid"
    test = "test"


SplitOption = Annotated[
    Split | None, typer.Option("--split", help="Which part of the run's own text.  [default: valid]")
]
File = Annotated[Path | None, typer.Option(metavar="FILE", help="Score this text instead.")]
PerChar = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Also write the score of every character to a CSV file; with --dynamic the dynamic score."
    ),
]
Streams = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Read the text in N parts side by side. 1 is slower and exact. With --dynamic, streams learn from one "
        "another: faster, but no longer the score of a text read from left to right.  "
        "[default: 64; with --dynamic 1]",
    ),
]
Dynamic = Annotated[
    bool,
    typer.Option(
        "--dynamic",
        help="Also score the text while the model learns from what it has scored (Krause et al. 2018). "
        "Needs the training text; changes nothing in the checkpoint.",
    ),
]
DynamicLr = Annotated[
    float | None,
    typer.Option(min=0, callback=finite, metavar="X", help="How far the weights move per window.  [default: 0.0005]"),
]
DynamicDecay = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        callback=finite,
        metavar="X",
        help="How fast they return to the trained weights.  [default: 0.0005]",
    ),
]
DynamicSteps = Annotated[int | None, typer.Option(min=1, metavar="N", help="Characters per window.  [default: 50]")]


def evaluate(
    checkpoint: CheckpointPath,
    split: SplitOption = None,
    file: File = None,
    per_char: PerChar = None,
    streams: Streams = None,
    dynamic: Dynamic = False,
    dynamic_lr: DynamicLr = None,
    dynamic_decay: DynamicDecay = None,
    dynamic_steps: DynamicSteps = None,
    skip_unknown: SkipUnknown = False,
    device: DeviceOption = "auto",
    precision: PrecisionOption = Precision.auto,
    json: Json = False,
) -> None:
    """Score a text with a trained model.

    Prints the cross-entropy in nats and bits per character: lower is better. The score is the mean over the whole text,
    where the model has read everything before a character. A model of lines scores each line by itself, and the nats
    per line are printed too.

    \b
    Examples:
      charlm eval runs/mine
      charlm eval runs/mine --split test --json
      charlm eval runs/mine --file other.txt --per-char scores.csv
      charlm eval runs/mine --split test --dynamic
    """
    if split is not None and file is not None:
        raise usage_error("--split and --file exclude one another")
    options = {"lr": dynamic_lr, "decay": dynamic_decay, "steps": dynamic_steps}
    chosen = {name: value for name, value in options.items() if value is not None}
    if chosen and not dynamic:
        raise usage_error(f"--dynamic-{next(iter(chosen))} needs --dynamic")
    check_there(runs=[checkpoint], texts=[file])

    from charlm.data.outputs import SCORES, check_output
    from charlm.errors import DataError
    from charlm.inference import Adaptation, load

    adaptation = Adaptation(**chosen) if dynamic else None
    trained = load(checkpoint, device, precision)
    if per_char is not None:
        check_output(per_char, "--per-char", SCORES, trained.config.data, file)
    if adaptation:
        trained.training_splits("--dynamic")
    if file is None:
        name = str(split or Split.valid)
        ids = trained.split(name)
    else:
        name = str(file)
        ids = trained.scored_ids(known_ids(trained, file, skip_unknown))
    report_backend(trained)
    alike = 1 if adaptation else None  # both scores read the text in as many streams
    score = trained.evaluate(ids, streams=streams or alike, per_char=per_char is not None and not adaptation)
    step = trained.progress.get("step")
    result = {"checkpoint": str(trained.path), "step": step, "text": name, "precision": trained.precision}
    result |= _described(score)
    if adaptation:
        score = trained.evaluate_dynamically(ids, adaptation, streams=streams or 1, per_char=per_char is not None)
        result["dynamic"] = _described(score) | {"streams": streams or 1, **vars(adaptation)}
    if per_char is not None:
        try:
            with per_char.open("w", encoding="utf-8", newline="") as out:
                write_char_scores(out, trained.vocabulary, ids, score.per_char_nats)
        except OSError as error:
            raise DataError(f"--per-char {per_char}: {error.strerror}; allowed: a file that can be written") from None
    if json:
        print_json(result)
    else:
        _print(result)


def _described(score: Any) -> dict[str, Any]:
    names = ("nats_per_char", "bits_per_char", "nats_per_line", "targets", "lines", "chars_per_s")
    values = {name: getattr(score, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _print(result: dict[str, Any]) -> None:
    """A table, with the dynamic score beside the static one."""
    formats = {"nats_per_char": ".4f", "bits_per_char": ".4f", "nats_per_line": ".2f", "chars_per_s": ",.0f"}
    rows = {key: format(value, formats.get(key, "")) for key, value in result.items() if key != "dynamic"}
    if dynamic := result.get("dynamic"):
        rows |= {
            key: f"{rows[key]} static  {dynamic[key]:{form}} dynamic" for key, form in formats.items() if key in rows
        }
        rows["dynamic"] = ", ".join(f"{key} {dynamic[key]}" for key in ("streams", "lr", "decay", "steps"))
    print_table(rows)
