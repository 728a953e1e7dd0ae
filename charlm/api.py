"""What `import charlm` gives, and how a run starts from a text or a config, for Python and the command line alike.

Each function imports what it needs when it runs, so that `import charlm` never waits for torch.
"""

import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from charlm.system.threads import limit_spinning

if TYPE_CHECKING:
    from charlm.inference import TrainedModel
    from charlm.system.world import World
    from charlm.training.loop import Outcome
    from charlm.training.watch import Watch

DEFAULT_MINUTES = 5.0
"""How long a run takes whose settings are chosen."""
MOST_MINUTES = 525_600
"""A year."""


def load(path: str | Path, device: str = "auto") -> "TrainedModel":
    """Load a trained model from a run's folder (its best checkpoint) or from a checkpoint file.

    device: auto, cpu, cuda or cuda:N. CheckpointError if there is no usable checkpoint, DeviceError if there is no such
    GPU. `help(charlm.inference.TrainedModel)` describes what the model can do.
    """
    _before_torch()
    from charlm.inference import load

    return load(path, device)


def train(
    text: str | Path | None = None,
    *,
    minutes: float | None = None,
    config: str | Path | None = None,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    run_dir: str | Path | None = None,
    init_from: str | Path | None = None,
    on_log: Callable[[dict[str, Any]], object] | None = None,
) -> "Run":
    """Train a new model, as `charlm train` does: the same settings, run folder and lines on stderr.

    Ctrl-C ends the training after the current step; the run is saved and returned, and its `outcome.reason` is
    "SIGINT". SIGTERM and SIGHUP do the same. A second Ctrl-C raises KeyboardInterrupt.

    Args:
        text: a file, a folder, a glob, or builtin:NAME. Without a config, charlm chooses settings for this text.
        minutes: how long this call may take, loading included; 5 without a config.
        config: train from a YAML file or a shipped config; `text` and `minutes` then replace its own.
        overrides: options that keep the value given: {"seed": 2, "model.layers": 3} or ["seed=2", "model.layers=3"].
        run_dir: the run's folder; None: runs/<name of the config or text>-<time>.
        init_from: a run's folder or checkpoint, from whose weights and vocabulary to start; needs a config.
        on_log: called with every row of metrics.jsonl, as a dict, when it is written. An exception in it ends the
            training and is raised again; the run can be resumed from its last checkpoint.

    ConfigError, DataError, DeviceError, RunError or VocabularyError before anything is written; later RunError if the
    folder cannot be written, DivergenceError if a loss is not finite.
    """
    began_s = time.perf_counter()
    settings = _settings(overrides)
    _check(text, minutes, config, settings, init_from)
    _before_torch()

    from charlm.system.device import keep_freed_memory
    from charlm.system.world import joined
    from charlm.training.watch import Watch

    keep_freed_memory()
    watch = Watch(sees=_passing_on(on_log)) if on_log else None
    try:
        with joined() as world:
            outcome = start(
                world,
                text=None if text is None else str(text),
                minutes=minutes,
                config=_path(config),
                settings=settings,
                run_dir=_path(run_dir),
                init_from=_path(init_from),
                began_s=began_s,
                watch=watch,
            )
    except _LogError as error:
        raise error.fault from None
    say_if_stopped(outcome)
    return Run(Path(outcome.run_dir), outcome)


@dataclass(frozen=True, repr=False)
class Run:
    """A run that `train` has made."""

    path: Path
    """Its folder."""
    outcome: "Outcome"
    """How it ended: reason, step, best_nats (nats per character), elapsed_s and more."""

    @property
    def metrics(self) -> Any:
        """The rows of metrics.jsonl: a pandas DataFrame where pandas is installed, else a list of dicts.

        docs/training.md describes the columns. RunError if the file cannot be read.
        """
        import importlib

        from charlm.training.metrics import read_rows

        rows = read_rows(self.path)
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            return rows
        return pandas.DataFrame(rows)

    def load(self, device: str = "auto") -> "TrainedModel":
        """The run's model, from its best checkpoint; see `charlm.load`."""
        return load(self.path, device)

    def __repr__(self) -> str:
        return f"<Run {self.path}: {self._end()}>"

    def _end(self) -> str:
        best_nats = self.outcome.best_nats
        best = "" if best_nats is None else f", best {best_nats:.4f} nats per character"
        return f"{self.outcome.reason} at step {self.outcome.step:,}{best}"

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        from charlm.system.formatting import format_duration, html_table

        return html_table(
            {
                "run": str(self.path),
                "end": self._end(),
                "read": f"{self.outcome.chars:,} characters in {format_duration(self.outcome.elapsed_s)}",
                "parameters": f"{self.outcome.parameters:,}",
            }
        )


