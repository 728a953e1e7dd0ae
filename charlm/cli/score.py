"""charlm eval, charlm score: how surprising a text is to a model."""

import itertools
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from charlm.cli import usage
from charlm.cli.common import (
    as_json,
    encode_text,
    open_model,
    print_exactly,
    print_json,
    print_table,
    write_char_scores,
)  # fmt: skip
from charlm.errors import DataError
from charlm.inference.options import Limit
from charlm.system.formatting import bits_to_nats, nats_to_bits, printable

Split = Annotated[
    Literal["train", "valid", "test"] | None,
    typer.Option("--split", help="Which part of the run's own text.  [default: valid]"),
]
PerCharFile = Annotated[
    Path | None,
    usage.option("FILE", "Also write the score of every character to a CSV file; with --dynamic the dynamic score."),
]
Streams = Annotated[
    int | None,
    usage.option(
        "N",
        "Read the text in N parts side by side. 1 is slower and exact. With --dynamic, streams learn from one "
        "another: faster, but no longer the score of a text read from left to right.  "
        "[default: 64; with --dynamic 1]",
        min=1,
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
DynamicLr = Annotated[float | None, usage.number("X", "How far the weights move per window.  [default: 0.0005]")]
DynamicDecay = Annotated[
    float | None, usage.number("X", "How fast they return to the trained weights.  [default: 0.0005]", max=1)
]


def evaluate(
    checkpoint: usage.Checkpoint,
    split: Split = None,
    file: Annotated[Path | None, usage.option("FILE", "Score this text instead.")] = None,
    per_char: PerCharFile = None,
    streams: Streams = None,
    dynamic: Dynamic = False,
    dynamic_lr: DynamicLr = None,
    dynamic_decay: DynamicDecay = None,
    dynamic_steps: Annotated[int | None, usage.option("N", "Characters per window.  [default: 50]", min=1)] = None,
    skip_unknown: usage.SkipUnknown = False,
    device: usage.Device = "auto",
    precision: usage.Precision = "auto",
    json: usage.Json = False,
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
    usage.refuse_if(split is not None and file is not None, "--split and --file exclude one another")
    options = {"lr": dynamic_lr, "decay": dynamic_decay, "steps": dynamic_steps}
    chosen: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if chosen and not dynamic:
        raise usage.error(f"--dynamic-{next(iter(chosen))} needs --dynamic")
    trained = open_model(checkpoint, device, precision, file)

    from charlm.data.outputs import SCORES, check_output
    from charlm.inference import Adaptation

    adaptation = Adaptation(**chosen) if dynamic else None
    if per_char is not None:
        check_output(per_char, "--per-char", SCORES)
    if adaptation:
        trained.training_splits("--dynamic")
    name = str(file or split or "valid")
    ids = trained.split(name) if file is None else trained.scored_ids(encode_text(trained, file, skip_unknown)[0])
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
        _print_evaluation(result)


def _described(score: Any) -> dict[str, Any]:
    names = ("nats_per_char", "bits_per_char", "nats_per_line", "targets", "lines", "chars_per_s")
    values = {name: getattr(score, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _print_evaluation(result: dict[str, Any]) -> None:
    """A table, with the dynamic score beside the static one."""
    formats = {"nats_per_char": ".4f", "bits_per_char": ".4f", "nats_per_line": ".2f", "chars_per_s": ",.0f"}
    rows = {key: format(value, formats.get(key, "")) for key, value in result.items() if key != "dynamic"}
    if dynamic := result.get("dynamic"):
        rows |= {
            key: f"{rows[key]} static  {dynamic[key]:{form}} dynamic" for key, form in formats.items() if key in rows
        }
        rows["dynamic"] = ", ".join(f"{key} {dynamic[key]}" for key in ("streams", "lr", "decay", "steps"))
    print_table(rows)


# charlm score

Sort = Annotated[
    bool, typer.Option("--sort", help="Print the likeliest lines first, at the end. Keeps all printed lines in memory.")
]
LIMIT = "3.2bits or 2.1nats per character, or p99, the percentile of the run's validation lines"
Above = Annotated[str | None, usage.option("X", f"Print only lines with a higher score: {LIMIT}.", "--above")]
UnknownAs = Annotated[
    float | None,
    usage.number("BITS", "Count each character that the model does not know as so many bits.", "--unknown-as"),
]
DynamicLines = Annotated[
    bool,
    typer.Option(
        "--dynamic",
        help="The model learns from what it has scored (see `charlm eval --dynamic`). Needs the training text.",
    ),
]
LinesLr = Annotated[
    float | None, usage.number("X", "How far the weights move per window.  [default: 0.0005; with --lines 0.00001]")
]
Label = Annotated[str | None, usage.option("TEXT", "With --lines and a model of labels: score lines given this label.")]


def score(
    checkpoint: usage.Checkpoint,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The text to score; - is stdin.")],
    lines: Annotated[bool, typer.Option("--lines", help="Score each line by itself, as it comes.")] = False,
    sort: Sort = False,
    above: Above = None,
    below: Annotated[str | None, usage.option("X", "Print only lines with a lower score.")] = None,
    label: Label = None,
    skip_unknown: usage.SkipUnknown = False,
    unknown_as: UnknownAs = None,
    dynamic: DynamicLines = False,
    dynamic_lr: LinesLr = None,
    per_char: Annotated[bool, typer.Option("--per-char", help="Also print the bits of every character.")] = False,
    device: usage.Device = "auto",
    precision: usage.Precision = "auto",
    json: usage.Json = False,
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
    of_lines, has_unknown_score = sort or above or below or label is not None, unknown_as is not None
    usage.refuse_if(of_lines and not lines, "--sort, --above, --below and --label need --lines")
    usage.refuse_if(skip_unknown and has_unknown_score, "--skip-unknown and --unknown-as exclude one another")
    usage.refuse_if(lines and per_char and not json, "--per-char with --lines needs --json")
    usage.refuse_if(per_char and has_unknown_score and not lines, "--per-char with --unknown-as needs --lines")
    usage.refuse_if(dynamic_lr is not None and not dynamic, "--dynamic-lr needs --dynamic")
    lowest, highest = _limit("--above", above), _limit("--below", below)
    trained = open_model(checkpoint, device, precision, file)

    from dataclasses import replace

    from charlm.inference import Adaptation
    from charlm.inference.lines import LINE_ADAPTATION

    adaptation = (LINE_ADAPTATION if lines else Adaptation()) if dynamic else None
    if adaptation and dynamic_lr is not None:
        adaptation = replace(adaptation, lr=dynamic_lr)
    unknown_nats = None if unknown_as is None else bits_to_nats(unknown_as)
    if not lines:
        _score_text(trained, file, skip_unknown, unknown_nats, adaptation, per_char, json)
        return

    from charlm.data.reading import arriving
    from charlm.inference.lines import limit_nats, score_lines

    low = float("-inf") if lowest is None else limit_nats(lowest, trained, "--above", label)
    high = float("inf") if highest is None else limit_nats(highest, trained, "--below", label)
    usage.refuse_if(not low < high, "--above and --below: no score is between them")
    options = {"unknown_nats": unknown_nats, "label": label, "per_char": per_char, "adaptation": adaptation}
    scored = score_lines(
        trained, arriving(file), "stdin" if file == "-" else file, skip_unknown=skip_unknown, **options
    )
    # A score that is nan stays.
    within = (
        [each for each in some if not (each.nats_per_char <= low or each.nats_per_char >= high)] for some in scored
    )
    if sort:
        within = [sorted(itertools.chain(*within), key=lambda each: each.nats_per_char)]
    for some in within:
        _print_lines(some, json)


def _limit(option: str, text: str | None) -> Limit | None:
    try:
        return None if text is None else Limit.parse(text)
    except ValueError as error:
        raise usage.error(f"{option}: {error}") from None


def _print_lines(scores: list[Any], json: bool) -> None:
    from charlm.data.vocabulary import readable

    rows = []
    for line in scores:
        text = line.text.decode("utf-8", "surrogateescape")
        if json:
            value = {"line": line.number, "text": readable(text)} | _bits(line.nats, line.chars)
            if line.per_char_nats is not None:
                value["per_char"] = _rounded_bits(line.per_char_nats)
            rows.append(as_json(value))
        else:
            rows.append(_columns(line.nats, line.chars) + text)
    print_exactly("".join(f"{row}\n" for row in rows))


def _score_text(
    trained: Any, file: str, skip_unknown: bool, unknown_nats: float | None, adaptation: Any, per_char: bool, json: bool
) -> None:
    """Score a text as `charlm eval` does; unknown characters add their scores if they count."""
    name = "stdin" if file == "-" else file
    ids, unknown_count = encode_text(trained, file, skip_unknown, counts_unknown=unknown_nats is not None)
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


def _bits(nats: float, chars: int) -> dict[str, float]:
    return {"bits_per_char": nats_to_bits(nats / chars), "bits": nats_to_bits(nats), "chars": chars}


def _columns(nats: float, chars: int) -> str:
    return f"{nats_to_bits(nats / chars):.4f}\t{nats_to_bits(nats):.2f}\t"


def _rounded_bits(nats: Any) -> list[float]:
    return [round(nats_to_bits(each), 4) for each in nats.tolist()]
