"""charlm runs, charlm report: what there is on disk."""

import contextlib
import itertools
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from charlm.cli import usage
from charlm.cli.common import print_json, print_rows, write_page
from charlm.data.outputs import check_output
from charlm.errors import RunError
from charlm.runs import INTERVALS, RunSummary, describe_run, find_runs
from charlm.scored import apart, text_names
from charlm.system.console import say, terminal_columns
from charlm.system.files import reason_of
from charlm.system.formatting import columns_of, format_duration, one_line

_NUMBERS = ("updates", "nats/char")
"""The columns that end at their right."""
_LEFT_OUT = ("written", "scored on", "updates")
"""The columns that a narrow terminal does not get, in this order."""
_SHOWN = ("data.source", "model.cell.kind", "model.cell.hidden", "model.layers", "model.members")
"""Options that other columns show."""
_MOST_OPTIONS, _MOST_NAMED = 3, 6
"""How many of the options that tell runs apart have columns, and how many others a note names."""


def runs(
    folder: Annotated[Path | None, typer.Argument(metavar="DIR", help="Runs, or one run.  [default: runs]")] = None,
    json: usage.Json = False,
) -> None:
    """List the runs in a folder: model, updates, best score, state.

    The newest run comes first. Reads a few kilobytes per run, also while it is being trained.

    \b
    States:
      in use         a process is training it now
      finished       a limit was reached, such as train.max_steps
      resumable      charlm train --resume --run-dir RUN continues it
      damaged        no checkpoint of it can be read
      other version  of checkpoints; `charlm sample RUN` says which
      no checkpoint  it stopped before it wrote one
    \b
    Example:
      charlm runs experiments --json
    """
    where = folder or Path("runs")
    if folder and not where.is_dir():
        fault = "is a file" if folder.exists() else "no such folder"
        raise RunError(f"{folder}: {fault}; allowed: a folder that holds runs")

    paths = find_runs(where, lambda error: say("skipped", f"{error.filename}: {reason_of(error)}"))
    listed = [describe_run(path) for path in paths] if where.is_dir() else []
    listed.sort(key=lambda run: (-run.written_s, str(run.path)))
    if json:
        print_json([asdict(run) | {"path": str(run.path)} for run in listed])
    elif listed:
        scored = {run.path: run.scored for run in listed if run.best_nats is not None}
        names = dict(zip(scored, text_names([*scored.values()]), strict=True))
        differing = _differing(listed)
        columns: dict[str, Callable[[RunSummary], object]] = {
            "run": lambda run: run.path,
            "model": lambda run: run.model and f"{run.model:.100}",
            **dict(itertools.islice(differing.items(), _MOST_OPTIONS)),
            "updates": lambda run: None if run.step is None else f"{run.step:,}",
            "nats/char": lambda run: None if run.best_nats is None else f"{run.best_nats:.4f}",
            "scored on": lambda run: f"{names.get(run.path) or '':.200}",
            "written": lambda run: f"{format_duration(max(0.0, time.time() - run.written_s))} ago",
            "state": lambda run: run.state,
        }
        table: dict[str, list[str]] = {}
        for name, find in columns.items():
            table[name] = [name, *(one_line(str(find(run) or "—")) for run in listed)]
        width = terminal_columns(sys.stdout) or math.inf
        for name in (*_LEFT_OUT, *reversed(differing)):
            if name in table and sum(max(map(columns_of, cells)) + 2 for cells in table.values()) - 2 > width:
                del table[name]
        rows = [*zip(*table.values(), strict=True)]
        print_rows(rows, right=[place for place, name in enumerate(table) if name in _NUMBERS or name in differing])
        if untold := [name for name in differing if name not in table]:
            some = ", ".join(untold[:_MOST_NAMED]) + ", …" * (len(untold) > _MOST_NAMED)
            say("note", f"the runs also differ in {some}; charlm report shows all options")
        if note := apart([*scored.values()]):
            say("note", note)
    else:
        say("runs", f"none in {where}; start one, for example:", "charlm train my.txt --minutes 10")


def _differing(runs: Sequence[RunSummary]) -> dict[str, Callable[[RunSummary], object]]:
    """A column for each option that tells the runs apart and that no other column shows, those of the model first."""
    if len(runs) < 2:
        return {}
    from charlm.config import flatten
    from charlm.system.faults import show

    options: dict[Path, dict[str, str]] = {}
    for run in runs:
        with contextlib.suppress(RecursionError):  # a forged config
            flat = flatten(run.config)
            options[run.path] = {
                key: value[:60] if isinstance(value, str) else show(value) for key, value in flat.items()
            }
    keys = dict.fromkeys(key for each in options.values() for key in each)
    differing: list[str] = []
    for key in keys:
        values = {each.get(key, "") for each in options.values() if each}
        if len(values) > 1 and key not in _SHOWN and key not in INTERVALS:
            differing.append(key)
    order = {"model": 0, "train": 1, "optimizer": 2}
    differing.sort(key=lambda key: order.get(key.split(".")[0], len(order)))
    return {key: lambda run, key=key: options.get(run.path, {}).get(key) for key in differing}


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Runs, or folders that hold some.")],
    out: usage.PageFile = Path("report.html"),
) -> None:
    """Write a page of HTML about one or several runs.

    Shows curves of scores, learning rate, gradient norm and speed, settings that differ, samples over time, and final
    scores; for a comparison's folder, its measures. One file: open it in a browser, offline, or send it to a colleague.

    \b
    Example:
      charlm report runs/mine runs/other --out report.html
    """
    from charlm.report.page import report_page
    from charlm.report.run import read_comparison, read_run, runs_in

    paths = {path.resolve(): path for given in runs for path in runs_in(given)}
    read = [read_run(path) for path in paths.values()]
    comparisons = ((found, folder) for folder in runs if (found := read_comparison(folder)))
    comparison, folder = next(comparisons, (None, Path()))
    check_output(out, "--out", "a page of charlm report")
    write_page(out, report_page(read, comparison, folder))
