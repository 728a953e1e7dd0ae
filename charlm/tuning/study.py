"""A study on disk: Optuna's journal beside the runs of its trials. Several processes may work on one study at the
same time.

A trial belongs to the process that holds the lock in its folder. If nobody holds it and the trial has not ended, its
process was killed, and the next process that asks for a trial continues it. Optuna's own retries need a database for
their heartbeats, and SQLite does not work on every shared disk.
"""

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState

from charlm.config import Config, dump_config
from charlm.data.sources import check_exists
from charlm.errors import DamagedCheckpointError, RunError, StudyError
from charlm.runs import CONFIG, FOLDER, JOURNAL, LAST, read_header
from charlm.system.files import refuse_links, replace_file
from charlm.system.lock import LOCK, locked
from charlm.training.folder import refusing_os_errors
from charlm.tuning.settings import FirstTrial, StudySettings
from charlm.tuning.space import trial_value

_PRUNER = optuna.pruners.MedianPruner(n_startup_trials=0, n_warmup_steps=30, n_min_trials=3)
"""Steps are percent of a run. A trial ends early if its best score so far is worse than the median at this point."""
_SETTINGS = "settings 2"
"""The attribute of Optuna's study that has the settings. Its number is that of the format."""
_STATES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned"}


@dataclass(frozen=True)
class Trial:
    """What is known of a trial."""

    number: int
    """From 1."""
    run_dir: str
    state: str
    """complete | pruned | failed | unfinished"""
    chosen: bool
    """Whether it is charlm's own choice, which may lie outside of the space."""
    options: dict[str, Any]
    nats: float | None = None
    """Best score, nats per character; of a pruned trial the best until then."""
    minutes: float | None = None
    steps: int | None = None
    fault: str | None = None
    """Why it failed."""


