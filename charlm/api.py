"""What `import charlm` gives, and how a run starts from a text or a config, for Python and the command line alike.

Functions import what takes long when they run, so that `import charlm` waits for neither torch nor pydantic.
"""

import functools
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from charlm.errors import ConfigError
from charlm.runs import find_checkpoint
from charlm.system.console import say
from charlm.system.formatting import format_duration, html_table
from charlm.system.host import limit_spinning

if TYPE_CHECKING:
    from charlm.cells import Cell
    from charlm.checkpoint import Checkpoint
    from charlm.choice.families import Request
    from charlm.config import Config
    from charlm.config.own import Own
    from charlm.inference import TrainedModel
    from charlm.system.process_group import ProcessGroup
    from charlm.training.loop import Callbacks, Outcome
    from charlm.training.plan import Cost

DEFAULT_MINUTES = 5.0
"""How long a run takes whose settings are chosen."""
MOST_MINUTES = 525_600
"""A year."""


def load(path: str | Path, device: str = "auto", precision: str = "auto") -> "TrainedModel":
    """Load a trained model from a run's folder (its best checkpoint) or from a checkpoint file.

    device: auto, cpu, cuda or cuda:N. precision: fp32, tf32 or bf16 for matrix products; auto: that of the training.
    CheckpointError if there is no usable checkpoint, DeviceError if there is no such GPU, or if it lacks the precision.
    `help(charlm.inference.TrainedModel)` describes what the model can do.
    """
    check_there(runs=[path])
    _import_torch()
    from charlm.inference import load

    return load(path, device, precision)


