"""charlm score."""

import sys
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
    as_json,
    check_files,
    finite,
    print_json,
    report_backend,
    usage_error,
    write_char_scores,
)
from charlm.system.console import say
from charlm.system.formatting import counted, nats_to_bits, printable

File = Annotated[str, typer.Argument(metavar="FILE", help="The text to score; - is stdin.")]
Lines = Annotated[bool, typer.Option("--lines", help="Score each line by itself, as it comes.")]
Sort = Annotated[
    bool, typer.Option("--sort", help="Print the likeliest lines first, at the end. Keeps all printed lines in memory.")
]
LIMIT = "3.2bits or 2.1nats per character, or p99, the percentile of the run's validation lines"
Above = Annotated[
    str | None, typer.Option("--above", metavar="X", help=f"Print only lines with a higher score: {LIMIT}.")
]
Below = Annotated[str | None, typer.Option("--below", metavar="X", help="Print only lines with a lower score.")]
UnknownAs = Annotated[
    float | None,
    typer.Option(
        "--unknown-as",
        min=0,
        callback=finite,
        metavar="BITS",
        help="Count each character that the model does not know as so many bits.",
    ),
]
Dynamic = Annotated[
    bool,
    typer.Option(
        "--dynamic",
        help="The model learns from what it has scored (see `charlm eval --dynamic`). Needs the training text.",
    ),
]
DynamicLr = Annotated[
    float | None,
    typer.Option(
        min=0,
        callback=finite,
        metavar="X",
        help="How far the weights move per window.  [default: 0.0005; with --lines 0.00001]",
    ),
]
Label = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="With --lines and a model of labels: score lines given this label."),
]
PerChar = Annotated[bool, typer.Option("--per-char", help="Also print the bits of every character.")]


def score(
    checkpoint: CheckpointPath,
    file: File,
    lines: Lines = False,
    sort: Sort = False,
    above: Above = None,
    below: Below = None,
    label: Label = None,
    skip_unknown: SkipUnknown = False,
    unknown_as: UnknownAs = None,
    dynamic: Dynamic = False,
    dynamic_lr: DynamicLr = None,
    per_char: PerChar = False,
    device: DeviceOption = "auto",
    precision: PrecisionOption = Precision.auto,
    json: Json = False,
) -> None:
    """Say how surprising a text, or each of its lines, is to the model.

    Prints bits per character, bits, and the line, with tabs between them. Low scores are likely text, high scores are
    surprising. Without --lines the file is one text.

    \b
    Examples:
      charlm score runs/mine candidates.txt --lines --sort
      tail -f app.log | charlm score runs/logs - --lines --above p99
      charlm score runs/mine book.txt --per-char --json
      charlm score runs/logs app.log --lines --dynamic --unknown-as 20
    """
    if not lines and (sort or above or below or label is not None):
        raise usage_error("--sort, --above, --below and --label need --lines")
    if skip_unknown and unknown_as is not None:
        raise usage_error("--skip-unknown and --unknown-as exclude one another")
    if lines and per_char and not json:
        raise usage_error("--per-char with --lines needs --json")
    if not lines and per_char and unknown_as is not None:
        raise usage_error("--per-char with --unknown-as needs --lines")
    if dynamic_lr is not None and not dynamic:
        raise usage_error("--dynamic-lr needs --dynamic")
    check_there(runs=[checkpoint], texts=[] if lines or file == "-" else [file])
    if lines:
        check_files(file=file)

    from dataclasses import replace

    from charlm.inference import Adaptation, load
    from charlm.inference.lines import LINE_ADAPTATION, Limit
    from charlm.system.formatting import bits_to_nats

    limits: dict[str, Limit] = {}
    for option, text in (("--above", above), ("--below", below)):
        if text is not None:
            try:
                limits[option] = Limit.parse(text)
            except ValueError as error:
                raise usage_error(f"{option}: {error}") from None
    adaptation = LINE_ADAPTATION if lines else Adaptation()
    if dynamic_lr is not None:
        adaptation = replace(adaptation, lr=dynamic_lr)
    options: dict[str, Any] = {
        "skip_unknown": skip_unknown,
        "unknown_nats": None if unknown_as is None else bits_to_nats(unknown_as),
        "adaptation": adaptation if dynamic else None,
        "per_char": per_char,
    }
    trained = load(checkpoint, device, precision)
    report_backend(trained)
    if lines:
        _score_lines(trained, file, limits, sort=sort, json=json, label=label, **options)
    else:
        _score_text(trained, file, json=json, **options)


