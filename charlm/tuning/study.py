"""A study on disk: Optuna's journal beside the runs of its trials. Several processes may work on one at a time.

config.yaml    the config around which it searches
journal.log    Optuna's journal: the plan, and what came of each trial
trial-0001/ …  the trials, ordinary runs
best.yaml      the best config so far
trials.png     the score over each option

A trial belongs to the process that holds the lock in its folder. If none does and the trial has not ended, its process
was killed, and the next process that asks for a trial continues it.
"""

import contextlib
import json
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charlm.config import dump_config
from charlm.errors import DamagedCheckpointError, RunError, StudyError
from charlm.runs import CONFIG, FOLDER, JOURNAL, LAST, OWN_FILES, is_run, read_header
from charlm.system.files import NotOwnError, refuse_links, replace_file
from charlm.system.lock import locked
from charlm.training.loop import Outcome
from charlm.tuning.plan import Plan
from charlm.tuning.space import is_chosen

try:
    import optuna
except ModuleNotFoundError as error:
    if error.name != "optuna":
        raise
    raise StudyError("tune: optuna is not installed; pip install optuna matplotlib") from None

from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, TrialState

_LOCK = ".tune"
_NAME = "charlm"
_PLAN, _VALUES, _FAULT, _RUN, _CHOSEN = "plan", "values", "fault", "run", "chosen"

_RANDOM = 4
"""Trials before the sampler learns from those before; the first two are given, the others random."""
_UNUSED = TrialState.FAIL
"""How the trial of the plan's `chosen` ends for Optuna: the sampler cannot use it, because it is not in the space."""
_STATES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", _UNUSED: "complete"}
_PRUNER = optuna.pruners.MedianPruner(n_startup_trials=3, n_warmup_steps=30)
"""Steps are percent of a run. A trial ends early if its best score so far is worse than the median at this point."""


@dataclass(frozen=True)
class Trial:
    """A trial that this process trains."""

    number: int
    """From 1."""
    folder: Path
    values: dict[str, Any]
    elapsed_s: float | None
    """How long it has trained in earlier sessions; None: there is no checkpoint to resume from."""
    handle: optuna.Trial


@dataclass(frozen=True)
class Record:
    """What is known of a trial."""

    number: int
    run_dir: str
    state: str
    """complete | pruned | failed | unfinished"""
    nats: float | None
    """Best score, nats per character; of a pruned trial the best until then."""
    minutes: float | None
    steps: int | None
    options: dict[str, Any]
    fault: str | None
    """Why it failed."""


