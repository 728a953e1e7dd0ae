"""charlm config: list, show, suggest, schema."""

import json
from pathlib import Path
from typing import Annotated

import typer

from charlm.cli import usage
from charlm.cli.common import print_table
from charlm.new_run import TrainOptions
from charlm.system.console import say, say_all

app = usage.command_group("List, print, suggest and document configs.", "charlm config show lstm")

Argument = Annotated[Path, typer.Argument(metavar="CONFIG", help=usage.CONFIG_HELP)]


@app.command("list")
def list_configs() -> None:
    """List the configs that come with charlm and what each is for.

    \b
    Example:
      charlm config list
    """
    from charlm.config import purpose, shipped_configs

    print_table({name: purpose(file) for name, file in shipped_configs().items()})


@app.command()
def show(file: Argument, overrides: usage.Overrides = None) -> None:
    """Print the whole config: the file, the defaults and the overrides. Names all its faults at once.

    \b
    Example:
      charlm config show rhn --set model.cell.depth=10 > mine.yaml
    """
    from charlm.config import dump_config, ignored_options, load_config
    from charlm.config.parse import cell_of_config

    settings = usage.as_settings(overrides)
    config = load_config(file, settings, cell_of_config(file, settings))
    for line in ignored_options(config):
        say("ignored", line)
    typer.echo(dump_config(config), nl=False)


@app.command()
def suggest(
    text: usage.NeededText,
    minutes: usage.Minutes = None,
    lines: usage.Lines = False,
    records: usage.Records = None,
    overrides: usage.Overrides = None,
) -> None:
    """Choose the settings of `charlm train TEXT --minutes M` for this machine, say why, and print commented YAML.

    Leaves out options with default values. Each call measures the speed of a few models, for up to five seconds.

    \b
    Example:
      charlm config suggest my.txt --minutes 10 > mine.yaml
    """
    options = TrainOptions(text, minutes, None, usage.as_settings(overrides, lines, records))
    options.check_early()

    from charlm.choice.suggest import suggest as choose
    from charlm.config import commented

    suggestion = choose(options.request())
    say_all(suggestion.reasons)
    typer.echo(commented(suggestion.config), nl=False)


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
