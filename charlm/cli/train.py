"""charlm train, charlm plan."""

import shlex
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from charlm.cli import usage
from charlm.cli.common import print_exactly, print_json, print_table
from charlm.new_run import TrainOptions, cost_of, say_if_stopped, start
from charlm.runs import CONFIG
from charlm.system.console import say
from charlm.system.formatting import format_duration, nats_to_bits
from charlm.training.budget import leaving_s
from charlm.training.run import Run
from charlm.training.signals import SIGNALS

_WORSE = 1.005
"""Ratio of the last score to the best from which on a line says that it rose."""


def train(
    context: typer.Context,
    text: Annotated[
        str | None,
        typer.Argument(metavar="[TEXT]", help=f"{usage.TEXT_HELP}; - for stdin, which is kept in the run's folder."),
    ] = None,
    minutes: usage.Minutes = None,
    config: usage.Config = None,
    lines: usage.Lines = False,
    records: usage.Records = None,
    overrides: usage.Overrides = None,
    run_dir: Annotated[
        Path | None, usage.option("DIR", "The run's folder.  [default: runs/<name of the config or text>-<time>]")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Resume the run in --run-dir; with TEXT or --config, start it if there is none."),
    ] = False,
    init_from: Annotated[
        Path | None, usage.option("CKPT", "Start from the weights and vocabulary of a checkpoint.")
    ] = None,
    device: usage.OwnDevice = None,
    json: usage.Json = False,
) -> None:
    """Train a new model, or resume a run.

    Without --config, charlm chooses settings for the text, the minutes and this machine, says why, and ends with a
    sample. `charlm config suggest` prints the same settings as YAML.

    Ctrl-C finishes the step, writes a checkpoint and prints how to resume. SIGTERM, SIGQUIT, a closed terminal
    (SIGHUP), and the warnings of batch systems (SIGUSR1, SIGUSR2, SIGXCPU) do the same. A second Ctrl-C, SIGTERM or
    SIGQUIT quits at once. The exit code is 128 + the signal's number.

    \b
    Examples:
      charlm train my.txt --minutes 10
      charlm train builtin:python-stdlib --minutes 1
      charlm train names.txt --lines --minutes 1
      zcat log.gz | charlm train - --lines --run-dir runs/log
      charlm train --config gru my.txt --minutes 5
      charlm train --config lstm my.txt --minutes 10 --set model.layers=3
      charlm train --resume --run-dir runs/lstm-20260102-030405
      charlm train my.txt --minutes 60 --run-dir runs/mine --resume
      charlm train --resume --run-dir runs/mine --set train.max_steps=20000
      charlm train more.txt --init-from runs/mine --minutes 5
    """
    began_s = time.perf_counter() if context.obj is None else context.obj
    usage.refuse_if(resume and run_dir is None, "--resume needs --run-dir, the folder of the run to resume")
    usage.refuse_if(not (config or resume) and text is None, usage.NO_TEXT)
    starts = text is not None or config is not None
    usage.refuse_if(init_from and not starts, "--init-from starts a new run; add TEXT or --config, or leave it out")
    settings = usage.as_settings(overrides, lines, records, device)
    options = TrainOptions(text, minutes, config, settings, init_from, run_dir, resume)
    usage.refuse_if(resume and options.has_pipe(), "--resume needs a text that can be read again; save it to a file")
    options.check_early()

    from charlm.system.process_group import process_group

    with process_group() as group:
        after_s = 0.0 if config else leaving_s(time.perf_counter() - began_s)
        run = start(options, group, began_s - after_s)
    _print_end(run, json and group.is_first)
    if config is None and text is not None and not json and group.is_first:
        _print_sample(run)


def _print_end(run: Run, json: bool) -> None:
    stopped = say_if_stopped(run)  # before the result: stdout may be a terminal that was closed
    if json:
        print_json(asdict(run))
    if stopped:
        raise typer.Exit(SIGNALS[run.reason])
    done = f"{run.reason} at update {run.step}, {format_duration(run.elapsed_s)}"
    best_nats, best_step = run.best_nats, run.best_step
    if best_nats is None or run.valid_nats is None:
        say("done", done)
    else:
        per_record = ""
        if run.best_nats_per_record is not None:
            per_record = f", {run.best_nats_per_record:.2f} nats per record,"
        best = f"best {best_nats:.4f} nats ({nats_to_bits(best_nats):.4f} bits) per character"
        say("done", f"{done}; {best}{per_record} at update {best_step}")
        last = f"{run.valid_nats:.4f} nats"
        if best_step == 0:
            weights = f"the weights that the run started from (the last score is {last})"
            say("best", f"no update improved on {weights}; samples use those weights")
        elif run.valid_nats > _WORSE * best_nats:
            why = "by overfitting" if run.is_overfit else "by chance, or because optimizer.lr is too high"
            rose = f"the validation score rose to {last}, perhaps {why}"
            say("best", f"after update {best_step} {rose}; samples use the checkpoint of that update")
    say("sample", "", f"charlm sample {shlex.quote(run.run_dir)}")


def _print_sample(run: Run) -> None:
    from charlm.config import load_config
    from charlm.data.records import LINE_END

    model = run.load(load_config(run.path / CONFIG).device)
    for seed in range(1, 11) if model.network.reads_records else [1]:
        print_exactly(f"{model.sample(length=400, seed=seed)}{model.config.data.records or LINE_END}")


def plan(
    text: usage.Text = None,
    minutes: usage.Minutes = None,
    config: usage.Config = None,
    lines: usage.Lines = False,
    records: usage.Records = None,
    overrides: usage.Overrides = None,
    device: usage.OwnDevice = None,
    json: usage.Json = False,
) -> None:
    """Show what a run will cost before it runs: sizes, memory, characters/s, time per epoch and of the run.

    Without --config, plans what `charlm train` would choose. Measures at least 5 updates, for about three seconds.
    Writes only to the cache.

    \b
    Examples:
      charlm plan my.txt --minutes 10
      charlm plan --config rhn
      charlm plan --config lstm my.txt --set model.cell.hidden=1024 --json
    """
    usage.refuse_if(config is None and text is None, usage.NO_TEXT)
    options = TrainOptions(text, minutes, config, usage.as_settings(overrides, lines, records, device))
    options.check_early()

    from charlm.system.process_group import process_group

    with process_group() as group:
        result = cost_of(options, group)
    if not group.is_first:
        return
    if json:
        print_json(result)
    else:
        from charlm.training.plan import cost_table

        print_table(cost_table(result))