class Study:
    """A study in its folder."""

    def __init__(self, folder: Path, make: Callable[[], tuple[Plan, list[dict[str, Any]]]]) -> None:
        """Open the study in the folder; if there is none, `make` its plan and the values of its first trials."""
        self.folder = folder
        with refusing_os_errors(folder):
            if is_run(folder):
                raise StudyError(f"{folder}: holds a run; allowed: the folder of a study, or a new one")
            refuse_links(folder, [JOURNAL])
            others = [name for name in OWN_FILES if (folder / name).exists()]  # first: a study begins with its journal
            exists = (folder / JOURNAL).is_file()
            if others and not exists:
                raise StudyError(f"{folder}: holds {others[0]}, but no study; allowed: a study, or another folder")
        made = None if exists else make()
        with refusing_os_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with self._alone():
                self._study = _open(folder / JOURNAL)
                if _PLAN not in self._study.user_attrs:
                    self._begin(*(made or make()))
        with _refusing_damage(folder / JOURNAL):
            plan = Plan.from_json(self._study.user_attrs[_PLAN], str(folder))
        self.plan = plan.found_from(folder)

    def _begin(self, plan: Plan, first: list[dict[str, Any]]) -> None:
        replace_file(self.folder / CONFIG, dump_config(plan.config).encode())
        for values in first:
            self._study.enqueue_trial(values, skip_if_exists=True)
        if plan.chosen and not any(_CHOSEN in trial.user_attrs for trial in self._study.get_trials(deepcopy=False)):
            self._study.enqueue_trial({}, user_attrs={_CHOSEN: True})
        self._study.set_user_attr(_PLAN, plan.as_json())  # last: from here on there is a study

    def _alone(self) -> contextlib.AbstractContextManager[None]:
        """Hold the lock of the study, for a moment: other processes wait."""
        return locked(self.folder, wait=True)

    def note(self, name: str, value: float) -> None:
        """Keep a number for other processes and later sessions."""
        self._study.set_user_attr(name, value)

    def noted(self, name: str) -> float:
        """A number that `note` has kept; 0 if there is none."""
        try:
            found = float(self._study.user_attrs.get(name, 0.0))
        except (OverflowError, TypeError, ValueError):
            return 0.0
        return found if math.isfinite(found) else 0.0

    # Trials

    @contextlib.contextmanager
    def claimed(self, most: int | None, fits: Callable[[float], bool]) -> Iterator[Trial | None]:
        """A trial for this process: one whose process was killed, or a new one.

        None if `most` trials have begun, or if the time does not suffice: `fits` is asked with the seconds that a trial
        has trained already.
        """
        with contextlib.ExitStack() as held:
            with self._alone(), _calm():
                trial = self._stopped(held, fits) or self._new(held, most, fits)
            yield trial

    def _stopped(self, held: contextlib.ExitStack, fits: Callable[[float], bool]) -> Trial | None:
        for frozen in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            elapsed_s = _elapsed_s(self._folder_of(frozen))
            if fits(elapsed_s or 0.0) and self._hold(frozen, held):
                self.plan.check_texts()
                return self._trial(optuna.Trial(self._study, frozen._trial_id), elapsed_s)
        return None

    def _new(self, held: contextlib.ExitStack, most: int | None, fits: Callable[[float], bool]) -> Trial | None:
        begun = len(self._begun())
        if (most is not None and begun >= most) or not fits(0.0):
            return None
        self.plan.check_texts()  # or every trial would fail
        # Another seed for each trial: processes that sample at the same time must not find the same values.
        self._study.sampler = _sampler(self.plan.config.seed + begun)
        trial = self._study.ask()
        self._hold(trial, held)
        return self._trial(trial, None)

    def _trial(self, trial: optuna.Trial, elapsed_s: float | None) -> Trial:
        if _CHOSEN in trial.user_attrs:
            values = self.plan.chosen_values()
        else:
            values = {key: option.suggest(trial, key) for key, option in self.plan.space.items()}
        trial.set_user_attr(_VALUES, values)
        return Trial(trial.number + 1, self._folder_of(trial), values, elapsed_s, trial)

    def _hold(self, trial: optuna.Trial | FrozenTrial, held: contextlib.ExitStack) -> bool:
        """Take the lock of a trial; False if another process has it."""
        folder = self._folder_of(trial)
        refuse_links(self.folder, [folder.name])
        folder.mkdir(exist_ok=True)
        try:
            held.enter_context(locked(folder, _LOCK))
        except RunError:
            return False
        return True

    def _folder_of(self, trial: optuna.Trial | FrozenTrial) -> Path:
        return self.folder / f"trial-{trial.number + 1:04}"

    def _begun(self) -> list[FrozenTrial]:
        trials = self._study.get_trials(deepcopy=False)
        return [trial for trial in trials if trial.state != TrialState.WAITING]

    # What comes of them

    def report(self, trial: Trial, share: float, nats: float) -> bool:
        """Note the score of a trial after a share of its run; True if it is not worth finishing."""
        percent = round(100 * share)
        if percent in self._study.get_trials(deepcopy=False)[trial.handle.number].intermediate_values:
            return False  # reported before the session that this one continues was killed
        trial.handle.report(nats, percent)
        return not is_chosen(trial.values) and trial.handle.should_prune()

    def end(self, trial: Trial, outcome: Outcome) -> None:
        """Note how a trial ended."""
        run = {"nats": outcome.best_nats, "minutes": outcome.elapsed_s / 60, "steps": outcome.step}
        trial.handle.set_user_attr(_RUN, run)
        if is_chosen(trial.values):
            self._study.tell(trial.handle, state=_UNUSED)
        elif outcome.reason == "pruned":
            self._study.tell(trial.handle, state=TrialState.PRUNED)
        else:
            self._study.tell(trial.handle, outcome.best_nats)

    def fail(self, trial: Trial, fault: str) -> None:
        """Note that a trial failed because of its options.

        For Optuna it was pruned, and so as bad as can be: of a trial that FAILs the sampler would learn nothing, and a
        made-up score would be taken for a real one.
        """
        trial.handle.set_user_attr(_FAULT, fault)
        self._study.tell(trial.handle, state=_UNUSED if is_chosen(trial.values) else TrialState.PRUNED)

    def records(self) -> list[Record]:
        """All trials that have begun, in their order."""
        return [self._record(trial) for trial in self._begun()]

    def _record(self, trial: FrozenTrial) -> Record:
        fault, run = trial.user_attrs.get(_FAULT), trial.user_attrs.get(_RUN, {})
        state = _STATES.get(trial.state, "unfinished")
        return Record(
            number=trial.number + 1,
            run_dir=str(self._folder_of(trial)),
            state="failed" if fault else state,
            nats=run.get("nats"),
            minutes=run.get("minutes"),
            steps=run.get("steps"),
            options=trial.user_attrs.get(_VALUES, {}),
            fault=fault,
        )


