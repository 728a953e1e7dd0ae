"""The commands, and how a user's mistake, a closed pipe or a lack of memory ends one."""

import atexit
import contextlib
import errno
import gc
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from charlm import IMPORTED_S
from charlm.cli import cells, config, data
from charlm.cli.classify import classify
from charlm.cli.common import open_output
from charlm.cli.compare import compare
from charlm.cli.doctor import doctor
from charlm.cli.evaluate import evaluate
from charlm.cli.export import export
from charlm.cli.look import look
from charlm.cli.runs import report, runs
from charlm.cli.sample import next_characters, sample
from charlm.cli.score import score
from charlm.cli.train import plan, train
from charlm.cli.usage import UsageError, check_words, worded
from charlm.errors import CharlmError, ConfigError, is_out_of_memory, is_out_of_processes
from charlm.system.console import say, say_error
from charlm.system.formatting import printable, what_to_type
from charlm.system.host import limit_spinning, limit_threads, raise_limit_or
from charlm.version import __version__


class _Commands(TyperGroup):
    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _explained_to_the_user():
            return super().make_context(*args, **kwargs)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        check_words(args, ctx)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Exit quietly when the reader is gone, as in `charlm sample … | head`, or the terminal, as SIGHUP does."""
        try:
            with _explained_to_the_user():
                return super().invoke(ctx)
        except BrokenPipeError:
            _drop_output()
            sys.exit(141)
        except OSError as error:
            if error.errno != errno.EIO or error.filename is not None:
                raise
            _drop_output()
            sys.exit(129)


@contextlib.contextmanager
def _explained_to_the_user() -> Iterator[None]:
    """Say that Ctrl-C ends the command. Usage errors quote the command line: escape it, and add what to type."""
    try:
        yield
    except KeyboardInterrupt:
        say("stopped", "SIGINT: ended at once")
        raise
    except UsageError as error:
        message = worded(error)
        if advice := what_to_type(message):
            message = message.removesuffix(".") + advice
        error.message = printable(_shortened(message))
        raise


def _shortened(line: str) -> str:
    """A message, which may quote a key of megabytes."""
    return line if len(line) <= 2000 else f"{line[:1500]} […] {line[-500:]}"


def _drop_output() -> None:
    """What is left for stdout goes nowhere, so that a later flush does not fail again."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
app.command()(train)
app.command()(sample)
app.command("next")(next_characters)
app.command()(classify)
app.command("eval")(evaluate)
app.command()(look)
app.command()(score)
app.command()(export)
app.command()(plan)
app.command()(compare)
app.command()(runs)
app.command()(report)
app.command()(doctor)
app.add_typer(cells.app, name="cells")
app.add_typer(config.app, name="config")
app.add_typer(data.app, name="data")


@app.callback(invoke_without_command=True)
def _version(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def _skip_last_collection() -> None:
    """Keep Python from collecting torch's objects at exit, which takes half a second; Triton would list its own."""
    if "triton" not in sys.modules:
        gc.freeze()


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit code 1 (2 for usage)."""
    atexit.register(_skip_last_collection)
    limit_spinning()
    limit_threads()
    if "RANK" in os.environ:  # charlm says in a line what torch's C++ says of other processes in a page
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    # Python has None for a stream that is closed (`<&-`): there is nothing to read, and what is written is lost.
    nothing = Path(os.devnull)
    sys.stdin = sys.stdin or nothing.open(encoding="utf-8")
    sys.stdout = sys.stdout or nothing.open("w", encoding="utf-8")
    sys.stderr = sys.stderr or nothing.open("w", encoding="utf-8")
    open_output()
    try:
        app(prog_name="charlm", obj=IMPORTED_S)
    except Exception as error:
        if (lines := _explained(error)) is None:
            raise
        for line in lines:
            say_error(_shortened(line))
        sys.exit(1)


def _explained(error: Exception) -> Iterable[str] | None:
    """The lines that explain a user's mistake or a lack of memory or disk; None for a bug."""
    if isinstance(error, CharlmError):
        faults = error.faults if isinstance(error, ConfigError) else [str(error)]
        # Other lines quote the characters of a text, or a path that exists.
        if isinstance(error, ConfigError) or "no such file" in faults[0]:
            faults = [fault + what_to_type(fault) for fault in faults]
        return [] if error.already_reported else faults
    if isinstance(error, OSError) and error.filename is not None:
        return [f"{os.fsdecode(error.filename)}: {error.strerror}"]
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        _drop_output()  # other files have a name
        return [f"stdout: {error.strerror}; allowed: a place with room for the output"]
    if is_out_of_memory(error):
        if isinstance(error, ImportError | OSError):
            return [f"memory: too little to load a library; {raise_limit_or('free some')}"]
        advice = "lower model.cell.hidden, train.batch_size or train.bptt"
        is_of_gpu = "out of memory" in str(error)
        return [f"out of memory; {advice if is_of_gpu else raise_limit_or(advice)}"]
    if isinstance(error, RuntimeError) and "CUDA error" in str(error):  # after it, PyTorch can use the GPU no more
        advice = "start again, or resume; CHARLM_KERNELS=none in the environment takes the slow, safe way"
        return [f"gpu: {str(error).splitlines()[0]}; {advice}"]
    if is_out_of_processes(error):
        advice = raise_limit_or("raise the limit (`ulimit -u`, or pids.max of the control group)")
        return [f"processes: the system starts no further thread or process; allowed: dozens for each core; {advice}"]
    return None
