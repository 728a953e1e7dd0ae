"""charlm runs."""

import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charlm.cli.common import Json, print_json, print_rows
from charlm.system.console import say
from charlm.system.formatting import one_line

if TYPE_CHECKING:
    from charlm.runs import Run


def runs(
    folder: Annotated[Path | None, typer.Argument(metavar="DIR", help="Runs, or one run.  [default: runs]")] = None,
    json: Json = False,
) -> None:
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
    Example:
      charlm runs experiments --json
    """
    from charlm.errors import RunError
    from charlm.runs import describe_run, find_runs

    where = folder or Path("runs")
    if folder and not folder.is_dir():
        fault = "is a file" if folder.exists() else "no such folder"
        raise RunError(f"{folder}: {fault}; allowed: a folder that holds runs")

    paths = find_runs(where, lambda error: say("skipped", f"{error.filename}: {error.strerror}"))
    listed = [describe_run(path) for path in paths] if where.is_dir() else []
    listed.sort(key=lambda run: (-run.written_s, str(run.path)))
    if json:
        print_json([_as_json(run) for run in listed])
    elif listed:
        header = ("run", "model", "parameters", "steps", "best nats/char", "written", "state")
        print_rows([header, *map(_row, listed)], right=(2, 3, 4))
    else:
        say("runs", f"none in {where}; start one, for example:", "charlm train my.txt --minutes 10")


def _as_json(run: "Run") -> dict[str, Any]:
    try:
        written = datetime.fromtimestamp(run.written_s).astimezone().isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):  # a year that Python does not have
        written = None
    values = vars(run) | {"path": str(run.path), "written": written}
    return {name: value for name, value in values.items() if name != "written_s"}


def _row(run: "Run") -> tuple[str, ...]:
    return (
        one_line(str(run.path)),
        f"{one_line(run.kind)} {run.layers} × {run.hidden}" if run.kind else "—",
        "—" if run.parameters is None else f"{run.parameters:,}",
        "—" if run.step is None else f"{run.step:,}",
        "—" if run.best_nats is None else f"{run.best_nats:.4f}",
        _ago(time.time() - run.written_s),
        run.state,
    )


def _ago(seconds: float) -> str:
    """How long ago, in one unit."""
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length_s:
            return f"{seconds // length_s:.0f} {unit} ago"
    return "just now"