def start(
    world: "World",
    *,
    text: str | None,
    minutes: float | None,
    config: Path | None,
    settings: list[str],
    run_dir: Path | None,
    init_from: Path | None,
    began_s: float,
    watch: "Watch | None" = None,
) -> "Outcome":
    """Train from a config, or with settings chosen for the text and the minutes, and say why.

    settings: KEY=VALUE. `began_s`: when the minutes began, as time.perf_counter() tells it. For errors see `start_run`.

    Processes that torchrun starts again after a fault resume their run.
    """
    from charlm.training.start import resume_run, run_of_this_launch, start_run

    if config is not None:
        from charlm.checkpoint import find_checkpoint, read_checkpoint
        from charlm.config import load_config

        settings = [*_only_limit(minutes), *_source(text), *settings]
        parsed = world.first(lambda: load_config(config, settings))
        initial = world.first(lambda: read_checkpoint(find_checkpoint(init_from))) if init_from else None
        began = None if minutes is None else began_s
        return start_run(parsed, run_dir, initial, name=config.stem, world=world, began_s=began, watch=watch)

    from charlm.choice.families import Request
    from charlm.choice.suggest import suggest
    from charlm.system.console import say

    assert text is not None
    if again := world.first(lambda: run_of_this_launch(world)):
        return resume_run(again, world=world, watch=watch)
    request = Request(text, minutes or DEFAULT_MINUTES, settings)
    suggestion = suggest(request, world, began_s)
    for label, reason in suggestion.reasons.items():
        say(label, reason)
    return start_run(suggestion.config, run_dir, name=run_name(text), world=world, began_s=began_s, watch=watch)


def say_if_stopped(outcome: "Outcome") -> bool:
    """Whether a signal has stopped the run; if so, say how to resume it."""
    from charlm.system.console import say
    from charlm.training.signals import SIGNALS

    if outcome.reason not in SIGNALS:
        return False
    resume = f"charlm train --resume --run-dir {shlex.quote(outcome.run_dir)}"
    say("stopped", f"{outcome.reason} at step {outcome.step}; resume with: {resume}")
    return True


def run_name(text: str) -> str:
    """A name for a run on this text: of the last part of its path, what is a letter, a digit, - or _."""
    return re.sub(r"[^\w-]+", "-", Path(text).stem).strip("-")[:40] or "run"


def _before_torch() -> None:
    """Settings that torch reads when it is imported; the command line makes the same."""
    if "torch" not in sys.modules:
        limit_spinning()


def _only_limit(minutes: float | None) -> list[str]:
    """The settings for a run whose only limit is its minutes."""
    if minutes is None:
        return []
    return [f"train.max_minutes={minutes}", "train.max_steps=null", "train.max_epochs=null"]


def _source(text: str | None) -> list[str]:
    if text is None:
        return []
    from charlm.config.yaml import dump_flow

    return [f"data.source={dump_flow(text)}"]


def _settings(overrides: Iterable[str] | Mapping[str, Any]) -> list[str]:
    """The overrides as KEY=VALUE."""
    if isinstance(overrides, str):
        raise TypeError("overrides: found a string; allowed: a list of KEY=VALUE, or a mapping")
    if not isinstance(overrides, Mapping):
        return list(overrides)
    from charlm.config.yaml import dump_flow

    def plain(value: Any) -> Any:
        return str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value

    return [f"{key}={dump_flow(plain(value))}" for key, value in overrides.items()]


def _check(
    text: str | Path | None,
    minutes: float | None,
    config: str | Path | None,
    settings: list[str],
    init_from: str | Path | None,
) -> None:
    """ConfigError for arguments that do not fit together."""
    from charlm.errors import ConfigError

    if text is None and config is None:
        raise ConfigError("train: found neither text nor config; allowed: either, or both")
    if init_from is not None and config is None:
        raise ConfigError("init_from: found without config; allowed: with a config, for example that of the run")
    if minutes is not None and not 0 < minutes <= MOST_MINUTES:
        raise ConfigError(f"minutes: found {minutes:g}; allowed: a number above 0, and {MOST_MINUTES:,} at most")
    if (config is None or minutes is not None) and any(each.startswith("train.max_minutes=") for each in settings):
        raise ConfigError("train.max_minutes: found beside minutes or its default; allowed: minutes alone")


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)


class _LogError(Exception):
    """Carries an exception of `on_log` through the loop, which would take an OSError for a fault of the folder."""

    def __init__(self, fault: Exception) -> None:
        super().__init__()
        self.fault = fault


def _passing_on(on_log: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
    def sees(row: dict[str, Any]) -> None:
        try:
            on_log(row)
        except Exception as error:
            raise _LogError(error) from None

    return sees
