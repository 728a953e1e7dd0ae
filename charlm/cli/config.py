"""charlm config: list, check, show, suggest, schema, options."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from charlm.cli import usage
from charlm.cli.common import print_table
from charlm.new_run import DEFAULT_MINUTES, NewRun
from charlm.system.console import say
from charlm.system.formatting import one_line

if TYPE_CHECKING:
    from charlm.config import Config

app = usage.command_group("List, check, resolve and document configs.", "charlm config check lstm")

Argument = Annotated[Path, typer.Argument(metavar="CONFIG", help=usage.CONFIG_HELP)]


def _load(file: Path, overrides: list[str] | None) -> "Config":
    from charlm.config import load_config

    return load_config(file, overrides or [], runs_file=True)


@app.command("list")
def list_configs() -> None:
    """List the configs that come with charlm and what each is for.

    \b
    Example:
      charlm config list
    """
    from charlm.config.shipped import purpose, shipped_configs

    print_table({name: purpose(file) for name, file in shipped_configs().items()})


@app.command()
def check(file: Argument, overrides: usage.Overrides = None) -> None:
    """Check a config and list all its faults at once.

    \b
    Example:
      charlm config check mine.yaml --set model.cell.hidden=1024
    """
    from charlm.config import ignored_options

    for line in ignored_options(_load(file, overrides)):
        say("ignored", line)
    typer.echo(f"{one_line(str(file))}: valid")


@app.command()
def show(file: Argument, overrides: usage.Overrides = None) -> None:
    """Print the whole config: the file, the defaults and the overrides.

    \b
    Example:
      charlm config show rhn --set model.cell.depth=10 > mine.yaml
    """
    from charlm.config import dump_config

    typer.echo(dump_config(_load(file, overrides)), nl=False)


@app.command()
def suggest(
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="A file, a folder, a glob, or builtin:NAME (see `charlm data list`).")
    ],
    minutes: usage.Minutes = None,
    lines: usage.Lines = False,
    overrides: usage.Overrides = None,
) -> None:
    """Choose the settings of `charlm train TEXT --minutes M` for this machine, and print them as commented YAML.

    Measures the speed of a few models each time, which takes at most about five seconds.

    \b
    Example:
      charlm config suggest my.txt --minutes 10 > mine.yaml
    """
    given = NewRun(text, minutes, None, usage.as_settings(overrides, lines))
    given.check()

    from charlm.choice.suggest import suggest as choose
    from charlm.config.commented import commented_yaml

    suggestion = choose(given.request())
    suggestion.say_reasons()
    heading = f"Settings for {minutes or DEFAULT_MINUTES:g} minutes on {text}, chosen by `charlm config suggest`."
    typer.echo(commented_yaml(suggestion.config, heading, suggestion.comments), nl=False)


@app.command()
def schema() -> None:
    """Print the JSON Schema of a config, with which editors complete and check the YAML.

    \b
    Example:
      charlm config schema > charlm.schema.json
      Then start the YAML file with: # yaml-language-server: $schema=charlm.schema.json
    """
    from charlm.config.schema import Config

    typer.echo(json.dumps(Config.model_json_schema(), indent=2, ensure_ascii=False))


@app.command()
def options() -> None:
    """Print all options as a Markdown table: key, default, allowed values, meaning.

    \b
    Example:
      charlm config options
    """
    from charlm.config.options import options_table

    typer.echo(options_table(), nl=False)
