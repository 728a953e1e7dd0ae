"""charlm train, charlm plan."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from charlm.cli.common import (
    CONFIG_HELP,
    DEVICE_NAMES,
    ConfigFile,
    Json,
    Overrides,
    device_name,
    print_json,
    print_table,
    usage_error,
)
from charlm.cli.completion import complete_config, complete_run
from charlm.system.console import say

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="CONFIG", help=f"{CONFIG_HELP} Not needed with --resume.", autocompletion=complete_config
    ),
]
RunDir = Annotated[
    Path | None,
    typer.Option(
        "--run-dir",
        metavar="DIR",
        help="The run's folder.  [default: runs/<config name>-<time>]",
        autocompletion=complete_run,
    ),
]
InitFrom = Annotated[
    Path | None,
    typer.Option(
        "--init-from",
        metavar="CKPT",
        help="Start from the weights and vocabulary of a checkpoint.",
        autocompletion=complete_run,
    ),
]


def train(
    config: ConfigOption = None,
    overrides: Overrides = None,
    run_dir: RunDir = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --run-dir.")] = False,
    init_from: InitFrom = None,
    device: Annotated[
        str | None,
        typer.Option("--device", parser=device_name, metavar=DEVICE_NAMES, help="Override the config's device."),
    ] = None,
    json: Json = False,
) -> None:
    """Train a new model, or resume a run.

    Ctrl-C finishes the step, writes a checkpoint and prints how to resume. A second Ctrl-C quits at once.

    \b
    Examples:
      charlm train --config quickstart
      charlm train --config lstm --set data.source=my.txt --set train.max_minutes=10
      charlm train --resume --run-dir runs/lstm-20260102-030405
      charlm train --resume --run-dir runs/mine --set train.max_steps=20000
      charlm train --config lstm --set data.source=more.txt --init-from runs/mine
    """
    settings = [*(overrides or []), *([f"device={device}"] if device else [])]
    if resume and run_dir is None:
        raise usage_error("--resume needs --run-dir, the folder of the run to resume")
    if resume and init_from is not None:
        raise usage_error("--init-from starts a new run; leave out --init-from or --resume")
    if config is None and not resume:
        raise usage_error("--config is needed, for example --config quickstart; `charlm config list` shows the others")

    from charlm.system.device import keep_freed_memory
    from charlm.system.world import joined

    keep_freed_memory()
    with joined() as world:
        if resume:
            assert run_dir is not None
            outcome = _resume(run_dir, config, settings, world)
        else:
            assert config is not None
            outcome = _start(config, settings, run_dir, init_from, world)
    _print_outcome(outcome, json and world.is_first)


def _start(config: Path, settings: list[str], run_dir: Path | None, init_from: Path | None, world: Any) -> Any:
    from charlm.checkpoint import find_checkpoint, read_checkpoint
    from charlm.config import load_config
    from charlm.training.start import start_run

    parsed = world.first(lambda: load_config(config, settings))
    initial = world.first(lambda: read_checkpoint(find_checkpoint(init_from))) if init_from else None
    return start_run(parsed, run_dir, initial, name=config.stem, world=world)


def _resume(run_dir: Path, config: Path | None, settings: list[str], world: Any) -> Any:
    """Continue with the config given, or with the run's own, after the overrides."""
    from charlm.config import Config, load_config, override_config
    from charlm.training.start import resume_run

    def change(saved: Config) -> Config:
        if config is not None:
            return load_config(config, settings)
        return override_config(saved, f"{run_dir}/config.yaml", settings)

    return resume_run(run_dir, change, world)


def _print_outcome(outcome: Any, json: bool) -> None:
    from charlm.system.formatting import format_duration, nats_to_bits
    from charlm.training.signals import SIGNALS

    if json:
        print_json(outcome.as_json())
    run_dir = shlex.quote(outcome.run_dir)
    resume = f"charlm train --resume --run-dir {run_dir}"
    if outcome.reason in SIGNALS:
        say("stopped", f"{outcome.reason} at step {outcome.step}; resume with: {resume}")
        raise typer.Exit(SIGNALS[outcome.reason])
    done = f"{outcome.reason} at step {outcome.step}, {format_duration(outcome.elapsed_s)}"
    if outcome.best_nats is not None:
        bits = nats_to_bits(outcome.best_nats)
        done += f"; best {outcome.best_nats:.4f} nats ({bits:.4f} bits) per character at step {outcome.best_step}"
    say("done", done)
    say("sample", f"charlm sample {run_dir}")


def plan(config: ConfigFile, overrides: Overrides = None, json: Json = False) -> None:
    """Show what a config will cost: sizes, parameters, memory, characters/s, time per epoch.

    Makes a few updates to measure them. Writes nothing except the cache.

    \b
    Examples:
      charlm plan --config rhn
      charlm plan --config lstm --set model.cell.hidden=1024 --json
    """
    from charlm.config import load_config
    from charlm.system.device import keep_freed_memory
    from charlm.system.world import joined
    from charlm.training.plan import measure

    keep_freed_memory()
    with joined() as world:
        result = measure(world.first(lambda: load_config(config, overrides or [])), world)
    if not world.is_first:
        return
    if json:
        print_json(result.as_json())
    else:
        print_table(result.as_table())
