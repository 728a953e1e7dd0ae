"""charlm report: a page about runs."""

from pathlib import Path
from typing import Annotated

import typer

from charlm.cli import usage
from charlm.cli.common import write_page


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Runs, or folders that hold some."),
    ],
    out: usage.PageFile = Path("report.html"),
) -> None:
    """Write a page of HTML about one or several runs.

    Shows curves of loss, learning rate, gradient norm and speed, settings that differ, samples over time, and final
    scores; for a comparison's folder, its measures. One file: open it in a browser, offline, or send it to a colleague.

    \b
    Example:
      charlm report runs/mine runs/other --out report.html
    """
    from charlm.data.outputs import check_output
    from charlm.report.page import report_page
    from charlm.report.run import read_comparison, read_run, runs_in

    paths = {path.resolve(): path for given in runs for path in runs_in(given)}
    read = [read_run(path) for path in paths.values()]
    comparisons = ((found, folder) for folder in runs if (found := read_comparison(folder)))
    comparison, folder = next(comparisons, (None, Path()))
    check_output(out, "--out", "a page of charlm report")
    write_page(out, report_page(read, comparison, folder))