def _score_lines(
    trained: Any,
    file: str,
    limits: dict[str, Any],
    *,
    sort: bool,
    json: bool,
    label: str | None,
    **options: Any,
) -> None:
    from charlm.data.reading import arriving
    from charlm.inference.lines import score_lines

    nats = {option: limit.nats(trained, option, label) for option, limit in limits.items()}
    low, high = nats.get("--above", float("-inf")), nats.get("--below", float("inf"))
    if not low < high:
        raise usage_error("--above and --below: no score is between them")
    to_sort: list[Any] = []
    for scores in score_lines(trained, arriving(file), "stdin" if file == "-" else file, label=label, **options):
        within = [line for line in scores if not (line.nats_per_char <= low or line.nats_per_char >= high)]  # nan stays
        if sort:
            to_sort += within
        else:
            _print_lines(within, json=json)
    to_sort.sort(key=lambda line: line.nats_per_char)
    for at in range(0, len(to_sort), 1000):
        _print_lines(to_sort[at : at + 1000], json=json)


def _print_lines(scores: list[Any], *, json: bool) -> None:
    """Print scores and lines; a file or pipe gets the exact bytes of the lines."""
    from charlm.data.vocabulary import readable

    for line in scores:
        text = line.text.decode("utf-8", "surrogateescape")
        if json:
            value = {"line": line.number, "text": readable(text)} | _bits(line.nats, line.chars)
            if line.per_char_nats is not None:
                value["per_char"] = _rounded_bits(line.per_char_nats)
            sys.stdout.write(f"{as_json(value)}\n")
        elif sys.stdout.isatty():
            sys.stdout.write(f"{_columns(line.nats, line.chars)}{printable(text)}\n")
        else:
            sys.stdout.buffer.write(b"%s%s\n" % (_columns(line.nats, line.chars).encode(), line.text))
    sys.stdout.flush()


def _score_text(
    trained: Any,
    file: str,
    *,
    json: bool,
    skip_unknown: bool,
    unknown_nats: float | None,
    adaptation: Any,
    per_char: bool,
) -> None:
    """Score a text as `charlm eval` does; unknown characters add their scores if they count."""
    from charlm.data.corpus import encode_file
    from charlm.data.vocabulary import describe_characters

    name, is_tolerant = "stdin" if file == "-" else file, skip_unknown or unknown_nats is not None
    if file == "-":
        text = _stdin(trained)
        unknown = {character: text.count(character) for character in trained.vocabulary.unknown(text)}
        ids = trained.vocabulary.encode(trained.known(text, name, skip_unknown=is_tolerant)[0])
    else:
        unit = trained.config.data.unit
        ids, unknown = encode_file(file, trained.vocabulary, skip_unknown=is_tolerant, unit=unit)
    unknown_count = sum(unknown.values())
    if unknown and skip_unknown:
        say("skipped", f"{name}: {counted(unknown_count, 'character')}: {describe_characters(unknown)}")
    ids = trained.scored_ids(ids)
    if adaptation:
        score = trained.evaluate_dynamically(ids, adaptation, per_char=per_char)
    else:
        score = trained.evaluate(ids, per_char=per_char)
    nats, chars = score.nats_sum, score.targets
    if unknown_nats is not None:
        nats, chars = nats + unknown_count * unknown_nats, chars + unknown_count
    if json:
        value = {"checkpoint": str(trained.path), "text": name} | _bits(nats, chars)
        print_json(value | ({"per_char": _rounded_bits(score.per_char_nats)} if per_char else {}))
    elif per_char:
        write_char_scores(sys.stdout, trained.vocabulary, ids, score.per_char_nats)
    else:
        typer.echo(f"{_columns(nats, chars)}{printable(name)}")


def _stdin(trained: Any) -> str:
    from charlm.data.reading import arriving, as_in_training
    from charlm.errors import DataError

    level = trained.vocabulary.level
    data = b"".join(as_in_training(arriving("-"), level, trained.config.data.unit, "stdin"))
    try:
        return data.decode("utf-8", "surrogateescape" if level == "byte" else "strict")
    except UnicodeDecodeError as error:
        raise DataError(f"stdin: found no UTF-8 at byte offset {error.start}; allowed: UTF-8") from None


def _bits(nats: float, chars: int) -> dict[str, float]:
    return {"bits_per_char": nats_to_bits(nats / chars), "bits": nats_to_bits(nats), "chars": chars}


def _columns(nats: float, chars: int) -> str:
    return f"{nats_to_bits(nats / chars):.4f}\t{nats_to_bits(nats):.2f}\t"


def _rounded_bits(nats: Any) -> list[float]:
    return [round(nats_to_bits(each), 4) for each in nats.tolist()]
