"""charlm compare."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from charlm.cli import usage
from charlm.cli.common import print_json, print_rows, write_page
from charlm.comparison.plan import EQUAL, MOST_SEEDS, Equal, Plan, comparison_folder, short_name
from charlm.system.console import say
from charlm.system.formatting import format_count
from charlm.training.signals import SIGNALS


def compare(
    text: usage.NeededText,
    minutes: Annotated[float, usage.option("M", "Minutes that each model trains.")] = Plan.minutes,
    cells: Annotated[
        str, usage.option("KINDS", "Kinds of cells, or Python files with your own cell, separated by commas.")
    ] = ",".join(Plan.cells),
    equal: Annotated[Equal, usage.option("WHAT", f"What the models have in common: {' | '.join(EQUAL)}.")] = Plan.equal,
    plain: Annotated[
        bool, typer.Option("--plain", help="Compare the cells alone: one layer, no normalization, the same settings.")
    ] = Plan.plain,
    seeds: Annotated[int, usage.option("N", "Train each kind with seeds 1 to N.", min=1, max=MOST_SEEDS)] = Plan.seeds,
    lines: usage.Lines = False,
    records: usage.Records = None,
    overrides: usage.Overrides = None,
    out: Annotated[
        Path | None,
        usage.option("DIR", "The comparison's folder; a stopped comparison continues.  [default: comparisons/<text>]"),
    ] = None,
    json: usage.Json = False,
) -> None:
    """Compare kinds of cells on a text: train one after the other, print a table, and write a page.

    charlm chooses settings for each kind, and prints those that differ. With equal parameters, all models have the
    size of the middle one, and the same batch and window. Ctrl-C stops; the same command continues.

    \b
    Columns (all digits with --json):
      nats    best validation score per character; lower is better
      after   the same, after as many characters as the slowest run read
      memory  characters of context; longer ones, up to 256, gain less than 0.02 bits
      grad    norm of the gradient of the loss with respect to the layers' inputs,
              100 characters back ÷ 1 character back

    \b
    Example:
      charlm compare my.txt --minutes 2 --cells rnn,lstm,gru,rhn --seeds 3
    """
    kinds = tuple(filter(None, map(str.strip, cells.split(","))))
    settings = usage.as_settings(overrides, lines, records)
    try:
        plan = Plan(text, minutes, kinds, equal, seeds, settings, plain)
    except ValueError as refused:
        raise usage.error(f"--{refused}") from None
    plan.check_early()
    folder = out or comparison_folder(text)

    from charlm.comparison.compare import PAGE, compare
    from charlm.comparison.page import comparison_data, keep
    from charlm.report.page import report_page, settings_data

    try:
        compared = compare(plan, folder)
    except KeyboardInterrupt as stop:
        signal = str(stop) or "SIGINT"
        say("stopped", f"{signal}; the same command goes on")
        raise typer.Exit(SIGNALS[signal]) from None
    rows, runs, models = ([*column] for column in zip(*compared, strict=True))
    if json:
        print_json({"folder": str(folder), "rows": rows})
    else:
        differing = [each for each in settings_data(runs) if each["differs"]]
        _print(rows, differing, equal)
    comparison = comparison_data(plan, rows, models)
    for note in comparison["notes"]:
        say("note", note)
    keep(folder, comparison)
    write_page(folder / PAGE, report_page(runs, comparison, folder))


def _print(rows: Sequence[dict[str, Any]], differing: Sequence[dict[str, Any]], equal: Equal) -> None:
    """The table, and before it the settings that differ between the kinds and are not in the table.

    At most 80 columns with one seed and the kinds that come with charlm.
    """
    settings = [("differs", *(short_name(row["cell"]) for row in rows))]
    for each in differing:
        if each["key"] not in ("model.cell.kind", "model.cell.hidden", "model.layers"):
            settings.append((each["key"], *(value or "—" for value in each["values"])))
    if len(settings) > 1:
        print_rows(settings, right=range(1, len(settings[0])))
        typer.echo()
    table = [("cell", "units", "params", "chars/s", "nats", "after", "memory", "grad")]
    for row in rows:
        nats, after, memory, gradient = (
            "—" if row[name] is None else format(row[name], form)
            for name, form in (("nats", ".3f"), ("nats_after_chars", ".3f"), ("memory", "d"), ("gradient", ".1e"))
        )
        spread = "" if row["spread"] is None else f" ± {row['spread']:.3f}"
        units = f"{row['layers']}×{row['hidden']}"
        speed = "—" if row["chars_per_s"] is None else format_count(row["chars_per_s"])
        sizes = format_count(row["parameters"]), speed
        table.append((row["cell"], units, *sizes, nats + spread, after, memory, gradient))
    if equal == "updates":  # all have read the same characters: after is nats
        table = [row[:5] + row[6:] for row in table]
    print_rows(table, right=range(1, len(table[0])))
    mean = ", the mean ± the standard deviation of the seeds" if rows[0]["spread"] is not None else ""
    say("columns", f"nats: best score per character{mean}; lower is better; `charlm compare --help` has the others")
