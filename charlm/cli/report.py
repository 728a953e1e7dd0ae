"""charlm report."""

from pathlib import Path
from typing import Annotated

import typer

from charlm.cli.common import PageFile, write_page
from charlm.cli.completion import complete_run
from charlm.system.console import say
from charlm.system.formatting import one_line

Runs = Annotated[
    list[Path],
    typer.Argument(metavar="RUN...", help="Runs, or folders that hold some.", autocompletion=complete_run),
]


def report(runs: Runs, out: PageFile = Path("report.html")) -> None:
    """Write a page of HTML about one or several runs.

    The curves of loss, learning rate, gradient norm and speed, the settings in which the runs differ, samples over
    time, and the final scores. One file: open it in a browser, offline, or send it to a colleague.

    \b
    Example:
      charlm report runs/mine runs/other --out report.html
    """
    from charlm.data.outputs import check_output, page_of
    from charlm.errors import RunError
    from charlm.report import read_run, report_page, runs_in

    paths = {path.resolve(): path for given in runs for path in runs_in(given)}
    records = [read_run(path) for path in paths.values()]
    for record in records:
        for fault in record.faults:
            say("note", f"{one_line(str(record.path))}: {one_line(fault)}")
    if all(record.is_empty for record in records):
        raise RunError(
            f"{records[0].path}: nothing to show; allowed: a run with rows in its metrics.jsonl; "
            "training writes one every train.log_every steps"
        )
    check_output(out, "--out", page_of("report"))
    write_page(out, report_page(records))
