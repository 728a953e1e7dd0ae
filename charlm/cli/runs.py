"""charlm runs."""

import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charlm.cli.common import Json, print_json
from charlm.system.console import say, terminal_columns
from charlm.system.formatting import columns_of, one_line

if TYPE_CHECKING:
    from charlm.runs import Run

Folder = Annotated[
    Path | None,
    typer.Argument(metavar="DIR", help="A folder of runs, or one run.  [default: runs]", show_default=False),
]


def runs(folder: Folder = None, json: Json = False) -> None:
    """List the runs in a folder: model, steps, best score, state.

    The newest run comes first. Reads only a few kilobytes per run, and never disturbs one that is being trained.

    \b
    States:
      in use         a process is training it now
      finished       a limit was reached, such as train.max_steps
      resumable      charlm train --resume --run-dir RUN continues it
      damaged        no checkpoint of it can be read
      no checkpoint  it stopped before it wrote one
    \b
    Examples:
      charlm runs
      charlm runs experiments --json
    """
    from charlm.errors import RunError
    from charlm.runs import describe_run, find_runs

    where = folder or Path("runs")
    if folder and not folder.is_dir():
        found = "is a file" if folder.exists() else "no such folder"
        raise RunError(f"{folder}: {found}; allowed: a folder that holds runs")
    found = [] if not where.is_dir() else [describe_run(path) for path in find_runs(where, _say_unreadable)]
    found.sort(key=lambda run: (-run.written_s, str(run.path)))
    if json:
        print_json([_as_json(run) for run in found])
    elif found:
        _print(found)
    else:
        say("runs", f"none in {where}; start one, for example:", "charlm train my.txt --minutes 10")


def _say_unreadable(error: OSError) -> None:
    say("skipped", f"{error.filename}: {error.strerror}")


def _as_json(run: "Run") -> dict[str, Any]:
    try:
        written = datetime.fromtimestamp(run.written_s).astimezone().isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):  # a year that Python does not have
        written = None
    values = vars(run) | {"path": str(run.path), "written": written}
    return {name: value for name, value in values.items() if name != "written_s"}


def _print(found: "list[Run]") -> None:
    now_s = time.time()
    rows = [("run", "model", "parameters", "steps", "best nats/char", "written", "state")]
    rows += [
        (
            one_line(str(run.path)),
            f"{one_line(run.kind)} {run.layers} × {run.hidden}" if run.kind else "—",
            "—" if run.parameters is None else f"{run.parameters:,}",
            "—" if run.step is None else f"{run.step:,}",
            "—" if run.best_nats is None else f"{run.best_nats:.4f}",
            _ago(now_s - run.written_s),
            run.state,
        )
        for run in found
    ]
    widths = [max(map(columns_of, column)) for column in zip(*rows, strict=True)]
    columns = terminal_columns(sys.stdout)
    too_wide = columns is not None and sum(widths) + 2 * len(widths) - 2 > columns
    for row in rows:
        cells = []
        for column, (text, width) in enumerate(zip(row, widths, strict=True)):
            padding = " " * (width - columns_of(text))
            cells.append(padding + text if column in (2, 3, 4) else text + padding)
        if too_wide:
            typer.echo(row[0])
            cells[0] = ""
        typer.echo("  ".join(cells).rstrip())


def _ago(seconds: float) -> str:
    """How long ago, in one unit."""
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length_s:
            return f"{seconds // length_s:.0f} {unit} ago"
    return "just now"
