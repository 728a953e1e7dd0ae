"""charlm compare."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from charlm.cli import usage
from charlm.cli.common import print_json, print_rows, write_page
from charlm.comparison.plan import EQUAL, KINDS, Equal, Plan
from charlm.errors import ConfigError
from charlm.new_run import DEFAULT_MINUTES, check_minutes, check_there, comparison_folder
from charlm.system.console import say
from charlm.system.formatting import format_count

if TYPE_CHECKING:
    from charlm.comparison.compare import Row

Cells = Annotated[
    str, usage.option("KINDS", "Kinds of cells, or Python files with a cell of your own, with commas between them.")
]
_CELLS = ",".join(KINDS)
EqualOption = Annotated[Equal, usage.option("WHAT", f"What the models have in common: {' | '.join(EQUAL)}.", "--equal")]


def compare(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A file, a folder or a glob.")],
    minutes: Annotated[float, usage.option("M", "Minutes that each model trains.")] = DEFAULT_MINUTES,
    cells: Cells = _CELLS,
    equal: EqualOption = "parameters",
    seeds: Annotated[int, usage.option("N", "Train each kind with seeds 1 to N.", min=1, max=100)] = 1,
    overrides: usage.Overrides = None,
    out: Annotated[
        Path | None,
        usage.option("DIR", "The comparison's folder; one that was stopped goes on.  [default: comparisons/<text>]"),
    ] = None,
    prompt: Annotated[str, usage.option("TEXT", "What each model continues on the page.")] = "",
    json: usage.Json = False,
) -> None:
    """Compare kinds of cells on a text: train one after the other, print a table, and write a page.

    charlm chooses settings for each kind. With equal parameters, all get as many as the middle one of its models, and
    the same batch and window. The columns u, c and t are the validation score after as many updates, characters and
    seconds as the run with the fewest made. Memory: from how many characters of context on a longer one helps by less
    than 0.02 bits. Grad: what is left of the gradient 100 characters back. --json has all digits.

    Ctrl-C stops; the same command goes on.

    \b
    Example:
      charlm compare my.txt --minutes 2 --cells rnn,lstm,gru,rhn --seeds 3
    """
    kinds = tuple(filter(None, (cell.strip() for cell in cells.split(","))))
    settings = tuple(overrides or ())
    try:
        plan = Plan(text, minutes, kinds, equal, seeds, settings)
    except ConfigError as refused:
        raise usage.error(f"--{refused}") from None
    check_minutes(minutes, [*settings])
    check_there(texts=[text])
    folder = out or comparison_folder(text)

    from charlm.comparison.compare import compare
    from charlm.comparison.page import comparison_page
    from charlm.training.signals import SIGNALS

    try:
        compared, signal = compare(plan, folder, prompt)
    except KeyboardInterrupt:
        compared, signal = [], "SIGINT"
    if signal:
        say("stopped", f"{signal}; the same command goes on")
        raise typer.Exit(SIGNALS[signal])
    rows = [kind.row for kind in compared]
    if json:
        print_json({"folder": str(folder), "rows": [asdict(row) for row in rows]})
    else:
        _print(rows)
    write_page(folder / "comparison.html", comparison_page(plan, compared, prompt))


def _print(rows: "Sequence[Row]") -> None:
    """A table of 80 columns at most with the kinds that come with charlm, if there is one seed."""

    def number(value: float | None, form: str = ".3f") -> str:
        return "—" if value is None else format(value, form)

    table = [("cell", "units", "params", "chars/s", "nats", "u", "c", "t", "memory", "grad")]
    for row in rows:
        spread = "" if row.spread is None else f" ± {row.spread:.3f}"
        table.append(
            (
                row.cell,
                f"{row.layers}×{row.hidden}",
                format_count(row.parameters),
                format_count(row.chars_per_s),
                number(row.nats) + spread,
                number(row.nats_after_updates),
                number(row.nats_after_chars),
                number(row.nats_after_time),
                number(row.memory, "d"),
                number(row.gradient, ".1e"),
            )
        )
    print_rows(table, right=range(1, len(table[0])))
    same = "u, c, t: after as many updates, characters, seconds as the run with the fewest"
    say("columns", f"nats: best score per character, lower is better; {same}; `charlm compare --help` has the others")
