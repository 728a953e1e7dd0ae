"""charlm score: the surprise of each line of a text to a model, in bits."""

import itertools
import re
from collections import deque
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from charlm.cli import usage
from charlm.cli.common import json_line, on_one_line, open_model, print_exactly
from charlm.errors import DataError
from charlm.system.console import say
from charlm.system.formatting import bits_to_nats, counted, nats_to_bits
from charlm.system.number import LARGEST

_LIMIT = re.compile(r"(p?)(\d+(?:\.\d*)?|\.\d+)", re.ASCII)
_ROUNDING_NATS = bits_to_nats(1e-4)
"""The last digit that is printed. Equal lines differ by less: their rounding depends on the lines read beside them."""
_UNKNOWN_BITS = 20.0

Above = Annotated[
    str | None,
    usage.option("X", "Print only lines above X bits per character, or above a percentile of the lines, such as p99."),
]
Of = Annotated[
    str | None, usage.option("NORMAL", "Take the percentile of --above from the lines of this file.", "--of")
]
Context = Annotated[
    int, usage.option("N", "Also print N lines before and after each line that --above keeps.", min=0, max=1000)
]
UnknownAs = Annotated[
    float | None,
    usage.option(
        "BITS",
        f"Bits for each unknown character.  [default: an error; in a pipe {_UNKNOWN_BITS:g}]",
        min=0,
        max=LARGEST,
    ),
]


def score(
    checkpoint: usage.Checkpoint,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The lines; - is stdin.")],
    above: Above = None,
    of: Of = None,
    context: Context = 0,
    records: usage.Records = None,
    unknown_as: UnknownAs = None,
    per_char: Annotated[bool, typer.Option("--per-char", help="With --json: the bits of every character too.")] = False,
    device: usage.Device = "auto",
    precision: usage.Precision = "auto",
    json: usage.Json = False,
) -> None:
    """Say how surprising each line or record of a text is to the model.

    Prints the surprise in bits per character (higher is more surprising), in bits, the line's number and the line,
    separated by tabs. Each line is read by itself; `charlm eval --file` scores a whole text, in nats per character.

    \b
    Examples:
      charlm score runs/mine candidates.txt | sort -n
      charlm score runs/logs app.log --above p99 --unknown-as 20
      tail -f app.log | charlm score runs/logs - --above p99.9 --of normal.log
      charlm score runs/mine lines.txt --per-char --json
    """
    usage.refuse_if(context > 0 and above is None, "--context needs --above")
    usage.refuse_if(per_char and not json, "--per-char needs --json")
    limit, is_percentile = _limit(above, of, file)
    separator = usage.separator_of(False, records)
    trained = open_model(checkpoint, device, precision, file)

    from charlm.data.reading import is_pipe, text_name
    from charlm.data.records import arriving_records
    from charlm.data.vocabulary import never_seen
    from charlm.inference.texts import score_records

    is_said = unknown_as is not None or not is_pipe(file)
    if not is_said:
        unknown_as = _UNKNOWN_BITS
    unknown_nats = None if unknown_as is None else bits_to_nats(unknown_as)

    def scored(path: str) -> Iterator[list[Any]]:
        lines = arriving_records(path, trained.vocabulary, separator or trained.config.data.records)
        return score_records(trained.network, trained.vocabulary, lines, text_name(path), unknown_nats)

    limit_nats, blocks = bits_to_nats(limit), scored(file)
    if is_percentile:
        normal = [*itertools.chain(*(scored(of) if of else blocks))]
        if of and not normal:
            raise DataError(f"--of {of}: found no line; allowed: a file of normal lines")
        limit_nats = _percentile_nats([nats for line, nats, _ in normal if line], limit) if normal else 0.0
        blocks = blocks if of else iter([normal])

    number, due = 0, 0
    before: deque[tuple[int, str, Any, str]] = deque(maxlen=context)
    for block in blocks:
        kept = []
        for line, nats, unknown in block:
            number += 1
            scored_line = (number, line, nats, unknown)
            if unknown and not is_said:
                counts = f"each such character counts as {_UNKNOWN_BITS:g} bits; see --unknown-as"
                say("unknown", f"{text_name(file)}, line {number:,}: {never_seen(unknown)}; {counts}")
                is_said = True
            is_below = _sum(nats) / len(nats) <= limit_nats + _ROUNDING_NATS  # nan is above every limit
            is_empty = is_percentile and not line  # all empty lines have the same score, which would hide other lines
            if above is None or unknown or not (is_below or is_empty):
                kept += [*before, scored_line]
                before.clear()
                due = context
            elif due:
                kept.append(scored_line)
                due -= 1
            else:
                before.append(scored_line)
        rows = []
        for place, line, nats, unknown in kept:
            rows.append(_json_row(place, line, nats, unknown, per_char) if json else _row(place, line, nats))
        print_exactly("".join(f"{row}\n" for row in rows))


def _limit(above: str | None, of: str | None, file: str) -> tuple[float, bool]:
    """The number of --above, and whether it is a percentile; a usage error for one that the text does not allow."""
    from charlm.data.reading import is_pipe

    match = _LIMIT.fullmatch("0" if above is None else above)
    if not match or (match[1] and float(match[2]) > 100):
        raise usage.error(
            f"--above: found {above!r}; allowed: bits per character (3.2), or a percentile of the lines of a file, p0 "
            "to p100 (p99)"
        )
    if match[1] and of is None and is_pipe(file):
        allowed = "a file, a number such as --above 3.2, or --of with a file of normal lines"
        raise usage.error(f"--above {above}: found a pipe; allowed: {allowed}")
    usage.refuse_if(of is not None and not match[1], "--of needs a percentile, such as --above p99")
    usage.refuse_if(of == "-", "--of: found stdin; allowed: a file of normal lines")
    return float(match[2]), bool(match[1])


def _percentile_nats(lines: list[Any], percentile: float) -> float:
    """The percentile of the lines' nats per character, always that of one of them; says it in bits."""
    import numpy as np

    nats = float(np.percentile([_sum(nats) / len(nats) for nats in lines], percentile, method="higher"))
    say("above", f"{nats_to_bits(nats):.4f} bits per character, p{percentile:g} of {counted(len(lines), 'line')}")
    return nats


def _sum(nats: Any) -> float:
    return float(nats.sum(dtype="float64"))


def _row(number: int, line: str, nats: Any) -> str:
    bits = nats_to_bits(_sum(nats))
    return f"{bits / len(nats):.4f}\t{bits:.2f}\t{number}\t{on_one_line(line)}"


def _json_row(number: int, line: str, nats: Any, unknown: str, per_char: bool) -> str:
    from charlm.data.vocabulary import readable

    row: dict[str, Any] = {"line": number, "text": readable(line)}
    row |= {"bits_per_char": nats_to_bits(_sum(nats) / len(nats)), "bits": nats_to_bits(_sum(nats))}
    row |= {"chars": len(nats), "unknown": readable(unknown)}
    if per_char:
        row["per_char"] = [round(nats_to_bits(each), 4) for each in nats.tolist()]
    return json_line(row)
