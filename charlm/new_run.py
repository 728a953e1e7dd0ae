"""From a command's options to a run: from a text, a config, another run's weights, or resumed.

Functions import slow modules only when they run, so the checks wait for neither torch nor pydantic.
"""

import contextlib
import os
import shlex
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from charlm.errors import DataError, VocabularyError
from charlm.runs import check_resumable, find_checkpoint
from charlm.system.console import say, say_all
from charlm.training.budget import DEFAULT_MINUTES, Budget, check_minutes

if TYPE_CHECKING:
    from charlm.cells import Cell
    from charlm.checkpoint import Checkpoint
    from charlm.choice.families import Request
    from charlm.config import Config
    from charlm.system.process_group import ProcessGroup
    from charlm.training.loop import OnRow, Outcome


@dataclass(frozen=True)
class NewRun:
    """What a new run is to start from: a config, or a text for which settings are chosen."""

    text: str | None
    minutes: float | None
    config: Path | None
    settings: list[str]
    """KEY=VALUE."""
    init_from: Path | None = None
    run_dir: Path | None = None

    def check_early(self) -> None:
        """ConfigError, DataError or CheckpointError for a run that cannot start. Needs no torch.

        Processes of torchrun skip most checks: the first one finds the same faults later, and prints them once.
        """
        check_minutes(self.minutes, self.settings, default=None if self.config else DEFAULT_MINUTES)
        if "RANK" not in os.environ:
            from charlm.data.sources import check_exists

            # A run that starts from another's weights takes its cell, which is not read yet.
            data = (self.parse() if self.config else self.request().base()).data
            if self.init_from is not None:
                find_checkpoint(self.init_from, "--init-from")
            source = None if self.has_pipe() else data.source
            for each in filter(None, (source, data.valid_source, data.test_source)):
                check_exists(each)

    def has_pipe(self) -> bool:
        """Whether the text can be read only once."""
        from charlm.data.reading import is_pipe

        return self.text is not None and is_pipe(self.text)

    def parse(self, cell: "Cell | None" = None) -> "Config":
        """The config with the text and the settings; with minutes, these are the only limit. cell: of `init_from`."""
        from charlm.config import load_config
        from charlm.config.yaml import dump_flow

        assert self.config is not None
        settings = []
        if self.minutes is not None:
            settings += _limited_to(self.minutes)
        if self.text is not None:
            settings.append(f"data.source={dump_flow(self.text)}")
        # What `init_from` has is not read yet in `check_early`.
        runs_file = self.init_from is None or cell is not None
        return load_config(self.config, [*settings, *self.settings], cell=cell, runs_file=runs_file)

    def request(self) -> "Request":
        """The text and the minutes for which settings are to be chosen."""
        from charlm.choice.families import Request

        assert self.text is not None
        return Request(self.text, self.minutes or DEFAULT_MINUTES, self.settings)


def start(new: NewRun, group: "ProcessGroup", began_s: float, on_row: "OnRow | None" = None) -> "Outcome":
    """Train from a config, or choose settings for the text and the minutes and say why; see `start_run`.

    began_s: when the minutes began, by time.perf_counter(); for a pipe they begin when it has been read. Processes that
    torchrun restarts resume their run.
    """
    from charlm.checkpoint import read_checkpoint
    from charlm.choice.suggest import suggest
    from charlm.training.folder import discard_text
    from charlm.training.start import resume_run, run_of_this_launch, start_run

    if again := group.on_first(run_of_this_launch, group):
        return resume_run(again, group=group, on_row=on_row)
    if group.on_first(new.has_pipe):
        new = group.on_first(_with_text_kept, new)
        try:
            return start(new, group, time.perf_counter(), on_row)
        except (DataError, VocabularyError):  # what is wrong with the text does not go away
            if group.is_first and new.run_dir:
                discard_text(new.run_dir)
            raise
    path = new.init_from
    initial = group.on_first(read_checkpoint, find_checkpoint(path, "--init-from")) if path else None
    opened = None
    if new.config is not None:
        config = group.on_first(new.parse, initial and initial.config.model.cell)
        name, budget = new.config.stem, Budget(new.minutes, began_s) if new.minutes else None
    else:
        request = new.request()
        if initial:
            request = group.on_each(_with_model_of, request, initial, str(path))
        budget = Budget(request.minutes, began_s)
        config, reasons, _, opened, vocabulary = suggest(request, group, budget)
        say_all(reasons)
        if initial:
            initial = replace(initial, vocabulary=vocabulary)
        name = Path(request.source).stem
    return start_run(config, new.run_dir, initial, name=name, group=group, opened=opened, budget=budget, on_row=on_row)


