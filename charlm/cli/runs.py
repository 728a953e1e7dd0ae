"""charlm runs, report, look, export: what there is on disk, and what can be made of it."""

import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from charlm.api import load
from charlm.cli import usage
from charlm.cli.common import encode_text, print_json, print_rows, write_page
from charlm.errors import RunError
from charlm.new_run import check_there
from charlm.runs import RunSummary, describe_run, find_runs
from charlm.system.console import say
from charlm.system.formatting import one_line


def runs(
    folder: Annotated[Path | None, typer.Argument(metavar="DIR", help="Runs, or one run.  [default: runs]")] = None,
    json: usage.Json = False,
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


def _as_json(run: RunSummary) -> dict[str, Any]:
    try:
        written = datetime.fromtimestamp(run.written_s).astimezone().isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):  # a year that Python does not have
        written = None
    values = vars(run) | {"path": str(run.path), "written": written}
    return {name: value for name, value in values.items() if name != "written_s"}


def _row(run: RunSummary) -> tuple[str, ...]:
    return (
        one_line(str(run.path)),
        f"{one_line(run.kind)} {run.layers} × {run.hidden}{run.several}" if run.kind else "—",
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


Runs = Annotated[
    list[Path],
    typer.Argument(metavar="RUN...", help="Runs, or folders that hold some."),
]


def report(runs: Runs, out: usage.PageFile = Path("report.html")) -> None:
    """Write a page of HTML about one or several runs.

    The curves of loss, learning rate, gradient norm and speed, the settings in which the runs differ, samples over
    time, and the final scores. One file: open it in a browser, offline, or send it to a colleague.

    \b
    Example:
      charlm report runs/mine runs/other --out report.html
    """
    from charlm.data.outputs import check_output
    from charlm.report import read_run, report_page, runs_in

    paths = {path.resolve(): path for given in runs for path in runs_in(given)}
    records = [read_run(path) for path in paths.values()]
    for record in records:
        for fault in record.faults:
            say("note", f"{record.path}: {fault}")
    if all(record.is_empty for record in records):
        raise RunError(
            f"{records[0].path}: nothing to show; allowed: a run with rows in its metrics.jsonl; "
            "training writes one every train.log_every steps"
        )
    check_output(out, "--out")
    write_page(out, report_page(records))


def look(
    checkpoint: usage.Checkpoint,
    file: Annotated[
        Path | None, usage.option("FILE", "Look at this text; - is stdin.  [default: validation text]")
    ] = None,
    length: Annotated[
        int, usage.option("N", "Characters of the text at most, from its beginning.", min=2, max=1_000_000)
    ] = 5000,
    compare: Annotated[
        Path | None,
        usage.option("CKPT", "Show where this model is better or worse."),
    ] = None,
    units: Annotated[int, usage.option("N", "How many units to show.", min=1, max=1000)] = 24,
    gradients: Annotated[
        bool, typer.Option("--gradients", help="Show how far gradients reach, and what led to each prediction.")
    ] = False,
    out: usage.PageFile = Path("look.html"),
    skip_unknown: usage.SkipUnknown = False,
) -> None:
    """Write a page of HTML that shows what a model does with a text.

    Every character shaded by its surprise, what single units respond to, how far back the model looks, and what is
    copied from the training text. One file: open it in a browser, offline.

    \b
    Examples:
      charlm look runs/mine --file my.txt --compare runs/other
      charlm sample runs/mine | charlm look runs/mine --file -
    """
    check_there(runs=[checkpoint], options={"--compare": compare}, texts=[file])
    trained = load(checkpoint, "cpu", "fp32")

    from charlm.data.outputs import check_output
    from charlm.look import look_page, opening

    check_output(out, "--out")
    other = None if compare is None else load(compare, "cpu", "fp32")
    if file is not None:
        ids = encode_text(trained, file, skip_unknown)
        if len(ids) > length:
            say("text", f"{file}: the first {length:,} of {len(ids):,} characters; --length takes more")
        ids = trained.scored_ids(ids[:length])
    else:
        ids = opening(trained, length)
    say("look", f"reading {len(ids):,} characters, and looking for what units track and what is copied ...")
    write_page(out, look_page(trained, ids, other, units=units, gradients=gradients))


To = Annotated[
    Literal["onnx", "html"],
    typer.Option(help="onnx: a file for ONNX runtimes. html: a page that runs the model in a browser."),
]
Int8 = Annotated[
    bool | None,
    typer.Option(
        "--int8/--float32",
        help="For html: weights of 8 bits, refused if they raise the loss by more than 0.5 %; or exact ones.  "
        "[default: int8]",
    ),
]


def export(
    checkpoint: usage.Checkpoint,
    to: To,
    out: Annotated[Path, usage.option("PATH", "The file to write.")],
    int8: Int8 = None,
    novelty: Annotated[
        bool, typer.Option("--novelty", help="For html: the page underlines what it copies from the training text.")
    ] = False,
) -> None:
    """Write a trained model for use without charlm.

    The file is checked before it is written: for onnx its logits are those of charlm, for html its loss. It replaces
    an earlier export in the same format, and nothing else.

    \b
    Examples:
      charlm export runs/mine --to onnx --out mine.onnx
      charlm export runs/mine --to html --out mine.html --novelty
    """
    usage.refuse_if(to != "html" and (int8 is not None or novelty), "--int8, --float32 and --novelty need --to html")
    trained = load(checkpoint, "cpu")

    from charlm.export import export

    options = {"int8": int8 is not False, "novelty": novelty} if to == "html" else {}
    say("export", f"writing {out} and checking it against charlm's own model ...")
    say("export", f"{out}: {export(trained, to, out, **options)}")
