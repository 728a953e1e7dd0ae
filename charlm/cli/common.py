"""What several commands do: open a model, read a text, print a result."""

import io
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from charlm.data.outputs import writing
from charlm.runs import find_checkpoint
from charlm.system.console import say, terminal_columns
from charlm.system.formatting import columns_of, escaped, format_bytes, one_line, printable, to_json, wrapped


def open_model(path: Path, device: str, precision: str, text: Path | str | None = None) -> Any:
    """The model of a run or checkpoint; reports its backend if a faster one cannot compute it.

    A missing run or text is an error before torch is imported.
    """
    from charlm.data.sources import check_exists

    find_checkpoint(path)
    if text is not None:
        check_exists(str(text), or_pipe=True)

    from charlm.inference.loading import load
    from charlm.native.precision import choose_precision

    trained = load(path, device, precision)
    selection = trained.network.select_backend(trained.device, training=False)
    if selection.passed_over:
        say("layers", selection.description)
    if trained.network.precision == "bf16":
        _, slow = choose_precision("bf16", trained.device)
        as_before = ", as in training" if trained.config.precision == "bf16" else ""
        if slow:
            say("slow", f"precision bf16{as_before}: {slow}")
    return trained


def known_text(trained: Any, text: str, option: str) -> str:
    """The text of an option in the model's characters; VocabularyError for those that it does not know."""
    text = trained.vocabulary.familiar(text)
    if unknown := trained.vocabulary.unknown(text):
        quotes = "; type straight quotes around the text" if text[0] in "“”„‘’" else ""
        raise trained.vocabulary.unknown_error(unknown, option, quotes)
    return text


def open_output() -> None:
    """Let stdout and stderr take every text, with line ends as they are.

    To a file or pipe, stdout is UTF-8 in every locale, with the exact bytes of a byte model. A terminal gets escapes
    for characters that its encoding lacks.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace", newline="\n")  # Windows would write CR LF
    if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.isatty():
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")


def print_exactly(text: str) -> None:
    """Print a text and nothing behind it. A file or pipe gets its exact bytes, a terminal no control characters."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def json_line(value: Any) -> str:
    """A line of JSON with control characters escaped."""
    return escaped(to_json(value, ascii=False))


def on_one_line(record: str) -> str:
    r"""A record, with \n and \r for the ends of lines in it."""
    return record.replace("\n", r"\n").replace("\r", r"\r")


def print_json(value: Any) -> None:
    typer.echo(json_line(value))


def print_table(rows: Mapping[str, str], names: Iterable[str] = ()) -> None:
    """Print a name and a text per line, aligned with those of other names."""
    width, columns = max(map(len, (*rows, *names)), default=0), terminal_columns(sys.stdout)
    for name, text in rows.items():
        typer.echo(wrapped(f"{name:<{width}}  {one_line(text)}", columns, width + 2))


def print_rows(rows: Sequence[Sequence[str]], right: Container[int]) -> None:
    """Print rows with aligned columns, those in `right` at their right end."""
    widths = [max(map(columns_of, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = []
        for column, (text, width) in enumerate(zip(row, widths, strict=True)):
            padding = " " * (width - columns_of(text))
            cells.append(padding + text if column in right else text + padding)
        typer.echo("  ".join(cells).rstrip())


def write_page(out: Path, page: str) -> None:
    """Write a page of HTML, and say where it is."""
    data = page.encode()
    with writing(out, "--out") as file:
        file.write(data)
    say("page", f"{out}, {format_bytes(len(data))}: open it in a browser")
