"""The search: trial after trial until the time is over."""

import time
from dataclasses import dataclass
from statistics import median

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
from charlm.training.loop import Callbacks, Outcome
from charlm.training.signals import SIGNALS
from charlm.training.start import resume_run, start_run
from charlm.tuning.report import write_best
from charlm.tuning.space import describe
from charlm.tuning.study import Study, Trial, best, refusing_os_errors

_SHARES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""When a trial is evaluated and may be pruned, besides its end."""
_WORTH = 0.5
"""A trial begins if there is time for this share of it."""
_REPORT_S = 4.0
"""What is kept for the report: at most this, and at most `_REPORT` of the time."""
_REPORT = 0.02
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
        self._kept_s = min(_REPORT_S, _REPORT * (self.ends_s - time.perf_counter()))
        self._overhead_s = 0.0
        self._faults = 0

    def run(self) -> str:
        """Train until the time is over or there are enough trials; "", or the name of the signal that stopped it."""
        try:
            with refusing_os_errors(self.study.folder):
                return self._run_all()
        except KeyboardInterrupt:  # between two trials, or a second one within a trial
            return "SIGINT"

    def _run_all(self) -> str:
        while True:
            with self.study.claimed(self.most_trials, self._fits) as trial:
                if trial is None:
                    return ""
                if signal := self._run(trial):
                    return signal

    def _left_s(self) -> float:
        """Seconds that are left for training."""
        return self.ends_s - time.perf_counter() - self._kept_s - self._overhead_s

    def _fits(self, elapsed_s: float) -> bool:
        """Whether there is time for a trial that has trained for so long already."""
        left_s, whole_s = self._left_s(), self._trial_s()
        return left_s > 0 and (whole_s is None or left_s + elapsed_s >= _WORTH * whole_s)

    def _trial_s(self) -> float | None:
        """How long a trial trains: the median of those that were completed; before, what the plan says."""
        found = [60 * (record.minutes or 0) for record in self.study.records() if record.state == "complete"]
        minutes = self.study.plan.minutes
        return median(found) if found else None if minutes is None else 60 * minutes

    def _run(self, trial: Trial) -> str:
        """Train a trial and note what came of it; returns the name of a signal that stopped it, or ""."""
        start_s = time.perf_counter()
        try:
            outcome = self._train(trial)
        except Exception as error:
            out_of_memory = is_out_of_memory(error)
            if not (out_of_memory or isinstance(error, _OF_THE_OPTIONS)):
                raise
            self._note_fault(trial, "out of memory" if out_of_memory else str(error).splitlines()[0])
        else:
            if outcome.reason in SIGNALS:
                return outcome.reason
            self._overhead_s = time.perf_counter() - start_s - (outcome.elapsed_s - (trial.elapsed_s or 0.0))
            self._note_score(trial, outcome)
        free_memory()
        return ""

    def _train(self, trial: Trial) -> Outcome:
        elapsed_s = trial.elapsed_s or 0.0
        minutes = (self._left_s() + elapsed_s) / 60
        if (usual := self.study.plan.minutes) is not None:
            minutes = min(minutes, usual)
        config = self.study.plan.trial_config(trial.values, minutes)
        callbacks = Callbacks(prune_at=_SHARES, should_prune=lambda share, nats: self.study.report(trial, share, nats))
        with quiet():
            if trial.elapsed_s is None:
                return start_run(config, trial.folder, callbacks=callbacks)
            return resume_run(trial.folder, lambda _: config, callbacks=callbacks)

    def _note_score(self, trial: Trial, outcome: Outcome) -> None:
        self._faults = 0
        self.study.end(trial, outcome)
        found = best(self.study.records())
        if found and found.number == trial.number:
            write_best(self.study)
        pruned = "pruned after" if outcome.reason == "pruned" else "in"
        score = f"{outcome.best_nats:.4f} nats {pruned} {format_duration(outcome.elapsed_s)}"
        self._say(trial, score, f"best {found.nats:.4f} (trial {found.number})" if found else "")

    def _note_fault(self, trial: Trial, fault: str) -> None:
        self._faults += 1
        self.study.fail(trial, fault)
        self._say(trial, f"failed: {fault}")
        if self._faults == _MOST_FAULTS:
            raise StudyError(
                f"{self.study.folder}: {_MOST_FAULTS} trials in a row failed, the last with: {fault}; allowed: a space "
                "in which some succeed; start another study with --over"
            )

    def _say(self, trial: Trial, *parts: str) -> None:
        left = f"{format_duration(max(self.ends_s - time.perf_counter(), 0))} left"
        line = "  ".join(part for part in (*parts, describe(trial.values), left) if part)
        say("trial", f"{trial.number:>4}  {line}")
