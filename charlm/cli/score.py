"""charlm score: how surprising each line of a text is to a model."""

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from charlm.cli import usage
from charlm.cli.common import json_line, open_model, print_exactly
from charlm.errors import DataError
from charlm.system.console import say
from charlm.system.formatting import bits_to_nats, counted, nats_to_bits

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
    from charlm.inference.line_scores import score_lines

    is_tolerant = is_pipe(file) and not skip_unknown and unknown_as is None
    """Whether unknown characters are neither an error nor an option's."""
    if is_tolerant:
        unknown_as = _UNKNOWN_BITS
    unknown_nats = None if unknown_as is None else bits_to_nats(unknown_as)

    def scored(path: str) -> Iterator[list[Any]]:
        lines = arriving_lines(path, trained.vocabulary, trained.config.data.unit)
        blocks = score_lines(trained, lines, text_name(path), skip_unknown=skip_unknown, unknown_nats=unknown_nats)
        return _saying_unknown(blocks, text_name(path)) if is_tolerant else blocks

    blocks: Iterable[list[Any]] = scored(file)
    if unit == "bits":
        limit_nats = bits_to_nats(limit)
    elif unit == "nats":
        limit_nats = limit
    elif of is None:
        lines = [*itertools.chain(*blocks)]
        blocks = [lines]
        limit_nats = _percentile(lines, limit) if lines else 0.0
    else:
        lines = [*itertools.chain(*scored(of))]
        if not lines:
            raise DataError(f"--of {of}: found no line; allowed: a file of normal lines")
        limit_nats = _percentile(lines, limit)

    sorted_lines = []
    for lines in blocks:
        if above is not None:
            lines = [line for line in lines if line.is_above(limit_nats) or (is_tolerant and line.unknown)]
        if sort:
            sorted_lines += lines
        else:
            _print_lines(lines, json=json, per_char=per_char)
    if sort:
        sorted_lines.sort(key=lambda line: line.nats_per_char)
        _print_lines(sorted_lines, json=json, per_char=per_char)


def _percentile(lines: list[Any], percentile: float) -> float:
    """The percentile of the lines' nats per character; says it in bits."""
    from charlm.inference.line_scores import percentile_nats

    limit_nats = percentile_nats(lines, percentile)
    say("above", f"{nats_to_bits(limit_nats):.4f} bits per character, p{percentile:g} of {counted(len(lines), 'line')}")
    return limit_nats


def _saying_unknown(blocks: Iterable[list[Any]], name: str) -> Iterator[list[Any]]:
    """The blocks; says which is the first line that has characters the model has never seen."""
    from charlm.data.vocabulary import never_seen

    is_said = False
    for lines in blocks:
        unknown = [line for line in lines if line.unknown]
        if unknown and not is_said:
            first = unknown[0]
            counts = f"each such character counts as {_UNKNOWN_BITS:g} bits; see --unknown-as"
            say("unknown", f"{name}, line {first.number:,}: {never_seen(first.unknown)}; {counts}")
            is_said = True
        yield lines


def _limit(above: str | None, of: str | None, file: str) -> tuple[float, str]:
    """The number and the unit of --above: p, bits or nats; a usage error for one that the text does not allow."""
    from charlm.data.reading import is_pipe

    match = _LIMIT.fullmatch("0" if above is None else above)
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
            rows.append(json_line(value))
        else:
            rows.append(f"{bits['bits_per_char']:.4f}\t{bits['bits']:.2f}\t{line.text}")
    print_exactly("".join(f"{row}\n" for row in rows))
