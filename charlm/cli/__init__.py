"""The command line: parse, call, print.

Each command imports what it needs when it runs, so that --help never waits for torch.
"""

import contextlib
import errno
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from charlm import IMPORTED_S, __version__
from charlm.cli import cells, classify, config, data, doctor, evaluate, runs, sample, score, train, tune, write
from charlm.cli.common import open_output
from charlm.cli.export import export
from charlm.cli.look import look
from charlm.cli.next import next_characters
from charlm.cli.report import report
from charlm.errors import CharlmError, ConfigError, is_out_of_memory
from charlm.system.console import say_error
from charlm.system.formatting import printable
from charlm.system.threads import limit_spinning


class _Commands(TyperGroup):
    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _usage_errors_printable():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        """Exit quietly when the reader is gone, as in `charlm sample … | head`, or the terminal, as its SIGHUP does."""
        try:
            with _usage_errors_printable():
                return super().invoke(ctx)
        except OSError as error:
            if not (isinstance(error, BrokenPipeError) or (error.errno == errno.EIO and _terminal_is_gone())):
                raise
            _drop_output()
            sys.exit(129 if error.errno == errno.EIO else 141)


def _terminal_is_gone() -> bool:
    """Whether stdout is a terminal that was closed."""
    try:
        os.get_terminal_size(sys.stdout.fileno())
    except OSError as error:
        return error.errno == errno.EIO
    return False


def _drop_output() -> None:
    """What is left for stdout goes nowhere, so that a later flush does not fail again."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_closed_streams() -> None:
    """Python has None for a stream that is closed (`<&-`): there is nothing to read, and what is written is lost."""
    nothing = Path(os.devnull)
    sys.stdin = sys.stdin or nothing.open(encoding="utf-8")
    sys.stdout = sys.stdout or nothing.open("w", encoding="utf-8")
    sys.stderr = sys.stderr or nothing.open("w", encoding="utf-8")


@contextlib.contextmanager
def _usage_errors_printable() -> Iterator[None]:
    """Escape control characters in usage errors, because these quote the command line."""
    try:
        yield
    except _UsageError as error:
        error.message = printable(error.message)
        raise


# BadParameter's base class: click's, or that in Typer's own copy of click (newer versions).
_UsageError: Any = typer.BadParameter.__mro__[1]


app = typer.Typer(
    cls=_Commands,
    help="Train character-level language models on your own text, and sample from them.",
    epilog="""\b
First steps:
  charlm train my.txt --minutes 5   Train on a text for five minutes.
  charlm runs                       List your runs.
  charlm sample runs/NAME           Write text with it.""",
    no_args_is_help=True,
    # Plain help: rich would double the time that --help takes.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("train")(train.train)
app.command("sample")(sample.sample)
app.command("write", short_help="Write a text with a model's help.")(write.write)
app.command("next")(next_characters)
app.command("classify")(classify.classify)
app.command("eval")(evaluate.evaluate)
app.command("look")(look)
app.command("score")(score.score)
app.command("export")(export)
app.command("plan", short_help="Measure what a config will cost before it runs.")(train.plan)
app.command("tune", short_help="Search for better settings around a config.")(tune.tune)
app.command("runs")(runs.runs)
app.command("report")(report)
app.command("doctor")(doctor.doctor)
app.add_typer(cells.app, name="cells")
app.add_typer(config.app, name="config")
app.add_typer(data.app, name="data")


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit code 1 (2 for usage)."""
    limit_spinning()
    _open_closed_streams()
    open_output()
    try:
        app(prog_name="charlm", obj=IMPORTED_S)
    except CharlmError as error:
        if not error.already_reported:
            for line in error.faults if isinstance(error, ConfigError) else [str(error)]:
                say_error(_shortened(line))
        sys.exit(1)
    except OSError as error:
        if error.filename is not None:
            say_error(f"{_shortened(os.fsdecode(error.filename))}: {error.strerror}")
        elif error.errno in _FULL:
            _drop_output()
            say_error(f"stdout: {error.strerror}; allowed: a place with room for the output")
        else:
            _say_exhausted(error)
        sys.exit(1)
    except Exception as error:
        _say_exhausted(error)
        sys.exit(1)


def _say_exhausted(error: Exception) -> None:
    """Say that memory or threads ran out; raise any other error again."""
    if isinstance(error, ImportError) and is_out_of_memory(error):
        say_error(f"out of memory: a library cannot be loaded ({error}); free some, or raise the limit (`ulimit -v`)")
    elif is_out_of_memory(error):
        say_error(f"out of memory{_wanted(error)}; lower model.cell.hidden, train.batch_size or train.bptt")
    elif "can't start new thread" in str(error):
        say_error(f"{error}; allowed: as many as the system's limit (`ulimit -u`); end other processes, or raise it")
    else:
        raise error


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a write to stdout; other files' have a name."""


def _shortened(line: str) -> str:
    """Shorten a very long line, for example one that quotes a key of megabytes."""
    return line if len(line) <= 2000 else f"{line[:1500]} […] {line[-500:]}"


def _wanted(error: BaseException) -> str:
    """How much memory was asked for and how much was free, from torch's message; "" if it does not say."""
    # On a GPU "Tried to allocate 2.00 GiB. GPU 0 has … of which 1.10 GiB is free."; on the CPU
    # "you tried to allocate 4096 bytes."
    found = re.search(r"ried to allocate ([\d.]+ \w+)", str(error))
    free = re.search(r"of which ([\d.]+ \w+) is free", str(error))
    return f": {found[1]} more were needed{f', {free[1]} are free' if free else ''}" if found else ""
