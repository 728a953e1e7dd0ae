"""charlm compare."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from charlm.cli import usage
from charlm.cli.common import print_json, print_rows, write_page
from charlm.new_run import COMPARED, DEFAULT_MINUTES, check_minutes, check_there, comparison_folder
from charlm.system.console import say

if TYPE_CHECKING:
    from charlm.comparison import Row

Cells = Annotated[
    str, usage.option("KINDS", "Kinds of cells, or Python files with a cell of your own, with commas between them.")
]
_CELLS = ",".join(COMPARED)
Equal = Annotated[
    Literal["parameters", "time", "updates"],
    usage.option("WHAT", "What the models have in common: parameters, time or updates."),
]


def compare(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A file, a folder or a glob.")],
    minutes: Annotated[
        float, usage.option("M", "Minutes that each model trains.", callback=usage.minutes_checked)
    ] = DEFAULT_MINUTES,
    cells: Cells = _CELLS,
    equal: Equal = "parameters",
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

    charlm chooses settings for each kind. With equal parameters, all get as many as the smallest model that it would
    choose, and the same batch and window. The columns u, c and t are the validation score after as many updates,
    characters and seconds as the run with the fewest made. Memory: with how many characters of context a model is as
    good as with 256. Gradient: what is left of it 100 characters back.

    Ctrl-C stops; the same command goes on.

    \b
    Example:
      charlm compare my.txt --minutes 2 --cells rnn,lstm,gru,rhn --seeds 3
    """
    kinds = tuple(dict.fromkeys(filter(None, (cell.strip() for cell in cells.split(",")))))
    settings = tuple(overrides or ())
    usage.refuse_if(len(kinds) < 2, "--cells: found fewer than two; allowed: for example rnn,lstm")
    check_minutes(minutes, [*settings], is_chosen=True)
    check_there(texts=[text])
    folder = out or comparison_folder(text)

    from charlm.comparison import Plan, compare, comparison_page
    from charlm.training.signals import SIGNALS

    plan = Plan(text, minutes, kinds, equal, seeds, settings)
    rows, signal = compare(plan, folder)
    if signal:
        say("stopped", f"{signal}; the same command goes on")
        raise typer.Exit(SIGNALS[signal])
    if json:
        print_json({"folder": str(folder), "rows": [asdict(row) for row in rows]})
    else:
        _print(rows)
    write_page(folder / "comparison.html", comparison_page(plan, folder, prompt))


def _print(rows: "list[Row]") -> None:
    """The best first."""

    def number(value: float | None, form: str = ".4f") -> str:
        return "—" if value is None else format(value, form)

    table = [("cell", "units", "parameters", "chars/s", "best nats", "u", "c", "t", "memory", "gradient")]
    for row in sorted(rows, key=lambda row: (row.nats is None, row.nats)):
        spread = "" if row.spread is None else f" ± {row.spread:.4f}"
        table.append(
            (
                row.cell,
                f"{row.layers} × {row.hidden}",
                f"{row.parameters:,}",
                f"{row.chars_per_s:,.0f}",
                number(row.nats) + spread,
                number(row.nats_after_updates),
                number(row.nats_after_chars),
                number(row.nats_after_time),
                number(row.memory, "d"),
                number(row.gradient, ".1e"),
            )
        )
    print_rows(table, right=range(1, len(table[0])))