class Study:
    """A study in its folder."""

    def __init__(self, folder: Path, choose: Callable[[], tuple[StudySettings, list[FirstTrial]]]) -> None:
        """Open the study in the folder; if there is none, `choose` its settings and its first trials."""
        self.folder = folder
        with refusing_os_errors(folder, StudyError, "--study"):
            chosen = None if _holds_study(folder) else choose()
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder, wait=True):
                try:
                    self._study = _open(folder / JOURNAL)
                    if _SETTINGS not in self._study.user_attrs:
                        self._begin(*(chosen or choose()))
                    self.settings = StudySettings.from_json(self._study.user_attrs[_SETTINGS], folder)
                except (AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
                    raise StudyError(
                        f"{folder / JOURNAL}: damaged; allowed: the journal of a study; take another --study"
                    ) from None

    def _begin(self, settings: StudySettings, first: list[FirstTrial]) -> None:
        replace_file(self.folder / CONFIG, dump_config(settings.config).encode())
        for values, attributes in first:  # some are there if a process was killed here
            self._study.enqueue_trial(values, attributes, skip_if_exists=True)
        self._study.set_user_attr(_SETTINGS, settings.as_json())  # last: from here on there is a study

    def set_left(self, left_s: float) -> None:
        """Keep for other processes and later sessions when the study's time is over, by the time of day."""
        self._study.set_user_attr("ends_s", [time.time() + left_s, left_s])

    def left_s(self) -> float:
        """How much of its time is left; a clock that was set back adds none."""
        end_s, most_s = self._study.user_attrs.get("ends_s", (0.0, 0.0))
        return min(end_s - time.time(), most_s)

    def run_dir(self, trial: optuna.Trial | FrozenTrial) -> Path:
        return self.folder / f"trial-{trial.number + 1:04}"

    def trials(self) -> list[Trial]:
        """All trials that have begun, in their order."""
        return [
            Trial(
                trial.number + 1,
                str(self.run_dir(trial)),
                "failed" if "fault" in trial.user_attrs else _STATES.get(trial.state, "unfinished"),
                "chosen" in trial.user_attrs,
                trial.user_attrs.get("values", {}),
                **trial.user_attrs.get("run", {}),
                fault=trial.user_attrs.get("fault"),
            )
            for trial in self._study.get_trials(deepcopy=False)
            if trial.state != TrialState.WAITING
        ]

    @contextlib.contextmanager
    def next_trial(self, most_trials: int | None, fits: Callable[[float], bool]) -> Iterator[optuna.Trial | None]:
        """A trial that is this process's during the block: one whose process was killed, or a new one.

        None if `most_trials` have begun, or if the time does not suffice: `fits` is asked with the seconds that a trial
        has trained already.
        """
        with contextlib.ExitStack() as trial_lock:
            with locked(self.folder, wait=True), _calm():
                trial = self._killed_trial(trial_lock, fits) or self._new_trial(trial_lock, most_trials, fits)
                if trial and "chosen" not in trial.user_attrs:
                    values = {key: trial_value(trial, key, option) for key, option in self.settings.space.items()}
                    trial.set_user_attr("values", values)
            yield trial

    def _killed_trial(self, trial_lock: contextlib.ExitStack, fits: Callable[[float], bool]) -> optuna.Trial | None:
        for frozen in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            with contextlib.suppress(RunError):  # another process has it
                if fits(trained_s(self.run_dir(frozen)) or 0.0):
                    self._check_texts()
                    self._lock(frozen, trial_lock)
                    return optuna.Trial(self._study, frozen._trial_id)
        return None

    def _new_trial(
        self, trial_lock: contextlib.ExitStack, most_trials: int | None, fits: Callable[[float], bool]
    ) -> optuna.Trial | None:
        trials = self._study.get_trials(deepcopy=False)
        started = sum(trial.state != TrialState.WAITING for trial in trials)
        if not ((most_trials is None or started < most_trials) and fits(0.0)):
            return None
        self._check_texts()
        # Two random trials follow those that are given. `group`: charlm's own choice lacks the searched options.
        # Another seed for each trial: processes that sample at the same time must not draw the same values.
        random = 4 + any("chosen" in trial.user_attrs for trial in trials)
        seed = (self.settings.config.seed + started) % 2**32
        self._study.sampler = optuna.samplers.TPESampler(
            n_startup_trials=random, multivariate=True, group=True, constant_liar=True, seed=seed
        )
        trial = self._study.ask()
        self._lock(trial, trial_lock)
        return trial

    def _check_texts(self) -> None:
        """DataError for a text that is not there, before all trials fail for it."""
        data = self.settings.config.data
        for source in filter(None, (data.source, data.valid_source, data.test_source)):
            check_exists(source)

    def _lock(self, trial: optuna.Trial | FrozenTrial, trial_lock: contextlib.ExitStack) -> None:
        folder = self.run_dir(trial)
        refuse_links(self.folder, [folder.name])
        folder.mkdir(exist_ok=True)
        trial_lock.enter_context(locked(folder, ".tune"))

    def tuned(self, number: int) -> Config:
        """The config with the values of a trial, or charlm's own choice; without a trial's limits."""
        attributes = self._study.get_trials(deepcopy=False)[number - 1].user_attrs
        return self.settings.tuned(attributes["values"], attributes.get("chosen"))

    def report(self, trial: optuna.Trial, share: float, nats: float) -> bool:
        """Report the score of a trial after a share of its run; True if it is not worth finishing.

        charlm's own choice is not reported: the others are not compared with it, and it always trains to its end.
        """
        if "chosen" in trial.user_attrs:
            return False
        with _calm():  # a session that was killed may have reported it
            trial.report(nats, round(100 * share))
        return trial.should_prune()

    def end(self, trial: optuna.Trial, nats: float | None, **attributes: Any) -> None:
        """Store how a trial ended.

        nats: None if it was pruned, or failed because of its options. Then it is as bad as can be for Optuna; from a
        trial that FAILs the sampler would learn nothing.
        """
        for name, value in attributes.items():
            trial.set_user_attr(name, value)
        self._study.tell(trial, nats, TrialState.PRUNED if nats is None else None)


def best(trials: list[Trial]) -> Trial | None:
    """The complete trial with the lowest score."""
    complete = [trial for trial in trials if trial.state == "complete" and trial.nats is not None]
    return min(complete, key=lambda trial: trial.nats or 0.0, default=None)


def trained_s(run_dir: Path) -> float | None:
    """How long a run has trained; None if there is no checkpoint to resume from."""
    if not any((run_dir / FOLDER).glob("*.safetensors")):
        return None
    try:
        return float(read_header(run_dir / FOLDER / LAST).progress["elapsed_s"])
    except (DamagedCheckpointError, KeyError):
        return 0.0  # `resume_run` looks for another


def _holds_study(folder: Path) -> bool:
    """Whether a study is in the folder; StudyError if something else is."""
    refuse_links(folder, [JOURNAL])
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    others = sorted(name for name in names if not name.endswith(LOCK))
    exists = (folder / JOURNAL).is_file()  # looked for last: a study begins with its journal
    if others and not exists:
        raise StudyError(f"{folder}: holds {others[0]}, but no study; allowed: a study, or a new folder")
    return exists


def _open(journal: Path) -> optuna.Study:
    """The study in a journal; a new one if the journal is empty or missing. StudyError for that of another version."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    lock = JournalFileOpenLock(str(journal))
    lock.acquire()
    try:  # a full disk or a power failure may have cut the last line: what Optuna appends would be lost with it
        data = journal.read_bytes() if journal.is_file() else b""
        if b"\n" in data and not data.endswith(b"\n"):
            replace_file(journal, data[: data.rfind(b"\n") + 1])
    finally:
        lock.release()
    storage = JournalStorage(JournalFileBackend(str(journal), lock_obj=lock))
    study = optuna.create_study(storage=storage, study_name="charlm", load_if_exists=True, pruner=_PRUNER)
    begun = [trial for trial in study.get_trials(deepcopy=False) if trial.state != TrialState.WAITING]
    if begun and _SETTINGS not in study.user_attrs:
        raise StudyError(
            f"{journal.parent}: found a study of another version of charlm; allowed: one of this version; take another "
            "folder"
        )
    return study


@contextlib.contextmanager
def _calm() -> Iterator[None]:
    """Silence Optuna's warnings, for example that options are experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