def best(records: list[Record]) -> Record | None:
    """The complete trial with the lowest score."""
    complete = [record for record in records if record.state == "complete" and record.nats is not None]
    return min(complete, key=lambda record: record.nats or 0.0, default=None)


def _elapsed_s(run_dir: Path) -> float | None:
    """How long a run has trained; None if there is no checkpoint to resume from."""
    if not any((run_dir / FOLDER).glob("*.safetensors")):
        return None
    try:
        return float(read_header(run_dir / FOLDER / LAST).progress["elapsed_s"])
    except (DamagedCheckpointError, KeyError, OverflowError, TypeError, ValueError):
        return 0.0  # `resume_run` looks for another


# Optuna


def _open(journal: Path) -> optuna.Study:
    """The study in a journal; a new one if the journal is empty or missing."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    lock = JournalFileOpenLock(str(journal))
    lock.acquire()
    try:
        _mend(journal)
    finally:
        lock.release()
    with _calm(), _refusing_damage(journal):
        storage = _Storage(journal, lock)
        return optuna.create_study(
            storage=storage, study_name=_NAME, load_if_exists=True, sampler=_sampler(0), pruner=_PRUNER
        )


class _Storage(JournalStorage):
    """Optuna's journal. Other processes write it too, so it may turn out damaged whenever it is read."""

    def __init__(self, journal: Path, lock: JournalFileOpenLock) -> None:
        self._journal = journal
        super().__init__(JournalFileBackend(str(journal), lock_obj=lock))

    def _sync_with_backend(self) -> None:
        with _refusing_damage(self._journal):
            super()._sync_with_backend()


@contextlib.contextmanager
def _refusing_damage(journal: Path) -> Iterator[None]:
    """Turn what Optuna and `Plan` raise for a journal with other content than theirs into a StudyError."""
    try:
        yield
    except (
        ArithmeticError,
        AssertionError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        # Optuna's assertions say no more.
        found = "an unknown operation" if isinstance(error, AssertionError) else error
        raise _damaged(journal, found) from None


def _damaged(journal: Path, found: object) -> StudyError:
    return StudyError(f"{journal}: damaged ({found}); allowed: the journal of a study; take another --study")


def _mend(journal: Path) -> None:
    """Drop empty lines, and a last line that a full disk or a power failure cut short: Optuna could not read on.

    StudyError, and the file stays as it is, if anything else in it is no row.
    """
    data = journal.read_bytes() if journal.is_file() else b""
    lines = [line for line in data.splitlines(keepends=True) if line.strip(b"\0 \t\r\n")]
    if lines and not _is_row(lines[-1]) and (lines[-1].startswith(_ROW) or _ROW.startswith(lines[-1])):
        lines.pop()
    for number, line in enumerate(lines, 1):
        if not _is_row(line):
            raise _damaged(journal, f"line {number} was not written by Optuna")
    if (kept := b"".join(lines)) != data:
        replace_file(journal, kept)


_ROW = b'{"op_code":'
"""How each line of a journal begins."""


def _is_row(line: bytes) -> bool:
    try:
        return line.startswith(_ROW) and line.endswith(b"\n") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _sampler(seed: int) -> TPESampler:
    with _calm():
        return TPESampler(n_startup_trials=_RANDOM, multivariate=True, constant_liar=True, seed=seed % 2**32)


@contextlib.contextmanager
def _calm() -> Iterator[None]:
    """Silence Optuna's warnings, for example that its older versions have experimental options."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def refusing_os_errors(folder: Path) -> Iterator[None]:
    """Turn an OSError into a StudyError about the folder, or about what is not charlm's own in it."""
    try:
        yield
    except NotOwnError as error:
        raise StudyError(f"{error.filename}: {error.strerror}") from None
    except OSError as error:
        raise StudyError(
            f"{folder}: {error.strerror or error}; allowed: a folder that can be written; see --study"
        ) from None
