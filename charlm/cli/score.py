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
    print_json,
    report_backend,
    usage_error,
)
from charlm.system.console import say
from charlm.system.formatting import printable

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
        min=0, metavar="X", help="How far the weights move per window.  [default: 0.0005; with --lines 0.00001]"
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
    _check_usage(lines, sort, bool(above or below or label is not None), skip_unknown, unknown_as, per_char, json)
    check_there(runs=[checkpoint], texts=[] if lines or file == "-" else [file])
    if lines:
        check_files(file=file)
    limits, adaptation = _limits(above, below), _adaptation(lines, dynamic, dynamic_lr)

    from charlm.inference import load

    trained = load(checkpoint, device, precision)
    report_backend(trained)
    unknown = _unknown(skip_unknown, unknown_as)
    if lines:
        options = {"label": label, "per_char": per_char, "adaptation": adaptation}
        _score_lines(trained, file, unknown, limits, options, sort=sort, json=json)
    else:
        _score_text(trained, file, unknown, adaptation, per_char=per_char, json=json)


def _check_usage(
    lines: bool, sort: bool, limited: bool, skip_unknown: bool, unknown_as: float | None, per_char: bool, json: bool
) -> None:
    if not lines and (sort or limited):
        raise usage_error("--sort, --above, --below and --label need --lines")
    if skip_unknown and unknown_as is not None:
        raise usage_error("--skip-unknown and --unknown-as exclude one another")
    if unknown_as is not None and not unknown_as < float("inf"):
        raise usage_error(f"--unknown-as: found {unknown_as}; allowed: a finite number")
    if lines and per_char and not json:
        raise usage_error("--per-char with --lines needs --json")
    if not lines and per_char and unknown_as is not None:
        raise usage_error("--per-char with --unknown-as needs --lines")


def _limits(above: str | None, below: str | None) -> dict[str, Any]:
    """The limits that are given, by option."""
    from charlm.inference.line_quantiles import Limit

    found = {}
    for option, text in (("--above", above), ("--below", below)):
        if text is not None:
            try:
                found[option] = Limit.parse(text)
            except ValueError as error:
                raise usage_error(f"{option}: {error}") from None
    return found


def _adaptation(lines: bool, dynamic: bool, lr: float | None) -> Any:
    """How the model learns; None without --dynamic."""
    if lr is not None and not dynamic:
        raise usage_error("--dynamic-lr needs --dynamic")
    if lr is not None and not lr < float("inf"):
        raise usage_error(f"--dynamic-lr: found {lr}; allowed: a finite number")
    if not dynamic:
        return None
    from dataclasses import replace

    from charlm.inference import Adaptation
    from charlm.inference.line_learning import LINES

    chosen = LINES if lines else Adaptation()
    return chosen if lr is None else replace(chosen, lr=lr)


def _unknown(skip_unknown: bool, unknown_as: float | None) -> Any:
    from charlm.inference.line_scores import Unknown
    from charlm.system.formatting import bits_to_nats

    return Unknown(skip_unknown, None if unknown_as is None else bits_to_nats(unknown_as))


def _score_lines(
    trained: Any,
    file: str,
    unknown: Any,
    limits: dict[str, Any],
    options: dict[str, Any],
    *,
    sort: bool,
    json: bool,
) -> None:
    from charlm.data.arriving import open_arriving
    from charlm.inference.line_scores import LineScorer

    nats = {option: limit.nats(trained, option, options["label"]) for option, limit in limits.items()}
    low, high = nats.get("--above", float("-inf")), nats.get("--below", float("inf"))
    if not low < high:
        raise usage_error("--above and --below: no score is between them")
    arriving = open_arriving(file)
    scorer = LineScorer(trained, arriving.name, unknown, **options)
    kept = []
    for scores in scorer.scores(arriving.blocks()):
        found = [each for each in scores if not (each.nats_per_char <= low or each.nats_per_char >= high)]  # nan stays
        if sort:
            kept += found
        else:
            _print_lines(found, json=json)
    if sort:
        kept.sort(key=lambda each: each.nats_per_char)
        for at in range(0, len(kept), 1000):
            _print_lines(kept[at : at + 1000], json=json)


def _print_lines(scores: list[Any], *, json: bool) -> None:
    """Print scores and lines; a file or pipe gets the exact bytes of the lines."""
    if not scores:
        return
    if json:
        for each in scores:
            sys.stdout.write(f"{_as_json(each)}\n")
    elif sys.stdout.isatty():
        for each in scores:
            sys.stdout.write(f"{_columns(each)}{printable(_decoded(each.text))}\n")
    else:
        parts = [part for each in scores for part in (_columns(each).encode(), each.text, b"\n")]
        sys.stdout.buffer.writelines(parts)
    sys.stdout.flush()


def _columns(score: Any) -> str:
    return f"{score.bits_per_char:.4f}\t{score.bits:.2f}\t"


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")


def _as_json(score: Any) -> str:
    from charlm.data.vocabulary import readable

    value = {"line": score.number, "text": readable(_decoded(score.text))}
    value |= {"bits_per_char": score.bits_per_char, "bits": score.bits, "chars": score.chars}
    if score.per_char_nats is not None:
        value["per_char"] = _bits(score.per_char_nats)
    return as_json(value)


def _bits(nats: Any) -> list[float]:
    from charlm.system.formatting import nats_to_bits

    return [round(nats_to_bits(each), 4) for each in nats.tolist()]


def _score_text(trained: Any, file: str, unknown: Any, adaptation: Any, *, per_char: bool, json: bool) -> None:
    from charlm.inference.per_char import write_rows
    from charlm.inference.whole_text import read_text, score_text

    text = read_text(trained, file, unknown)
    if text.skipped:
        say("skipped", f"{text.name}: {text.skipped}")
    found = score_text(trained, text, unknown, adaptation, per_char=per_char)
    if json:
        value = {"checkpoint": str(trained.path), "text": text.name, "bits_per_char": found.bits_per_char}
        value |= {"bits": found.bits, "chars": found.chars}
        print_json(value | ({"per_char": _bits(found.per_char_nats)} if per_char else {}))
    elif found.per_char_nats is not None:
        write_rows(sys.stdout, trained.vocabulary, text.ids, found.per_char_nats)
    else:
        typer.echo(f"{_columns(found)}{printable(text.name)}")
