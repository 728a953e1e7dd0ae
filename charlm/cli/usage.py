"""How commands are called: the options that several share, usage errors, and what the shell completes.

Nothing here imports torch or reads a whole file.
"""

import functools
import glob
import inspect
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from charlm.new_run import DEFAULT_MINUTES
from charlm.runs import is_run

# The base class of BadParameter: click's, or the one in Typer's own copy of click (newer versions).
UsageError: Any = typer.BadParameter.__mro__[1]


def error(message: str) -> Exception:
    """The error for a wrong use of options: exit code 2."""
    return UsageError(f"Invalid value: {message}")


def worded(message: str) -> str:
    """A message of click's about a choice, as charlm's own are: what was found, and what is allowed."""
    choice = re.fullmatch(r"(?:Value error, )?(.+) is not one of (.+)\.", message, re.DOTALL)
    return f"found {choice[1]}; allowed: {choice[2]}" if choice else message


def refuse_if(is_wrong: object, message: str) -> None:
    """A usage error with this message, if so."""
    if is_wrong:
        raise error(message)


def checked(is_allowed: Callable[[float], bool], allowed: str) -> Callable[[typer.CallbackParam, Any], Any]:
    """A callback of an option: a usage error for numbers that are not allowed. nan passes `min` and `max`."""

    def check(option: typer.CallbackParam, value: float | None) -> float | None:
        if value is not None and not is_allowed(value):
            raise error(f"{option.opts[0]}: found {value:g}; allowed: {allowed}")
        return value

    return check


finite = checked(math.isfinite, "a finite number")


def device_name(value: str) -> str:
    """The name of a device; a usage error for other words."""
    from charlm.system.section import DEVICE

    if not re.fullmatch(DEVICE, value):
        raise typer.BadParameter(f"{value!r} is none of 'auto', 'cpu', 'cuda', 'cuda:1' (the second GPU) and so on.")
    return value


# What the shell offers for an incomplete argument. No file is read whole.


def complete_config(incomplete: str) -> list[str]:
    """The names of shipped configs, and YAML files."""
    from charlm.config.shipped import shipped_configs

    names = [name for name in shipped_configs() if name.startswith(incomplete)]
    return names + [path for path in _paths(incomplete) if path.endswith((".yaml", ".yml"))]


def complete_run(incomplete: str) -> list[str]:
    """Folders of runs, and checkpoint files."""
    return [path for path in _paths(incomplete) if path.endswith(".safetensors") or is_run(Path(path))]


def _paths(incomplete: str) -> list[str]:
    """The paths that start with `incomplete`, and what is in the folders among them."""
    begin = glob.escape(incomplete)
    return sorted([*glob.glob(f"{begin}*"), *glob.glob(f"{begin}*/*")])  # noqa: PTH207


# Options


def option(metavar: str, help: str, *names: str, **more: Any) -> Any:
    """An option that takes a value; `more`: arguments of `typer.Option`."""
    return typer.Option(*names, metavar=metavar, help=help, **more)


def number(metavar: str, help: str, *names: str, max: float | None = None) -> Any:
    """An option that takes a finite number from 0 on."""
    return option(metavar, help, *names, min=0, max=max, callback=finite)


DEVICE_NAMES = "<auto|cpu|cuda|cuda:N>"
CONFIG_HELP = "A YAML file, or the name of a shipped config (see `charlm config list`)."
Overrides = Annotated[
    list[str] | None, option("KEY=VALUE", "Override an option, e.g. train.max_steps=500; repeatable.", "--set")
]
Device = Annotated[
    str, option(DEVICE_NAMES, "Where to compute; auto takes a GPU if there is one.", "--device", parser=device_name)
]
Precision = Annotated[
    Literal["auto", "fp32", "tf32", "bf16"],
    typer.Option("--precision", help="Precision of matrix products; auto: as in training. Exports compute in fp32."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
SkipUnknown = Annotated[bool, typer.Option("--skip-unknown", help="Leave out characters that the model does not know.")]
Minutes = Annotated[
    float | None,
    option(
        "M",
        "Minutes from the start of the command to its end; with --resume, those of all sessions.  "
        f"[default without a config: {DEFAULT_MINUTES:g}]",
        "--minutes",
    ),
]
Lines = Annotated[
    bool, typer.Option("--lines", help="Each line of the text is a sample of its own; the same as data.unit=line.")
]
Checkpoint = Annotated[
    Path,
    typer.Argument(
        metavar="CKPT",
        help="The folder of a run, for its best checkpoint, or a checkpoint file.",
        autocompletion=complete_run,
    ),
]
PageFile = Annotated[Path, option("FILE", "Where to write the page.", "--out")]


def config_option(more_help: str) -> Any:
    """The option --config of a command."""
    return option("CONFIG", f"{CONFIG_HELP} {more_help}", "--config", autocompletion=complete_config)


def command_group(help: str, example: str) -> typer.Typer:
    """A command that has commands."""
    return typer.Typer(help=help, no_args_is_help=True, rich_markup_mode=None, epilog=f"Example: {example}")


def with_options(options: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command take the fields of an options class as options of its own, in place of a parameter `options`.

    A field's metadata are arguments of `typer.Option`. A usage error for a value that the class refuses.
    """
    names = [field.name for field in fields(options)]

    def parameters(command: Callable[..., None]) -> Iterator[inspect.Parameter]:
        for parameter in inspect.signature(command).parameters.values():
            if parameter.name != "options":
                yield parameter
                continue
            for field in fields(options):
                annotation = Annotated[field.type, typer.Option(**field.metadata)]
                yield parameter.replace(name=field.name, default=field.default, annotation=annotation)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def flat(**values: Any) -> None:
            try:
                chosen = options(**{name: values.pop(name) for name in names})
            except ValueError as refused:
                name, _, fault = str(refused).partition(":")
                raise error(f"--{name.replace('_', '-')}:{fault}") from None
            command(**values, options=chosen)

        flat.__signature__ = inspect.Signature([*parameters(command)])  # pyright: ignore[reportAttributeAccessIssue]
        return flat

    return decorate


def as_settings(overrides: list[str] | None, lines: bool, device: str | None = None) -> list[str]:
    """What --set, --lines and --device set, as KEY=VALUE."""
    return [*(overrides or []), *([f"device={device}"] if device else []), *(["data.unit=line"] if lines else [])]
