"""How commands are called: the options that several share, and usage errors. Nothing here imports torch."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from charlm.system.formatting import DASHES
from charlm.training.budget import DEFAULT_MINUTES

# The base class of BadParameter: click's, or the one in Typer's own copy of click (newer versions).
UsageError: Any = typer.BadParameter.__mro__[1]


def error(message: str, context: Any = None) -> Exception:
    """The error for a wrong use of options: exit code 2."""
    return UsageError(f"Invalid value: {message}", context)


def worded(error: Any) -> str:
    """A message of typer's in the form of charlm's own: what was found, and what is allowed."""
    if (name := getattr(error, "option_name", "")) and (instead := _instead_of(name, error.ctx)):
        error.possibilities = None
        return f"found {name}; allowed: the options of `{error.ctx.command_path} --help`; type {instead}"
    if choice := re.fullmatch(r"(?:Value error, )?(.+) is not one of (.+)\.", error.message, re.DOTALL):
        return f"found {choice[1]}; allowed: {choice[2]}"
    number = re.match(r"(?:Input should be|Unable to parse input string as) ([^,]+)", error.message)
    if number and hasattr(error.__cause__, "errors"):  # pydantic's
        return f"found {error.__cause__.errors()[0]['input']!r}; allowed: {number[1]}"
    return error.message


def _instead_of(name: str, context: Any) -> str:
    """What to type for an option that a command lacks: an option of the config, or the text; "" if it is neither."""
    known = {parameter.name for parameter in context.command.params}
    if name == "--text" and "text" in known:
        return "the text alone, without --text"
    if "overrides" not in known:
        return ""
    from charlm.config.schema import Config
    from charlm.system.faults import json_schema, options_named

    option = next(options_named(name.lstrip("-").replace("-", "_"), json_schema(Config)), "")
    return option and f"--set {option}=VALUE"


def refuse_if(is_wrong: object, message: str) -> None:
    if is_wrong:
        raise error(message)


def device_name(value: str) -> str:
    from charlm.system.section import DEVICE

    if not re.fullmatch(DEVICE, value):
        known = {
            "mps": "charlm does not use Apple's GPUs; type --device cpu",
            "rocm": "type --device cuda for an AMD GPU",
        }
        name = value.lower().replace("hip", "rocm")
        hint = f"; {known[name]}" if name in known else ""
        raise typer.BadParameter(f"found {value}; allowed: auto, cpu, cuda, cuda:1 (the second GPU) and so on{hint}")
    return value


def option(metavar: str, help: str, *names: str, **more: Any) -> Any:
    """An option that takes a value. names: if it has not the parameter's. more: arguments of `typer.Option`."""
    return typer.Option(*names, metavar=metavar, help=help, **more)


DEVICE_NAMES = "<auto|cpu|cuda|cuda:N>"
CONFIG_HELP = "A YAML file, or the name of a shipped config (see `charlm config list`)."
Overrides = Annotated[
    list[str] | None, option("KEY=VALUE", "Override an option, e.g. train.max_steps=500; repeatable.", "--set")
]
Device = Annotated[str, option(DEVICE_NAMES, "Where to compute; auto takes a GPU if there is one.", parser=device_name)]
OwnDevice = Annotated[str | None, option(DEVICE_NAMES, "Override the config's device.", parser=device_name)]
Precision = Annotated[
    Literal["auto", "fp32", "tf32", "bf16"],
    typer.Option(help="Precision of matrix products; auto: as in training. Exports compute in fp32."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
SkipUnknown = Annotated[bool, typer.Option("--skip-unknown", help="Leave out characters that the model does not know.")]
Minutes = Annotated[
    float | None,
    option(
        "M", f"Time limit in minutes; with --resume, of all sessions.  [default without --config: {DEFAULT_MINUTES:g}]"
    ),
]
TEXT_HELP = "The text: a file, a folder, a glob, or builtin:NAME (see `charlm data list`)"
NeededText = Annotated[str, typer.Argument(metavar="TEXT", help=f"{TEXT_HELP}.")]
Text = Annotated[str | None, typer.Argument(metavar="[TEXT]", help=f"{TEXT_HELP}.")]
NO_TEXT = "a text is needed, for example my.txt or builtin:python-stdlib; or --config (see `charlm config list`)"
Config = Annotated[Path | None, option("CONFIG", f"{CONFIG_HELP} Not needed with TEXT or --resume.")]
Lines = Annotated[bool, typer.Option("--lines", help=r"Each line is a sample of its own; the same as --records '\n'.")]
Records = Annotated[
    str | None,
    option("SEP", r"Text between two records, such as '\n~~~\n'; each record is a sample of its own."),
]
Checkpoint = Annotated[
    Path, typer.Argument(metavar="CKPT", help="A run's folder (its best checkpoint), or a checkpoint file.")
]
PageFile = Annotated[Path, option("FILE", "Where to write the page.")]


def check_words(words: list[str], context: Any) -> None:
    """A usage error for an option that begins with one hyphen, or with a typographic dash.

    The word after an option may be its value, so it is not checked.
    """
    before = ""
    for word in words:
        if word == "--":
            return
        name = word.lstrip(f"-{DASHES}")
        is_option = len(name) > 1 and name[0].isalpha() and not before.startswith("--")
        if is_option and word[0] == "-" and not word.startswith("--"):
            raise error(f"found {word}; type --{name}", context)
        if is_option and word[0] in DASHES:
            raise error(f"found {word}; allowed: options, or ./{word} for a file of this name", context)
        before = word


def command_group(help: str, example: str) -> typer.Typer:
    return typer.Typer(help=help, no_args_is_help=True, rich_markup_mode=None, epilog=f"Example: {example}")


def separator_of(lines: bool, records: str | None) -> str:
    """The separator that --lines or --records gives, see `unescaped`; "" for neither."""
    refuse_if(lines and records is not None, "--lines and --records exclude one another")
    refuse_if(records == "", r"--records: found an empty text; allowed: what stands between records, such as '\n~~~\n'")
    return "\n" if lines else unescaped(records or "")


def unescaped(text: str) -> str:
    r"""A text in which \n, \r and \t are LF, CR and a tab."""
    return text.replace(r"\n", "\n").replace(r"\r", "\r").replace(r"\t", "\t")


def regex(name: str, pattern: str) -> re.Pattern[str]:
    """The regular expression of an option; a usage error for one that Python does not understand."""
    try:
        return re.compile(pattern, re.DOTALL)
    except re.error as refused:
        raise error(f"{name}: found {pattern!r}: {refused}; allowed: a regular expression of Python") from None


def as_settings(
    overrides: list[str] | None, lines: bool = False, records: str | None = None, device: str | None = None
) -> dict[str, Any]:
    """What --set, --lines or --records, and --device set."""
    from charlm.config import merged, read_settings

    options = {"device": device, "data.records": separator_of(lines, records)}
    return merged(read_settings(overrides or ()), {key: value for key, value in options.items() if value})
