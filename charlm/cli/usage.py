"""How commands are called: the options that several share, and usage errors. Nothing here imports torch."""

import math
import re
from collections.abc import Container
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from charlm.new_run import DEFAULT_MINUTES
from charlm.system.console import say
from charlm.system.formatting import DASHES, QUOTES

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


def finite(option: typer.CallbackParam, value: float | None) -> float | None:
    """A callback of an option: a usage error for nan and infinity, which pass `min`."""
    if value is not None and not math.isfinite(value):
        raise error(f"{option.opts[0]}: found {value:g}; allowed: a finite number")
    return value


def device_name(value: str) -> str:
    """The name of a device; a usage error for other words."""
    from charlm.system.section import DEVICE

    if not re.fullmatch(DEVICE, value):
        raise typer.BadParameter(f"{value!r} is none of 'auto', 'cpu', 'cuda', 'cuda:1' (the second GPU) and so on.")
    return value


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
    ),
]
PageFile = Annotated[Path, option("FILE", "Where to write the page.", "--out")]


def config_option(more_help: str) -> Any:
    """The option --config of a command."""
    return option("CONFIG", f"{CONFIG_HELP} {more_help}", "--config")


class Commands(typer.Typer):
    """Commands that check what is typed, see `Command`."""

    def command(self, name: str | None = None, **options: Any) -> Any:
        return super().command(name, cls=Command, **options)


class Command(TyperCommand):
    """A command that refuses dashes and quotes that no keyboard has, and says which of two equal options counts."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given: list[tuple[Any, str]] = []
        try:
            if not ctx.resilient_parsing:  # as it is while a shell completes a word
                given = self._given(ctx, args)
            return super().parse_args(ctx, args)
        except UsageError as wrong:
            wrong.ctx = wrong.ctx or ctx
            values = [value for option, value in given if option is getattr(wrong, "param", None)]
            # Some versions of Typer do not say what they have found.
            if values and (allowed := re.match(r"Input should be ([^,]+)", wrong.message)):
                wrong.message = f"found {values[-1]!r}; allowed: {allowed[1]}"
            raise

    def _given(self, ctx: Any, args: list[str]) -> list[tuple[Any, str]]:
        """The options with their values, as far as the words are right; a usage error for a word that cannot be."""
        options: dict[str, Any] = {
            name: each for each in self.get_params(ctx) for name in each.opts if name.startswith("--")
        }
        given, words = [], iter(args)
        for word in words:
            name, equals, value = word.partition("=")
            option = options.get(name)
            if word == "--" or (option is None and name.startswith("--")):
                break
            if option is None:
                _check_dashes(word, options)
                _check_quotes(word)
                continue
            if not (option.is_flag or equals):
                value = next(words, "")
            if option.metavar not in _FREE_TEXT:
                _check_quotes(value)
            given.append((option, value))
        last = {option.name: value for option, value in given}
        for option, value in given:
            if value != last[option.name] and not option.multiple:
                say("ignored", f"{option.opts[0]} {value}: given again; {option.opts[0]} {last[option.name]} counts")
        return given


_FREE_TEXT = ("TEXT", "A,B,…")
"""Metavariables of options whose text may have quotes."""


def _check_dashes(word: str, options: Container[str]) -> None:
    """A usage error for an option with one hyphen, or with other dashes."""
    typed = word.lstrip(f"-{DASHES}")
    if word[:1] == "-" and f"--{typed.partition('=')[0]}" in options:
        raise error(f"found {word}; type --{typed}")
    refuse_if(word[:1] in DASHES, f"found {word}; allowed: options, or ./{word} for a file of this name")


def _check_quotes(word: str) -> None:
    """A usage error for a word in quotes that a shell does not know, unless it is the name of a file."""
    is_quoted = word[:1] in QUOTES or word[-1:] in QUOTES
    refuse_if(is_quoted and not Path(word).exists(), f"found {word}; allowed: plain quotes, or none")


def command_group(help: str, example: str) -> typer.Typer:
    """A command that has commands."""
    return Commands(help=help, no_args_is_help=True, rich_markup_mode=None, epilog=f"Example: {example}")


def as_settings(overrides: list[str] | None, lines: bool, device: str | None = None) -> list[str]:
    """What --set, --lines and --device set, as KEY=VALUE."""
    settings = list(overrides or [])
    if device:
        settings.append(f"device={device}")
    if lines:
        settings.append("data.unit=line")
    return settings
