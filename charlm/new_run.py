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
from charlm.runs import check_new, check_resumable, find_checkpoint, has_checkpoint
from charlm.system.console import say, say_all
from charlm.training.budget import DEFAULT_MINUTES, Budget, check_minutes
from charlm.training.signals import SIGNALS

if TYPE_CHECKING:
    from charlm.checkpoint import Checkpoint
    from charlm.choice.families import Request
    from charlm.config import Config, Settings
    from charlm.system.process_group import ProcessGroup
    from charlm.training.loop import OnRow
    from charlm.training.run import Run


@dataclass(frozen=True)
class TrainOptions:
    """What a run is to start from: a config, or a text for which settings are chosen.

    resume: continue the run in `run_dir`; only if there is none, start it from config or text.
    """

    text: str | None
    minutes: float | None
    config: Path | None
    settings: "Settings"
    init_from: Path | None = None
    run_dir: Path | None = None
    resume: bool = False

    def check_early(self) -> None:
        """ConfigError, DataError or CheckpointError for a run that cannot start. Needs no torch.

        Processes of torchrun skip most checks: the first one finds the same faults later, and prints them once.
        """
        has_default = self.minutes is None and self.config is None and self.text is not None
        check_minutes(DEFAULT_MINUTES if has_default else self.minutes, self.settings)
        if "RANK" in os.environ:
            return
        with contextlib.suppress(OSError):  # where the system cannot say, the run checks it later
            if self.run_dir and self.continues():
                check_resumable(self.run_dir)
                return
            if self.run_dir:
                check_new(self.run_dir)
        from charlm.data.sources import check_exists

        data = (self.parse() if self.config else self.request().base()).data
        if self.init_from is not None:
            find_checkpoint(self.init_from, "--init-from")
        check_exists(data.source, or_pipe=data.source == self.text)
        for each in filter(None, (data.valid_source, data.test_source)):
            check_exists(each)

    def continues(self) -> bool:
        """Whether there is a run to continue, or nothing to start one from."""
        if not self.resume:
            return False
        assert self.run_dir is not None
        return has_checkpoint(self.run_dir) or (self.text is None and self.config is None)

    def check_same(self, group: "ProcessGroup") -> None:
        """CharlmError unless all processes have the same options."""
        for name, value in vars(self).items():
            group.check_equal(name, lambda value=value: repr(value))

    def has_pipe(self) -> bool:
        """Whether the text can be read only once."""
        from charlm.data.reading import is_pipe

        return self.text is not None and is_pipe(self.text)

    def parse(self, initial: "Checkpoint | None" = None) -> "Config":
        """The config with the text and the settings. initial: that of `init_from`; `check_early` does not read it."""
        from charlm.config import load_config
        from charlm.config.parse import cell_of_config, cell_of_run, options_only, refused

        assert self.config is not None
        in_run = options_only if self.init_from else refused
        if initial:
            in_run = cell_of_run(initial.config.model.cell)
        settings = self.all_settings()
        return load_config(self.config, settings, cell_of_config(self.config, settings, in_run))

    def all_settings(self) -> "Settings":
        """The settings, over the text and the minutes, which are the only limit of a run."""
        from charlm.config import merged

        settings: dict[str, Any] = {}
        if self.minutes is not None:
            settings = {"train.max_minutes": self.minutes, "train.max_steps": None, "train.max_epochs": None}
        if self.text is not None:
            settings["data.source"] = self.text
        return merged(settings, self.settings)

    def request(self) -> "Request":
        """The text and the minutes for which settings are to be chosen."""
        from charlm.choice.families import Request

        assert self.text is not None
        return Request(self.text, self.minutes or DEFAULT_MINUTES, self.settings)


