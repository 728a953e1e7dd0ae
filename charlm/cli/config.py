"""charlm config: check, show, schema, options."""

import json
from pathlib import Path
from typing import Annotated

import typer

from charlm.cli.common import Overrides, usage_error
from charlm.system.console import say
from charlm.system.formatting import one_line

app = typer.Typer(
    help="Check, resolve and document configs.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="Example: charlm config check configs/lstm.yaml",
)

Argument = Annotated[Path | None, typer.Argument(metavar="FILE", help="The YAML config.", show_default=False)]
Option = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="The same, as for other commands.")]


def _file(argument: Path | None, option: Path | None) -> Path:
    if (argument is None) == (option is None):
        raise usage_error("one config file is needed, for example: charlm config check configs/lstm.yaml")
    return argument or option  # type: ignore[return-value]


@app.command()
def check(file: Argument = None, config: Option = None, overrides: Overrides = None) -> None:
    """Check a config; every fault is named at once.

    \b
    Examples:
      charlm config check configs/lstm.yaml
      charlm config check mine.yaml --set model.cell.hidden=1024
    """
    from charlm.config import ignored_options, load_config

    path = _file(file, config)
    for line in ignored_options(load_config(path, overrides or [])):
        say("ignored", line)
    typer.echo(f"{one_line(str(path))}: valid")


@app.command()
def show(file: Argument = None, config: Option = None, overrides: Overrides = None) -> None:
    """Print the config as a run sees it, with every default and override written out.

    \b
    Example:
      charlm config show configs/rhn.yaml --set model.cell.depth=10 > mine.yaml
    """
    from charlm.config import dump_config, load_config

    typer.echo(dump_config(load_config(_file(file, config), overrides or [])), nl=False)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the config, so that editors complete and check the YAML.

    \b
    Example:
      charlm config schema > charlm.schema.json
      then put this line first in the YAML file: # yaml-language-server: $schema=charlm.schema.json
    """
    from charlm.config.schema import Config

    typer.echo(json.dumps(Config.model_json_schema(), indent=2, ensure_ascii=False))


@app.command()
def options() -> None:
    """Print a Markdown table of all options: key, default, what is allowed, what it means.

    \b
    Example:
      charlm config options
    """
    from charlm.config.options import options_table

    typer.echo(options_table(), nl=False)
