"""Options and output that several commands share."""

import codecs
import csv
import functools
import inspect
import io
import math
import os
import re
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from charlm.api import DEFAULT_MINUTES, MOST_MINUTES
from charlm.cli.completion import complete_config, complete_run
from charlm.system.console import say, terminal_columns
from charlm.system.formatting import (
    columns_of,
    counted,
    escaped,
    format_bytes,
    nats_to_bits,
    one_line,
    to_json,
    wrapped,
)

# The base class of BadParameter: click's, or the one in Typer's own copy of click (newer versions).
UsageError: Any = typer.BadParameter.__mro__[1]


def usage_error(message: str) -> Exception:
    """The error for a wrong use of options: exit code 2."""
    return UsageError(f"Invalid value: {message}")


def checked(is_allowed: Callable[[float], bool], allowed: str) -> Callable[[typer.CallbackParam, Any], Any]:
    """A callback of an option: a usage error for numbers that are not allowed. nan passes `min` and `max`."""

    def check(option: typer.CallbackParam, value: float | None) -> float | None:
        if value is not None and not is_allowed(value):
            raise usage_error(f"{option.opts[0]}: found {value:g}; allowed: {allowed}")
        return value

    return check


finite = checked(math.isfinite, "a finite number")
minutes_checked = checked(
    lambda minutes: 0 < minutes <= MOST_MINUTES, f"a number above 0, and {MOST_MINUTES:,} at most"
)


# Options


def device_name(value: str) -> str:
    """The name of a device; a usage error for other words."""
    from charlm.system.section import DEVICE

    if not re.fullmatch(DEVICE, value):
        raise typer.BadParameter(f"{value!r} is none of 'auto', 'cpu', 'cuda', 'cuda:1' (the second GPU) and so on.")
    return value


class Precision(StrEnum):
    auto = "auto"
    fp32 = "fp32"
    tf32 = "tf32"
    bf16 = "bf16"