def start(options: TrainOptions, group: "ProcessGroup", began_s: float, on_row: "OnRow | None" = None) -> "Run":
    """Resume a run, train from a config, or choose settings for the text and the minutes and say why; see `start_run`.

    All processes of the group call this, with the same options.

    began_s: when the minutes began, by time.perf_counter(); for a pipe they begin when it has been read. Processes that
    torchrun restarts resume their run.
    """
    options.check_same(group)
    if group.on_first(options.continues):
        return _resume(options, group)
    from charlm.choice.suggest import suggest
    from charlm.training.folder import discard_text, keep_text
    from charlm.training.start import resume_run, run_of_this_launch, start_run

    if again := group.on_first(run_of_this_launch, group):
        return resume_run(again, group=group, on_row=on_row)
    if group.on_first(options.has_pipe):
        assert options.text is not None
        file = group.on_first(keep_text, options.text, options.run_dir)
        options = replace(options, text=str(file), run_dir=file.parent)
        try:
            return start(options, group, time.perf_counter(), on_row)
        except (DataError, VocabularyError):  # what is wrong with the text does not go away
            if group.is_first:
                discard_text(file.parent)
            raise
    initial = group.on_first(_read_initial, options.init_from) if options.init_from else None
    opened = None
    if options.config is not None:
        config = group.on_first(options.parse, initial)
        name, budget = options.config.stem, Budget(options.minutes, began_s) if options.minutes else None
    else:
        request = options.request()
        if initial:
            request = group.on_each(_with_model_of, request, initial, str(options.init_from))
        budget = Budget(request.minutes, began_s)
        config, reasons, _, opened, vocabulary = suggest(request, group, budget)
        say_all(reasons)
        if initial:
            initial = replace(initial, vocabulary=vocabulary)
        name = Path(request.source).stem
    run_dir = options.run_dir
    return start_run(config, run_dir, initial, name=name, group=group, opened=opened, budget=budget, on_row=on_row)


def _read_initial(path: Path) -> "Checkpoint":
    from charlm.checkpoint import read_checkpoint

    return read_checkpoint(find_checkpoint(path, "--init-from"))


def _resume(options: TrainOptions, group: "ProcessGroup") -> "Run":
    """Continue a run with another config, or with its own, and the settings. The minutes are those of all sessions."""
    from charlm.config import Config, load_config, parse_config
    from charlm.config.parse import cell_of_run
    from charlm.runs import CONFIG
    from charlm.training.start import resume_run

    assert options.run_dir is not None
    saved_file = str(options.run_dir / CONFIG)

    def change(saved: Config) -> Config:
        settings, own_cell = options.all_settings(), cell_of_run(saved.model.cell)
        if options.config is None:
            return parse_config(saved.model_dump(mode="json"), saved_file, settings, own_cell)
        return load_config(options.config, settings, own_cell)

    return resume_run(options.run_dir, change, group)


def _with_model_of(request: "Request", initial: "Checkpoint", name: str) -> "Request":
    """The request with the model of a run; ConfigError if the user's options do not fit it."""
    from charlm.cells.cell import is_in_file
    from charlm.cells.file import load_cell
    from charlm.cells.stored import is_edited
    from charlm.config import merged, parse_config
    from charlm.config.parse import cell_of_run
    from charlm.training.fine_tuning import check_same_model, settings_of_run

    taken, cell = settings_of_run(initial.config), initial.config.model.cell
    names_cell = request.gives("model.cell.kind")
    if names_cell and is_in_file(cell.kind):  # the file may have other options
        taken["model"]["cell"] = {"hidden": cell.hidden}
    config = parse_config(taken, name, request.given, load_cell if names_cell else cell_of_run(cell))
    check_same_model(config, initial)
    if is_edited(config.model.cell):
        own_step = "the run takes the checkpoint's step; to take that of the file, set model.cell.kind"
        say("cell", f"{config.model.cell.kind}: the file has changed; {own_step}")
    given = merged(taken, request.given)
    return replace(request, initial=initial, own_cell=cell_of_run(config.model.cell), given=given)


def cost_of(options: TrainOptions, group: "ProcessGroup") -> "dict[str, Any]":
    """What the run that `start` would train will cost."""
    from charlm.choice.suggest import suggest
    from charlm.training.plan import measure_cost

    options.check_same(group)
    if options.config is not None:
        return measure_cost(group.on_first(options.parse), group)
    suggestion = suggest(options.request(), group)
    # What the plan measures takes the place of the expected updates, which rest on a shorter measurement.
    say_all({label: reason for label, reason in suggestion.reasons.items() if label != "plan"})
    return measure_cost(suggestion.config, group, suggestion.opened)


def say_if_stopped(run: "Run") -> bool:
    """Whether a signal has stopped the run; if so, say how to resume it."""
    if run.reason not in SIGNALS:
        return False
    command = f"charlm train --resume --run-dir {shlex.quote(run.run_dir)}"
    say("stopped", f"{run.reason} at update {run.step}; resume with:", command)
    return True
