"""charlm score: the surprise of each line of a text to a model, in bits."""

import functools
import itertools
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, NamedTuple

import typer

from charlm.cli import usage
from charlm.cli.common import json_line, on_one_line, open_model, print_exactly
from charlm.data.reading import is_pipe, text_name
from charlm.errors import DataError
from charlm.system.console import say
from charlm.system.formatting import bits_to_nats, counted, nats_to_bits, one_line, readable
from charlm.system.number import LARGEST

_LIMIT = re.compile(r"(p?)(\d+(?:\.\d*)?|\.\d+)", re.ASCII)
_ROUNDING_NATS = bits_to_nats(1e-4)
"""The last digit that is printed. Equal lines differ by less: their rounding depends on the lines read beside them."""
_UNKNOWN_BITS = 20.0

Above = Annotated[
    str | None,
    usage.option("X", "Print only lines above X bits per character, or above a percentile of the lines, such as p99."),
]
Of = Annotated[str | None, usage.option("NORMAL", "Take the percentile of --above from the lines of this text.")]
Worst = Annotated[
    int | None,
    usage.option(
        "N",
        "Judge a line by its most surprising N neighboring characters, not by all; 1: by its worst character.",
        min=1,
        max=LARGEST,
    ),
]
After = Annotated[
    str,
    usage.option(
        "REGEX",
        r"Score only what follows this at the start of a line, such as '\S+ ' for a time; the model reads it all.",
    ),
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


class _Line(NamedTuple):
    """A scored line."""

    file: str
    number: int
    """In its file."""
    text: str
    nats: Any
    """Of each scored character, the end included."""
    unknown: str
    surprise_nats: float
    """Per character: what limits and percentiles are of."""


def score(
    checkpoint: usage.Checkpoint,
    file: Annotated[str, typer.Argument(metavar="TEXT", help="The lines: a file, a folder or a glob; - is stdin.")],
    above: Above = None,
    of: Of = None,
    worst: Worst = None,
    after: After = "",
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
      charlm score runs/logs app.log --above p99 --worst 1 --unknown-as 20
      tail -f app.log | charlm score runs/logs - --above p99.9 --of normal.log
      charlm score runs/mine lines.txt --per-char --json
    """
    usage.refuse_if(context and above is None, "--context needs --above")
    usage.refuse_if(per_char and not json, "--per-char needs --json")
    limit, is_percentile = _limit(above, of, file)
    separator, prefix = usage.separator_of(False, records), usage.regex("--after", after)
    trained = open_model(checkpoint, device, precision, file)

    from charlm.data.sources import text_files
    from charlm.data.vocabulary import never_seen

    is_monitor = unknown_as is None and is_pipe(file)
    unknown_bits = _UNKNOWN_BITS if is_monitor else unknown_as
    score_of = functools.partial(_scored, trained, separator, unknown_bits, prefix, worst)
    limit_nats, blocks = bits_to_nats(limit), score_of(file)
    if is_percentile:
        normal = [*itertools.chain(*(score_of(of) if of else blocks))]
        if of and not normal:
            raise DataError(f"--of {of}: found no line; allowed: a text of normal lines")
        limit_nats = _percentile_nats([line for line in normal if len(line.nats) > 1], limit)
        blocks = blocks if of else iter([normal])

    def is_kept(line: _Line) -> bool:
        is_below = line.surprise_nats <= limit_nats + _ROUNDING_NATS  # nan is above every limit
        is_empty = is_percentile and len(line.nats) == 1  # all have the same score, which would hide other lines
        return above is None or (is_monitor and bool(line.unknown)) or not (is_below or is_empty)

    names_file, is_said = len(text_files(file)) > 1, not is_monitor
    row = _json_row if json else _row
    for kept in _with_context(blocks, is_kept, context):
        if not is_said and (line := next((line for line in kept if line.unknown), None)):
            counts = f"each such character counts as {_UNKNOWN_BITS:g} bits; see --unknown-as"
            say("unknown", f"{line.file}, line {line.number:,}: {never_seen(line.unknown)}; {counts}")
            is_said = True
        print_exactly("".join(f"{row(line, names_file, worst, per_char)}\n" for line in kept))


def _scored(
    trained: Any, separator: str, unknown_bits: float | None, prefix: re.Pattern[str], worst: int | None, source: str
) -> Iterator[list[_Line]]:
    """The lines of each file of a source, some at a time; a lone record is told, if the user gave the separator."""
    from charlm.data.records import arriving_records
    from charlm.data.sources import text_files
    from charlm.inference.texts import score_records, surprise_of

    unknown_nats = None if unknown_bits is None else bits_to_nats(unknown_bits)
    count = 0
    for path in text_files(source):
        name, number = text_name(path), 0
        records = arriving_records(path, trained.vocabulary, separator or trained.config.data.records)
        for block in score_records(trained.network, trained.vocabulary, records, name, unknown_nats, prefix):
            lines = []
            for text, nats, unknown in block:
                number += 1
                lines.append(_Line(name, number, text, nats, unknown, surprise_of(nats, worst)))
            yield lines
        count += number
    if separator and count == 1:
        say("records", f"{text_name(source)}: found one record; see --records")


def _with_context(
    blocks: Iterable[list[_Line]], is_kept: Callable[[_Line], bool], context: int
) -> Iterator[list[_Line]]:
    """The lines of each block that are kept, and so many lines of the same file before and after each."""
    before: deque[_Line] = deque(maxlen=context)
    due = 0
    for block in blocks:
        shown = []
        for line in block:
            if line.number == 1:
                before.clear()
                due = 0
            if is_kept(line):
                shown += [*before, line]
                before.clear()
                due = context
            elif due:
                shown.append(line)
                due -= 1
            else:
                before.append(line)
        yield shown


def _limit(above: str | None, of: str | None, file: str) -> tuple[float, bool]:
    """The number of --above, and whether it is a percentile; a usage error for one that the text does not allow."""
    match = _LIMIT.fullmatch("0" if above is None else above)
    if not match or (match[1] and float(match[2]) > 100):
        raise usage.error(
            f"--above: found {above!r}; allowed: bits per character (3.2), or a percentile of the lines of a text, p0 "
            "to p100 (p99)"
        )
    if match[1] and of is None and is_pipe(file):
        allowed = "a file, a number such as --above 3.2, or --of with a file of normal lines"
        raise usage.error(f"--above {above}: found a pipe; allowed: {allowed}")
    usage.refuse_if(of is not None and not match[1], "--of needs a percentile, such as --above p99")
    usage.refuse_if(of == "-", "--of: found stdin; allowed: a file of normal lines")
    return float(match[2]), bool(match[1])


def _percentile_nats(lines: list[_Line], percentile: float) -> float:
    """The percentile of the lines' nats per character, always that of one of them; says it in bits."""
    import numpy as np

    if not lines:
        return 0.0
    nats = float(np.percentile([line.surprise_nats for line in lines], percentile, method="higher"))
    say("above", f"{nats_to_bits(nats):.4f} bits per character, p{percentile:g} of {counted(len(lines), 'line')}")
    return nats


def _row(line: _Line, names_file: bool, *_: Any) -> str:
    file = f"{one_line(line.file)}:" if names_file else ""
    bits = nats_to_bits(float(line.nats.sum(dtype="float64")))
    return f"{nats_to_bits(line.surprise_nats):.4f}\t{bits:.2f}\t{file}{line.number}\t{on_one_line(line.text)}"


def _json_row(line: _Line, names_file: bool, worst: int | None, per_char: bool) -> str:
    row: dict[str, Any] = {"file": readable(line.file)} if names_file else {}
    row |= {"line": line.number, "text": readable(line.text)}
    bits = nats_to_bits(float(line.nats.sum(dtype="float64")))
    row |= {"bits_per_char": bits / len(line.nats), "bits": bits, "chars": len(line.nats)}
    row["unknown"] = readable(line.unknown)
    if worst:
        row["worst_bits_per_char"] = nats_to_bits(line.surprise_nats)
    if per_char:
        row["per_char"] = [round(nats_to_bits(each), 4) for each in line.nats.tolist()]
    return json_line(row)