def _limited_to(minutes: float) -> list[str]:
    """Settings that make the minutes the only limit of a run."""
    return [f"train.max_minutes={minutes}", "train.max_steps=null", "train.max_epochs=null"]


def _with_text_kept(new: NewRun) -> NewRun:
    """The run with the text of a pipe in a file of its folder."""
    from charlm.training.folder import keep_text

    assert new.text is not None
    file = keep_text(new.text, new.run_dir)
    return replace(new, text=str(file), run_dir=file.parent)


def _with_model_of(request: "Request", initial: "Checkpoint", name: str) -> "Request":
    """The request with the model of a run; ConfigError if the user's options do not fit it."""
    from charlm.cells.cell import is_in_file
    from charlm.cells.stored import is_edited
    from charlm.config import parse_config
    from charlm.training.fine_tuning import check_same_model, settings_of_run

    taken, names_cell = settings_of_run(initial.config), request.gives("model.cell.kind")
    if names_cell and is_in_file(initial.config.model.cell.kind):  # the file may have other options
        taken = [one for one in taken if not one.startswith("model.cell.") or one.startswith("model.cell.hidden=")]
    request = replace(request, initial=initial, cell=initial.config.model.cell)
    config = request.config({"data": {"source": request.source}}, taken)
    raw = config.model_dump(mode="json")
    config = parse_config(raw, name, request.overrides, cell=config.model.cell, runs_file=names_cell)
    check_same_model(config, initial)
    if is_edited(config.model.cell):
        own_step = "the run takes the checkpoint's step; to take that of the file, set model.cell.kind"
        say("cell", f"{config.model.cell.kind}: the file has changed; {own_step}")
    return replace(request, cell=config.model.cell, overrides=[*taken, *request.overrides])


def cost_of(new: NewRun, group: "ProcessGroup") -> "dict[str, Any]":
    """What the run that `start` would train will cost."""
    from charlm.choice.suggest import suggest
    from charlm.training.plan import measure_cost

    if new.config is not None:
        return measure_cost(group.on_first(new.parse), group)
    suggestion = suggest(new.request(), group)
    # What the plan measures takes the place of the expected updates, which rest on a shorter measurement.
    say_all({label: reason for label, reason in suggestion.reasons.items() if label != "plan"})
    return measure_cost(suggestion.config, group, suggestion.opened)


def check_resume(run_dir: Path, minutes: float | None, settings: list[str]) -> None:
    """ConfigError or CheckpointError for what `resume_with` cannot continue. Needs no torch."""
    check_minutes(minutes, settings)
    # The first process of torchrun checks it later, and so does every run where the system cannot say.
    if "RANK" not in os.environ:
        with contextlib.suppress(OSError):
            check_resumable(run_dir)


def resume_with(
    run_dir: Path, config: Path | None, minutes: float | None, settings: list[str], group: "ProcessGroup"
) -> "Outcome":
    """Continue a run with a config, or with its own, and the settings. minutes: of all sessions, the only limit."""
    from charlm.config import Config, load_config, parse_config
    from charlm.runs import CONFIG
    from charlm.training.start import resume_run

    if minutes is not None:
        settings = [*_limited_to(minutes), *settings]

    def change(saved: Config) -> Config:
        if config is None:
            return parse_config(saved.model_dump(mode="json"), str(run_dir / CONFIG), settings, cell=saved.model.cell)
        return load_config(config, settings, cell=saved.model.cell)

    return resume_run(run_dir, change, group)


def say_if_stopped(outcome: "Outcome") -> bool:
    """Whether a signal has stopped the run; if so, say how to resume it."""
    from charlm.training.signals import SIGNALS

    if outcome.reason not in SIGNALS:
        return False
    command = f"charlm train --resume --run-dir {shlex.quote(outcome.run_dir)}"
    say("stopped", f"{outcome.reason} at update {outcome.step}; resume with:", command)
    return True
