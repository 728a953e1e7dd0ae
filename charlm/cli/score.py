"""charlm eval, charlm score: how surprising a text, or each of its lines, is to a model."""

import itertools
import re
from collections.abc import Iterable, Iterator
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
from charlm.system.console import say
from charlm.system.formatting import bits_to_nats, counted, nats_to_bits

Split = Annotated[
    Literal["train", "valid", "test"] | None,
    typer.Option("--split", help="Which part of the run's own text.  [default: valid]"),
]
File = Annotated[Path | None, usage.option("FILE", "Score this text instead; - is stdin.")]
PerCharFile = Annotated[
    Path | None,
    usage.option("FILE", "Also write the score of every character to a CSV file; with --dynamic the dynamic score."),
]
Dynamic = Annotated[
    bool,
    typer.Option(
        "--dynamic",
        help="Also score the text while the model learns from what it has scored (Krause et al. 2018). "
        "Needs the training text; changes nothing in the checkpoint.",
    ),
]


def evaluate(
    checkpoint: usage.Checkpoint,
    split: Split = None,
    file: File = None,
    per_char: PerCharFile = None,
    dynamic: Dynamic = False,
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
    trained = open_model(checkpoint, device, precision, file)

    from charlm.data.outputs import check_output, writing
    from charlm.inference.dynamic import Adaptation

    if per_char is not None:
        check_output(per_char, "--per-char", "scores of charlm eval")
    if dynamic:
        trained.training_splits("--dynamic")  # fail now, not after the text is read
    name = str(file or split or "valid")
    ids = trained.split(name) if file is None else trained.scored_ids(encode_text(trained, file, skip_unknown))
    step = trained.progress.get("step")
    result = {"checkpoint": str(trained.path), "step": step, "text": name, "precision": trained.precision}
    if dynamic:  # both scores read the text in one stream
        adaptation = Adaptation()
        score = trained.evaluate_dynamically(ids, adaptation, per_char=per_char is not None)
        result |= _described(trained.evaluate(ids, streams=1))
        result["dynamic"] = _described(score) | vars(adaptation)
    else:
        score = trained.evaluate(ids, per_char=per_char is not None)
        result |= _described(score)
    if per_char is not None:
        with writing(per_char, "--per-char") as out:
            write_char_scores(out, trained.vocabulary, ids, score.per_char_nats)
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
        for key, form in formats.items():
            if key in dynamic:
                rows[key] = f"{rows[key]} static  {dynamic[key]:{form}} dynamic"
        rows["dynamic"] = ", ".join(f"{key} {dynamic[key]}" for key in ("lr", "decay", "steps"))
    print_table(rows)


# charlm score

_LIMIT = re.compile(r"(?P<p>p)?(?P<number>\d+(?:\.\d*)?|\.\d+)(?P<unit>bits|nats)?", re.ASCII)
Sort = Annotated[
    bool, typer.Option("--sort", help="Print the likeliest lines first, at the end. Keeps all printed lines in memory.")
]
Above = Annotated[
    str | None,
    usage.option(
        "X",
        "Print only lines with a higher score: 3.2bits or 2.1nats per character, or p99, the percentile of the lines "
        "of the file, all of which are then kept in memory.",
    ),
]
Of = Annotated[
    str | None, usage.option("NORMAL", "Take the percentile of --above from the lines of this file.", "--of")
]
_UNKNOWN_BITS = 20.0
UnknownAs = Annotated[
    float | None,
    usage.number(
        "BITS",
        "Count each character that the model does not know as so many bits.  "
        f"[default: an error; in a pipe {_UNKNOWN_BITS:g}, and --above prints each line with such a character]",
    ),
]


def score(
    checkpoint: usage.Checkpoint,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The lines to score; - is stdin.")],
    sort: Sort = False,
    above: Above = None,
    of: Of = None,
    skip_unknown: usage.SkipUnknown = False,
    unknown_as: UnknownAs = None,
    per_char: Annotated[bool, typer.Option("--per-char", help="With --json: the bits of every character too.")] = False,
    device: usage.Device = "auto",
    precision: usage.Precision = "auto",
    json: usage.Json = False,
) -> None:
    """Say how surprising each line of a text is to the model.

    Prints bits per character, bits, and the line, with tabs between them. Low scores are likely text, high scores are
    surprising. Each line is scored by itself; `charlm eval --file` scores a whole text.

    \b
    Examples:
      charlm score runs/mine candidates.txt --sort
      charlm score runs/logs app.log --above p99 --unknown-as 20
      tail -f app.log | charlm score runs/logs - --above p99.9 --of normal.log
      charlm score runs/mine lines.txt --per-char --json
    """
    usage.refuse_if(skip_unknown and unknown_as is not None, "--skip-unknown and --unknown-as exclude one another")
    usage.refuse_if(per_char and not json, "--per-char needs --json")
    limit, unit = _limit(above, of, file)
    trained = open_model(checkpoint, device, precision, file)

    from charlm.data.reading import arriving_lines, is_pipe, text_name
    from charlm.inference.lines import score_lines

    prints_unknown = is_pipe(file) and not skip_unknown and unknown_as is None
    if prints_unknown:
        unknown_as = _UNKNOWN_BITS
    unknown_nats = None if unknown_as is None else bits_to_nats(unknown_as)

    def scored(path: str) -> Iterator[list[Any]]:
        lines = arriving_lines(path, trained.vocabulary, trained.config.data.unit)
        return score_lines(trained, lines, text_name(path), skip_unknown=skip_unknown, unknown_nats=unknown_nats)

    blocks = scored(file)
    if unit == "p":
        if of is None:
            blocks = normal = [[*itertools.chain(*blocks)]]
        else:
            normal = _telling_unknown(scored(of), of) if prints_unknown else scored(of)
        limit_nats = _percentile([*itertools.chain(*normal)], limit, of)
    else:
        limit_nats = limit if unit == "nats" else bits_to_nats(limit)
    if prints_unknown:
        blocks = _telling_unknown(blocks, text_name(file))
    if above is not None:
        blocks = _above(blocks, limit_nats, with_unknown=prints_unknown)
    if sort:
        blocks = [sorted(itertools.chain(*blocks), key=lambda line: line.nats_per_char)]
    for lines in blocks:
        _print_lines(lines, json=json, per_char=per_char)


def _percentile(lines: list[Any], percentile: float, of: str | None) -> float:
    """The percentile of the lines' nats per character; prints it.

    Without lines: DataError if --of names their file, else 0.
    """
    from charlm.inference.lines import percentile_nats

    if not lines:
        if of is None:
            return 0.0
        raise DataError(f"--of {of}: found no line; allowed: a file of normal lines")
    limit_nats = percentile_nats(lines, percentile)
    say("above", f"{nats_to_bits(limit_nats):.4f} bits per character, p{percentile:g} of {counted(len(lines), 'line')}")
    return limit_nats


def _telling_unknown(blocks: Iterable[list[Any]], name: str) -> Iterator[list[Any]]:
    """Yield the blocks; prints the first line that has characters the model has never seen."""
    from charlm.data.vocabulary import describe_characters

    is_told = False
    for lines in blocks:
        for line in lines:
            if line.unknown and not is_told:
                characters = f"{describe_characters(line.unknown)}, which the model has never seen"
                counts = f"each such character counts as {_UNKNOWN_BITS:g} bits; see --unknown-as"
                say("unknown", f"{name}, line {line.number:,}: {characters}; {counts}")
                is_told = True
        yield lines


def _above(blocks: Iterable[list[Any]], limit_nats: float, *, with_unknown: bool) -> Iterator[list[Any]]:
    """The lines above a limit, and those with characters that the model does not know."""
    for lines in blocks:
        yield [line for line in lines if line.is_above(limit_nats) or (with_unknown and line.unknown)]


def _limit(above: str | None, of: str | None, file: str) -> tuple[float, str]:
    """The number and the unit of --above: p, bits or nats; a usage error for one that the text does not allow."""
    from charlm.data.reading import is_pipe

    match = _LIMIT.fullmatch(above or "0")
    if not match or (match["p"] and (match["unit"] or float(match["number"]) > 100)):
        raise usage.error(
            f"--above: found {above!r}; allowed: bits per character (3.2 or 3.2bits), nats per character (2.1nats), or "
            "a percentile of the lines of a file, p0 to p100 (p99)"
        )
    if match["p"] and of is None and is_pipe(file):
        allowed = "a file, a number such as --above 3.2bits, or --of with a file of normal lines"
        raise usage.error(f"--above {above}: found a pipe; allowed: {allowed}")
    usage.refuse_if(of is not None and not match["p"], "--of needs a percentile, such as --above p99")
    usage.refuse_if(of == "-", "--of: found stdin; allowed: a file of normal lines")
    return float(match["number"]), match["p"] or match["unit"] or "bits"


def _print_lines(scores: Iterable[Any], *, json: bool, per_char: bool) -> None:
    from charlm.data.vocabulary import readable

    rows = []
    for line in scores:
        bits = {"bits_per_char": nats_to_bits(line.nats_per_char), "bits": nats_to_bits(line.nats_sum)}
        if json:
            value = {"line": line.number, "text": readable(line.text), **bits, "chars": len(line.nats)}
            value["unknown"] = readable(line.unknown)
            if per_char:
                value["per_char"] = [round(nats_to_bits(nats), 4) for nats in line.nats.tolist()]
            rows.append(as_json(value))
        else:
            rows.append(f"{bits['bits_per_char']:.4f}\t{bits['bits']:.2f}\t{line.text}")
    print_exactly("".join(f"{row}\n" for row in rows))
