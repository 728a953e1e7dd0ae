"""charlm data: list, info, fetch."""

import sys
from typing import Annotated, Any, Literal

import typer

from charlm.cli import usage
from charlm.cli.common import print_table
from charlm.errors import DataError
from charlm.system.formatting import counted, format_bytes, one_line

app = usage.command_group("List, inspect and download texts.", "charlm data list")

_RARE = 10


@app.command("list")
def list_corpora() -> None:
    """List the built-in and downloadable texts.

    \b
    Example:
      charlm data list
    """
    from charlm.data.fetch import CATALOG, place_of
    from charlm.data.sources import BUILTINS

    rows = {f"builtin:{name}": f"built in    {summary}" for name, summary in BUILTINS.items()}
    for name, text in CATALOG.items():
        present = "fetched" if place_of(name).is_file() else "to fetch"
        rows[name] = f"{present:<10}  {text['summary']} ({format_bytes(text['size'])})"
    print_table(rows)


@app.command()
def info(
    text: usage.NeededText,
    level: Annotated[Literal["char", "byte"], typer.Option(help="What a symbol is.")] = "char",
    lines: usage.Lines = False,
    records: usage.Records = None,
) -> None:
    """Show what a text contains: files, size, characters, vocabulary, and how it is split.

    \b
    Examples:
      charlm data info builtin:python-stdlib
      charlm data info my-texts/
      charlm data info app.log --lines
    """
    from charlm.config.schema import DataConfig
    from charlm.data.corpus import SPLITS, cutting, vocabulary_of
    from charlm.data.counting import CountedSource

    separator = usage.separator_of(lines, records)
    source = CountedSource(text, level, separator)
    source.check_separated()
    cut = cutting(source, vocabulary_of(source), dict(zip(SPLITS, DataConfig().split, strict=True)))
    in_records = f" in {counted(source.record_count, 'record')}" if separator else ""
    print_table(
        {
            "files": f"{len(source.paths):,}",
            "size": f"{sum(source.sizes):,} bytes",
            "length": f"{source.length:,} {level}s{in_records}",
            "vocabulary": "256" if level == "byte" else f"{len(source.counts):,}",
            "rare": _rare(source),
            "splits": cut or ("by a hash of each record" if separator else "in order"),
            "sha256": source.sha256,
        }
    )


def _rare(text: Any) -> str:
    """What the characters cost that a model sees too rarely to learn them."""
    rare = [count for count in text.counts.values() if count < _RARE]
    if text.level == "byte" or not rare:
        return "none"
    cost = f"together {sum(rare):,} of {text.length:,}"
    ways_out = f"data.min_count={_RARE} makes one symbol of them"
    return f"{len(rare):,} of {len(text.counts):,} characters occur fewer than {_RARE} times, {cost}; {ways_out}"


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Texts to download; see `charlm data list`.")],
) -> None:
    """Download texts to data/ and check their SHA-256.

    \b
    Examples:
      charlm data fetch tinyshakespeare
      charlm data fetch text8 enwik8
    """
    from charlm.data.fetch import CATALOG
    from charlm.data.fetch import fetch as fetched

    for name in names:
        if name not in CATALOG:
            raise DataError(f"{name}: found no such text; allowed: {' | '.join(CATALOG)}")
    for name in names:
        path = str(fetched(name))
        typer.echo(one_line(path) if sys.stdout.isatty() else path)