DEVICE_NAMES = "<auto|cpu|cuda|cuda:N>"
CONFIG_HELP = "A YAML file, or the name of a shipped config (see `charlm config list`)."
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override an option, e.g. train.max_steps=500; repeatable."),
]
DeviceOption = Annotated[
    str,
    typer.Option(
        "--device", parser=device_name, metavar=DEVICE_NAMES, help="Where to compute; auto takes a GPU if there is one."
    ),
]
PrecisionOption = Annotated[
    Precision,
    typer.Option("--precision", help="Precision of matrix products; auto: as in training. Exports compute in fp32."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
SkipUnknown = Annotated[bool, typer.Option("--skip-unknown", help="Leave out characters that the model does not know.")]
Minutes = Annotated[
    float | None,
    typer.Option(
        "--minutes",
        metavar="M",
        callback=minutes_checked,
        help="Minutes from the start of the command to its end; with --resume, those of all sessions.  "
        f"[default without a config: {DEFAULT_MINUTES:g}]",
    ),
]
Lines = Annotated[
    bool, typer.Option("--lines", help="Each line of the text is a sample of its own; the same as data.unit=line.")
]
LabelSeparator = Annotated[
    str | None,
    typer.Option(
        "--labels",
        metavar="SEPARATOR",
        help=r"With --lines: each line is a label, this text (\t: a tab) and a record; or data.label_separator.",
    ),
]
CheckpointPath = Annotated[
    Path,
    typer.Argument(
        metavar="CKPT",
        help="The folder of a run, for its best checkpoint, or a checkpoint file.",
        autocompletion=complete_run,
    ),
]
PageFile = Annotated[Path, typer.Option("--out", metavar="FILE", help="Where to write the page.")]


def config_option(more_help: str) -> Any:
    """The option --config of a command."""
    return typer.Option("--config", metavar="CONFIG", help=f"{CONFIG_HELP} {more_help}", autocompletion=complete_config)


def command_group(help: str, example: str) -> typer.Typer:
    """A command that has commands."""
    return typer.Typer(help=help, no_args_is_help=True, rich_markup_mode=None, epilog=f"Example: {example}")


def with_options(options: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command take the fields of an options class as options of its own, in place of a parameter `options`.

    A field's metadata are arguments of `typer.Option`. A usage error for a value that the class refuses.
    """
    names = [option.name for option in fields(options)]

    def parameters(command: Callable[..., None]) -> Iterator[inspect.Parameter]:
        for parameter in inspect.signature(command).parameters.values():
            if parameter.name != "options":
                yield parameter
                continue
            for option in fields(options):
                annotation = Annotated[option.type, typer.Option(**option.metadata)]
                yield parameter.replace(name=option.name, default=option.default, annotation=annotation)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def flat(**values: Any) -> None:
            try:
                chosen = options(**{name: values.pop(name) for name in names})
            except ValueError as error:
                name, _, fault = str(error).partition(":")
                raise usage_error(f"--{name.replace('_', '-')}:{fault}") from None
            command(**values, options=chosen)

        flat.__signature__ = inspect.Signature([*parameters(command)])  # pyright: ignore[reportAttributeAccessIssue]
        return flat

    return decorate


def line_settings(lines: bool, separator: str | None) -> list[str]:
    """What --lines and --labels set, as KEY=VALUE."""
    settings = ["data.unit=line"] if lines else []
    if separator is not None:
        from charlm.config.yaml import dump_flow

        separator = separator.replace(r"\t", "\t")
        settings.append(f"data.label_separator={dump_flow(separator)}")
    return settings


def check_files(**files: Path | str | None) -> None:
    """DataError for the file of an option or argument that is not there; - is stdin."""
    from charlm.errors import DataError

    for name, file in files.items():
        if file is not None and str(file) != "-" and not os.path.exists(file):  # noqa: PTH110
            option = f"--{name.replace('_', '-')} " if name != "file" else ""
            raise DataError(f"{option}{file}: no such file or folder; allowed: a text file, or - for stdin")


# What the model knows


def check_escapes(trained: Any, text: str, where: str) -> None:
    r"""VocabularyError for an option's \n that the shell passed as it is, unless the model knows the backslash."""
    from charlm.errors import VocabularyError

    if (escape := re.search(r"\\[ntr]", text)) and trained.vocabulary.unknown("\\"):
        raise VocabularyError(
            f"{where}: found {escape[0]} as a backslash and a letter, and the model has never seen a backslash; "
            f"allowed: the character itself; in a shell: {where} $'…{escape[0]}…'"
        )


def known_prompt(trained: Any, text: str, where: str, skip_unknown: bool) -> str:
    """A prompt without the characters that the model does not know, which are reported; see `TrainedModel.known`."""
    if where == "--prompt" and not skip_unknown:
        check_escapes(trained, text, where)
    text, skipped = trained.known(trained.vocabulary.normalized(text), where, skip_unknown=skip_unknown)
    if skipped:
        say("skipped", f"{where}: {skipped}")
    return text


def known_ids(trained: Any, file: Path, skip_unknown: bool) -> Any:
    """The ids of a file without the characters that the model does not know, which are reported; see `encode_file`."""
    from charlm.data.corpus import encode_file
    from charlm.data.vocabulary import describe_characters

    ids, skipped = encode_file(file, trained.vocabulary, skip_unknown=skip_unknown, unit=trained.config.data.unit)
    if skipped:
        say("skipped", f"{file}: {counted(sum(skipped.values()), 'character')}: {describe_characters(skipped)}")
    return ids


def report_backend(trained: Any) -> None:
    """Say what computes the layers if a faster backend cannot, and the precision if it is bf16."""
    from charlm.native.precision import choose_precision

    selection = trained.network.select_backend(trained.device, training=False)
    if selection.passed_over:
        say("layers", selection.description)
    if trained.precision == "bf16":
        _, slow = choose_precision("bf16", trained.device)
        as_before = ", as in training" if trained.config.precision == "bf16" else ""
        say("slow" if slow else "device", f"precision bf16{as_before}{f': {slow}' if slow else ''}")


# Output


def write_char_scores(out: TextIO, vocabulary: Any, ids: Any, nats: Any) -> None:
    """Write a CSV row for each scored character of `ids` [N]: position in the text, character (or byte), nats, bits.

    nats: [N − 1], of all characters except the one that the model reads first, in the order of the text.
    """
    text, first = vocabulary.reversed_if_backward(ids), 0 if vocabulary.backward else 1
    is_byte = vocabulary.level == "byte"
    writer = csv.writer(out)
    writer.writerow(("position", "byte" if is_byte else "character", "nats", "bits"))
    for position, loss in enumerate(nats.tolist(), start=first):
        id = int(text[position])
        symbol = id if is_byte else vocabulary.characters[id]
        writer.writerow((position, symbol, f"{loss:.6f}", f"{nats_to_bits(loss):.6f}"))


EXACT = "charlm.exact"
"""An error handler for encoding: the bytes of a byte model as they are, and escapes for what has no bytes at all."""


def _exact(error: UnicodeError) -> tuple[str | bytes, int]:
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeEncodeError:
        return codecs.backslashreplace_errors(error)


codecs.register_error(EXACT, _exact)
_json_is_ascii = False


def open_output() -> None:
    """Let stdout and stderr take every text.

    A file or pipe gets stdout as UTF-8 in every locale, with the exact bytes of a byte model. A terminal gets escapes
    for what its encoding lacks; if that is ASCII, the locale says nothing, and the terminal gets UTF-8 too.
    """
    global _json_is_ascii
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdout, io.TextIOWrapper):
        name = codecs.lookup(sys.stdout.encoding).name
        _json_is_ascii = name != "utf-8"
        if not sys.stdout.isatty():
            sys.stdout.reconfigure(encoding="utf-8", errors=EXACT)
        elif name == "ascii":
            sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")


def as_json(value: Any) -> str:
    """A line of JSON with control characters escaped, and everything but ASCII where the locale is not UTF-8."""
    return escaped(to_json(value, ascii=_json_is_ascii))


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    typer.echo(as_json(value))


def print_table(rows: dict[str, str]) -> None:
    """Print a name and a text per line, aligned."""
    width, columns = max(map(len, rows), default=0), terminal_columns(sys.stdout)
    for name, text in rows.items():
        typer.echo(wrapped([f"{name:<{width}} ", *one_line(text).split(" ")], columns, width + 2))


def print_rows(rows: Sequence[Sequence[str]], right: Container[int]) -> None:
    """Print rows with aligned columns, those in `right` at their right end.

    If a terminal is too narrow, a name in the first column is on a line of its own.
    """
    widths = [max(map(columns_of, column)) for column in zip(*rows, strict=True)]
    columns = terminal_columns(sys.stdout)
    too_wide = columns is not None and 0 not in right and sum(widths) + 2 * len(widths) - 2 > columns
    for row in rows:
        cells = []
        for column, (text, width) in enumerate(zip(row, widths, strict=True)):
            padding = " " * (width - columns_of(text))
            cells.append(padding + text if column in right else text + padding)
        if too_wide:
            typer.echo(row[0])
            cells[0] = ""
        typer.echo("  ".join(cells).rstrip())


def write_page(out: Path, page: str) -> None:
    """Write a page of HTML, and say where it is."""
    from charlm.data.outputs import write_output

    data = page.encode()
    write_output(out, "--out", data)
    say("page", f"{out}, {format_bytes(len(data))}: open it in a browser")