def train(
    text: str | Path | None = None,
    *,
    minutes: float | None = None,
    config: str | Path | None = None,
    cell: "Cell | type[Cell] | None" = None,
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
        cell: the recurrent cell: a class, built in or your own, or an object of one, whose options then keep the values
            that it was given.
        overrides: options that keep the value given: {"seed": 2, "model.layers": 3} or ["seed=2", "model.layers=3"].
        run_dir: the run's folder; None: runs/<name of the config or text>-<time>.
        init_from: a run's folder or checkpoint, from whose weights and vocabulary to start. Without a config, the run
            takes its model, and charlm chooses the rest for this text.
        on_log: called with every row of metrics.jsonl, as a dict, when it is written. An exception in it ends the
            training and is raised again; the run can be resumed from its last checkpoint.

    Leaves the process as it was: torch's random state, number of threads and precisions, signal handlers, environment.
    Several threads train one after another.

    ConfigError, DataError, DeviceError, RunError or VocabularyError before anything is written; later RunError if the
    folder cannot be written, DivergenceError if a loss is not finite.
    """
    began_s = time.perf_counter()
    from charlm.cells.file import registered as cell_options

    with cell_options(cell) as options:
        settings = [*_settings(options), *_settings(overrides)]
        _check(text, minutes, config)
        paths = (None if path is None else Path(path) for path in (config, init_from, run_dir))
        config, init_from, run_dir = paths
        given = Start(None if text is None else str(text), minutes, config, settings, init_from, run_dir)
        return _train(given, on_log, began_s)


class _LogError(Exception):
    """`on_log` has failed."""


def _train(given: "Start", on_log: Callable[[dict[str, Any]], object] | None, began_s: float) -> "Run":
    given.check()
    _import_torch()

    from charlm.system.device import check_fork, own_settings
    from charlm.system.lock import one_training
    from charlm.system.process_group import process_group
    from charlm.training.loop import Callbacks

    faults: list[Exception] = []

    def on_row(row: dict[str, Any]) -> None:
        assert on_log
        try:
            on_log(row)
        except Exception as error:  # the loop would take an OSError for a fault of the run's folder
            faults.append(error)
            raise _LogError from None

    callbacks = Callbacks(on_row=on_row) if on_log else None
    try:
        loaded_s = time.perf_counter() - began_s
        with one_training(), own_settings(), process_group() as group:
            check_fork()
            outcome = start(given, group, time.perf_counter() - loaded_s, callbacks)
    except _LogError:
        raise faults[0] from None
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

    def load(self, device: str = "auto", precision: str = "auto") -> "TrainedModel":
        """The run's model, from its best checkpoint; see `charlm.load`."""
        return load(self.path, device, precision)

    def __repr__(self) -> str:
        return f"<Run {self.path}: {self._end()}>"

    def _end(self) -> str:
        best_nats = self.outcome.best_nats
        best = "" if best_nats is None else f", best {best_nats:.4f} nats per character"
        return f"{self.outcome.reason} at step {self.outcome.step:,}{best}"

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        return html_table(
            {
                "run": str(self.path),
                "end": self._end(),
                "read": f"{self.outcome.chars:,} characters in {format_duration(self.outcome.elapsed_s)}",
                "parameters": f"{self.outcome.parameters:,}",
            }
        )


@dataclass(frozen=True)
class Start:
    """What a new run is to start from: a config, or a text for which settings are chosen."""

    text: str | None
    minutes: float | None
    config: Path | None
    settings: list[str]
    """KEY=VALUE."""
    init_from: Path | None = None
    run_dir: Path | None = None

    def check(self) -> None:
        """ConfigError, DataError or CheckpointError for what a run cannot start from. Needs no torch.

        The processes of torchrun skip most of it: their first one finds the same later, and prints it once.
        """
        check_minutes(self.minutes, self.settings, is_chosen=self.config is None)
        if "RANK" not in os.environ:
            # A run that starts from another's weights takes its cell, which is not read yet.
            parsed = self.parsed if self.config else self.request().base()
            check_there(options={"--init-from": self.init_from}, config=parsed)
            run_dir = self.run_dir
            if run_dir and os.path.isdir(run_dir):  # noqa: PTH112 (Path.is_dir raises for a path that is too long)
                from charlm.data.sources import check_texts_apart

                check_texts_apart(parsed.data, run_dir)

    @functools.cached_property
    def parsed(self) -> "Config":
        """The config with the text and the settings; with minutes, these are the run's only limit."""
        from charlm.config import as_data, from_file

        return self.parsed_with(as_data if self.init_from else from_file)

    def parsed_with(self, own: "Own") -> "Config":
        from charlm.config import load_config
        from charlm.config.yaml import dump_flow

        assert self.config is not None
        settings = []
        if self.minutes is not None:
            settings += [f"train.max_minutes={self.minutes}", "train.max_steps=null", "train.max_epochs=null"]
        if self.text is not None:
            settings.append(f"data.source={dump_flow(self.text)}")
        return load_config(self.config, [*settings, *self.settings], own)

    def request(self) -> "Request":
        """The text and the minutes for which settings are to be chosen."""
        from charlm.choice.families import Request

        assert self.text is not None
        return Request(self.text, self.minutes or DEFAULT_MINUTES, self.settings)


def start(given: Start, group: "ProcessGroup", began_s: float, callbacks: "Callbacks | None" = None) -> "Outcome":
    """Train from a config, or with settings chosen for the text and the minutes, and say why.

    began_s: when the minutes began, as time.perf_counter() tells it. For errors see `start_run`.

    Processes that torchrun starts again after a fault resume their run.
    """
    from charlm.checkpoint import read_checkpoint
    from charlm.choice.suggest import suggest
    from charlm.config import of_run
    from charlm.system.clock import Clock
    from charlm.training.start import resume_run, run_of_this_launch, start_run

    if again := group.on_first(run_of_this_launch, group):
        return resume_run(again, group=group, callbacks=callbacks)
    path = given.init_from
    initial = group.on_first(read_checkpoint, find_checkpoint(path, "--init-from")) if path else None
    if given.config is not None:
        own = initial and of_run(initial.config.model.cell)
        config = group.on_first(lambda: given.parsed_with(own) if own else given.parsed)
        clock = None if given.minutes is None else Clock(given.minutes, began_s)
        return start_run(
            config, given.run_dir, initial, name=given.config.stem, group=group, clock=clock, callbacks=callbacks
        )

    request = given.request()
    if initial:
        request = group.on_each(_with_model_of, request, initial, str(path))
    clock = Clock(request.minutes, began_s)
    suggestion = suggest(request, group, clock)
    suggestion.say_reasons()
    outcome = start_run(
        suggestion.config,
        given.run_dir,
        initial and replace(initial, vocabulary=suggestion.vocabulary),
        name=run_name(request.source),
        group=group,
        machine=suggestion.machine,
        text=suggestion.text,
        clock=clock,
        callbacks=callbacks,
    )
    _say_if_slow(outcome, suggestion.updates, request.minutes)
    return outcome


def cost_of(given: Start, group: "ProcessGroup") -> "Cost":
    """What the run that `start` would train will cost."""
    from charlm.choice.suggest import suggest
    from charlm.training.plan import measure_cost

    if given.config is not None:
        return measure_cost(group.on_first(lambda: given.parsed), group)
    suggestion = suggest(given.request(), group)
    suggestion.say_reasons()
    return measure_cost(suggestion.config, group, suggestion.machine, suggestion.text)


def _with_model_of(request: "Request", initial: "Checkpoint", name: str) -> "Request":
    """The request with the model of a run; ConfigError if the user's options do not fit it."""
    from charlm.config import of_run, override_config
    from charlm.training.start import check_same_model, settings_of_run

    taken = settings_of_run(initial.config)
    request = replace(request, initial=initial, initial_name=name)
    config = request.config({"data": {"source": request.source}}, taken)
    check_same_model(override_config(config, name, request.overrides, of_run(initial.config.model.cell)), initial)
    return replace(request, overrides=[*taken, *request.overrides])


def say_if_stopped(outcome: "Outcome") -> bool:
    """Whether a signal has stopped the run; if so, say how to resume it."""
    from charlm.training.signals import SIGNALS

    if outcome.reason not in SIGNALS:
        return False
    say("stopped", f"{outcome.reason} at step {outcome.step}; resume with:", _resume(outcome))
    return True


_SLOW = 0.5
"""Share of the planned updates below which a line says that the run was slow."""


def _say_if_slow(outcome: "Outcome", planned: int, minutes: float) -> None:
    """Say so if the run made fewer than half of the planned updates."""
    if outcome.reason == "max_minutes" and outcome.step < _SLOW * planned:
        say(
            "slow",
            f"{outcome.step:,} updates instead of about {planned:,}: training was slower than measured before; look "
            "for other programs that use the processors; to train as long again:",
            f"{_resume(outcome)} --minutes {2 * minutes:g}",
        )


def _resume(outcome: "Outcome") -> str:
    return f"charlm train --resume --run-dir {shlex.quote(outcome.run_dir)}"


def run_name(text: str) -> str:
    """A name for a run on this text: of the last part of its path, what is a letter, a digit, - or _."""
    return re.sub(r"[^\w-]+", "-", Path(text).stem).strip("-")[:40] or "run"


def _import_torch() -> None:
    """Import torch with a setting that it reads from the environment then; the command line makes the same."""
    if "torch" not in sys.modules:
        is_set = _SPINS in os.environ
        limit_spinning()
        try:
            import torch  # noqa: F401
        finally:
            if not is_set:
                del os.environ[_SPINS]


_SPINS = "GOMP_SPINCOUNT"


def check_there(
    *,
    runs: Iterable[str | Path | None] = (),
    options: Mapping[str, Path | None] | None = None,
    texts: Iterable[str | Path | None] = (),
    config: "Config | None" = None,
) -> None:
    """CheckpointError or DataError for a run or text that is not there, the config's texts among them.

    options: runs that options name, by the name of the option, which the error repeats.
    Needs no torch, whose import takes seconds, and reads no text.
    """
    from charlm.data.sources import check_exists

    for option, run in (*(("", run) for run in runs), *(options or {}).items()):
        if run is not None:
            find_checkpoint(Path(run), option)
    sources = () if config is None else (config.data.source, config.data.valid_source, config.data.test_source)
    for text in (*texts, *sources):
        if text is not None:
            check_exists(str(text))


def check_minutes(minutes: float | None, settings: list[str], *, is_chosen: bool) -> None:
    """ConfigError for minutes that are given twice. is_chosen: settings are chosen for the minutes or their default."""
    from charlm.config import valid_overrides

    if not is_chosen and minutes is None:
        return
    for _, path, value in valid_overrides(settings):
        is_in_section = path == ("train",) and isinstance(value, dict) and "max_minutes" in value
        if path == ("train", "max_minutes") or is_in_section:
            raise ConfigError("train.max_minutes: found beside minutes or its default; allowed: minutes alone")


def _settings(overrides: Iterable[str] | Mapping[str, Any]) -> list[str]:
    """The overrides as KEY=VALUE."""
    if isinstance(overrides, str):
        raise TypeError("overrides: found a string; allowed: a list of KEY=VALUE, or a mapping")
    if not isinstance(overrides, Mapping):
        return list(overrides)
    from charlm.config.yaml import dump_flow

    plain = {key: str(value) if isinstance(value, Path) else value for key, value in overrides.items()}
    return [f"{key}={dump_flow(list(value) if isinstance(value, tuple) else value)}" for key, value in plain.items()]


def _check(text: str | Path | None, minutes: float | None, config: str | Path | None) -> None:
    """ConfigError or TypeError for arguments that are not allowed, or not together."""
    if not isinstance(text, str | Path | None):
        raise TypeError(f"text: found {type(text).__name__}; allowed: one path, of a file or a folder, or a glob")
    if text is None and config is None:
        raise ConfigError("train: found neither text nor config; allowed: either, or both")
    if minutes is not None and not 0 < minutes <= MOST_MINUTES:
        raise ConfigError(f"minutes: found {minutes:g}; allowed: a number above 0, and {MOST_MINUTES:,} at most")
