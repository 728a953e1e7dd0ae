"""charlm data: list, info, fetch, cache."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from charlm.cli import usage
from charlm.cli.common import print_json, print_table
from charlm.errors import DataError
from charlm.system.formatting import format_bytes, one_line

app = usage.command_group("List, inspect and download texts; show and clear the cache.", "charlm data list")

Folder = Annotated[Path, typer.Option("--data-dir", metavar="DIR", help="Folder for downloads.")]


@app.command("list")
def list_corpora(data_dir: Folder = Path("data")) -> None:
    """List the built-in and downloadable texts.

    \b
    Example:
      charlm data list
    """
    from charlm.data.catalog import CATALOG
    from charlm.data.sources import BUILTINS

    rows = {f"builtin:{name}": f"built in    {summary}" for name, summary in BUILTINS.items()}
    for name, download in CATALOG.items():
        present = "fetched" if (data_dir / download.filename).is_file() else "to fetch"
        rows[name] = f"{present:<10}  {download.summary} ({format_bytes(download.size)})"
    print_table(rows)


@app.command()
def info(
    source: Annotated[
        str, typer.Argument(help="A file, a folder, a glob, builtin:NAME, or a name from `charlm data list`.")
    ],
    level: Annotated[str, typer.Option(help="What a symbol is: char | byte.")] = "char",
    data_dir: Folder = Path("data"),
) -> None:
    """Show what a text contains: files, size, characters, vocabulary.

    \b
    Examples:
      charlm data info builtin:python-stdlib
      charlm data info my-texts/
      charlm data info tinyshakespeare
    """
    from charlm.data.catalog import CATALOG
    from charlm.data.corpus import count_source

    if level not in ("char", "byte"):
        raise typer.BadParameter(f"--level: found {level!r}; allowed: char | byte")
    rows = {}
    if download := CATALOG.get(source):
        rows = {"what": download.summary, "from": download.url, "file": str(data_dir / download.filename)}
        if not (data_dir / download.filename).is_file():
            print_table(rows | {"size": format_bytes(download.size), "fetch": f"charlm data fetch {source}"})
            return
        source = str(data_dir / download.filename)
    counted = count_source(source, level)
    named = (lambda symbol: bytes([symbol])) if level == "byte" else chr
    often = sorted(zip(counted.counts.tolist(), counted.symbols.tolist(), strict=True), reverse=True)[:12]
    print_table(
        rows
        | {
            "files": f"{len(counted.paths):,}",
            "size": f"{counted.size_bytes:,} bytes",
            "length": f"{counted.length:,} {level}s",
            "vocabulary": "256" if level == "byte" else f"{len(counted.symbols):,}",
            "most often": "  ".join(f"{named(s)!r} {100 * c / counted.length:.1f}%" for c, s in often),
            "sha256": counted.sha256,
        }
    )


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Texts to download; see `charlm data list`.")],
    data_dir: Folder = Path("data"),
) -> None:
    """Download texts and check their SHA-256. An interrupted download resumes.

    \b
    Examples:
      charlm data fetch tinyshakespeare
      charlm data fetch text8 enwik8
    """
    import difflib

    from charlm.data.catalog import CATALOG
    from charlm.data.fetch import fetch as download

    for name in names:
        if name not in CATALOG:
            near = difflib.get_close_matches(name, CATALOG, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise DataError(f"{name}: found no such text; allowed: {' | '.join(CATALOG)}{hint}")
    for name in names:
        path = str(download(CATALOG[name], data_dir, progress=True))
        typer.echo(one_line(path) if sys.stdout.isatty() else path)


@app.command()
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove all that no running command uses.")] = False,
    json: usage.Json = False,
) -> None:
    """Show or clear the cache: encoded texts and compiled kernels, which are made again when they are needed.

    Above its bound each folder loses what was not used for the longest time.

    \b
    Examples:
      charlm data cache
      charlm data cache --clear
    """
    from charlm.system.cache import cache_dir, who_else_writes
    from charlm.system.cache_bound import BOUNDS, cache_entries, remove

    rows = {"folder": str(cache_dir())}
    report: dict[str, Any] = dict(rows)
    for name, bound_bytes in BOUNDS.items():
        if fault := who_else_writes(cache_dir() / name):
            report[name] = {"unused": fault}
            rows[name] = f"not used, because {fault}"
            continue
        entries = cache_entries(name, cache_dir() / name)
        gone = [entry for entry in entries if clear and remove(entry)]
        left = [entry for entry in entries if entry not in gone]
        size, freed = (sum(entry.size_bytes for entry in some) for some in (left, gone))
        report[name] = {"bytes": size, "entries": len(left), "bound_bytes": bound_bytes}
        rows[name] = f"{_entries(len(left))} of {format_bytes(size)}, at most {format_bytes(bound_bytes)}"
        if clear:
            report[name] |= {"cleared_bytes": freed, "cleared_entries": len(gone)}
            rows[name] = f"cleared {_entries(len(gone))} of {format_bytes(freed)}; {_entries(len(left))} in use"
    if json:
        print_json(report)
    else:
        print_table(rows)


def _entries(count: int) -> str:
    return f"{count:,} {'entry' if count == 1 else 'entries'}"
