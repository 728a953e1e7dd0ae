"""The search: trial after trial until the time is over."""

import time
from dataclasses import dataclass
from statistics import median

import optuna

from charlm.config.yaml import dump_flow
from charlm.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DeviceError,
    DivergenceError,
    StudyError,
    is_out_of_memory,
)
from charlm.system.console import quiet, say
from charlm.system.device import free_memory
from charlm.system.formatting import format_duration
from charlm.training.folder import refusing_os_errors
from charlm.training.loop import Callbacks, Outcome
from charlm.training.signals import SIGNALS
from charlm.training.start import resume_run, start_run
from charlm.tuning.report import write_best
from charlm.tuning.space import short_names
from charlm.tuning.study import Study, best, trained_s

_SHARES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""When a trial is evaluated and may be pruned, besides its end."""
_WORTH = 0.5
"""A trial begins if there is time for this share of it."""
_REPORT_S, _REPORT = 4.0, 0.02
"""Time for the report: at most these seconds, and at most this share of the whole."""
_MOST_FAULTS = 10
"""Failed trials in a row after which the search ends."""
_OF_THE_OPTIONS = (ConfigError, DataError, DeviceError, DivergenceError, CheckpointError)
"""Errors that another trial may avoid. Others, such as a full disk, end the search."""


@dataclass
class Search:
    """The trials of this process."""

    study: Study
    ends_s: float
    """When the last trial and the report must be done, as time.perf_counter() tells it."""
    most_trials: int | None
    """Of all processes and sessions together."""

    def __post_init__(self) -> None:
        self._report_s = min(_REPORT_S, _REPORT * (self.ends_s - time.perf_counter()))
        self._overhead_s = 0.0  # of the last trial, besides its training
        self._faults = 0

    def run(self) -> str:
        """Train until the time is over or there are enough trials; "", or the name of the signal that stopped it."""
        try:
            with refusing_os_errors(self.study.folder, StudyError, "--study"):
                while True:
                    with self.study.next_trial(self.most_trials, self._fits) as trial:
                        if trial is None:
                            return ""
                        if signal := self._run(trial):
                            return signal
        except KeyboardInterrupt:  # between two trials, or a second one within a trial
            return "SIGINT"

    def _left_s(self) -> float:
        """Seconds that are left for training."""
        return self.ends_s - time.perf_counter() - self._report_s - self._overhead_s

    def _fits(self, elapsed_s: float) -> bool:
        """Whether there is time for a trial that has trained for so long already.

        A trial takes as long as the median of those that were completed; before, what the settings say.
        """
        complete = [60 * (trial.minutes or 0) for trial in self.study.trials() if trial.state == "complete"]
        whole_s = median(complete) if complete else 60 * (self.study.settings.minutes or 0)
        left_s = self._left_s()
        return left_s > 0 and left_s + elapsed_s >= _WORTH * whole_s

    def _run(self, trial: optuna.Trial) -> str:
        """Train a trial and store what came of it; returns the name of a signal that stopped it, or ""."""
        start_s, trained_before_s = time.perf_counter(), trained_s(self.study.run_dir(trial))
        try:
            outcome = self._train(trial, trained_before_s)
        except Exception as error:
            out_of_memory = is_out_of_memory(error)
            if not (out_of_memory or isinstance(error, _OF_THE_OPTIONS)):
                raise
            self._fail(trial, "out of memory" if out_of_memory else str(error).splitlines()[0])
        else:
            if outcome.reason in SIGNALS:
                return outcome.reason
            self._overhead_s = time.perf_counter() - start_s - (outcome.elapsed_s - (trained_before_s or 0.0))
            self._end(trial, outcome)
        free_memory()
        return ""

    def _train(self, trial: optuna.Trial, trained_before_s: float | None) -> Outcome:
        settings, run_dir = self.study.settings, self.study.run_dir(trial)
        minutes = min((self._left_s() + (trained_before_s or 0.0)) / 60, settings.minutes or float("inf"))
        config = settings.trial_config(trial.user_attrs["values"], minutes, trial.user_attrs.get("chosen"))
        callbacks = Callbacks(prune_at=_SHARES, should_prune=lambda share, nats: self.study.report(trial, share, nats))
        with quiet():
            if trained_before_s is None:
                return start_run(config, run_dir, callbacks=callbacks)
            return resume_run(run_dir, lambda _: config, callbacks=callbacks)

    def _end(self, trial: optuna.Trial, outcome: Outcome) -> None:
        self._faults = 0
        run = {"nats": outcome.best_nats, "minutes": outcome.elapsed_s / 60, "steps": outcome.step}
        self.study.end(trial, None if outcome.reason == "pruned" else outcome.best_nats, run=run)
        leader = best(self.study.trials())
        if leader and leader.number == trial.number + 1:
            write_best(self.study)
        pruned = "pruned after" if outcome.reason == "pruned" else "in"
        score = f"{outcome.best_nats:.4f} nats {pruned} {format_duration(outcome.elapsed_s)}"
        self._say(trial, score, *([f"best {leader.nats:.4f} (trial {leader.number})"] if leader else []))

    def _fail(self, trial: optuna.Trial, fault: str) -> None:
        self._faults += 1
        self.study.end(trial, None, fault=fault)
        self._say(trial, f"failed: {fault}")
        if self._faults == _MOST_FAULTS:
            raise StudyError(
                f"{self.study.folder}: {_MOST_FAULTS} trials in a row failed, the last with: {fault}; allowed: a space "
                "in which some succeed; start another study with --over"
            )

    def _say(self, trial: optuna.Trial, *news: str) -> None:
        values = trial.user_attrs["values"]
        options = " · ".join(f"{name} {dump_flow(values[key])}" for key, name in short_names(values).items())
        left = f"{format_duration(max(self.ends_s - time.perf_counter(), 0))} left"
        say("trial", "  ".join([f"{trial.number + 1:>4}", *news, options, left]))
