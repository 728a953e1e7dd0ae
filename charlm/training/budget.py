"""The minutes of a run, from `--minutes M` to the last checkpoint.

They begin with the command, or when the text of a pipe has been read; with a config they begin with the training.
charlm first measures the speed of models (`measuring_s`), and then chooses one for the time left (`training_s`).
Learning rates follow `share_done`, and the run ends where it is 1, which leaves time for the last evaluation, a sample
and two checkpoints, as they were measured. Compiling kernels does not count: it happens once per machine. A resumed run
continues the times in its `TrainState`. Imports no torch, because a command first makes its budget.
"""

import math
import time
from typing import TYPE_CHECKING

from charlm.errors import ConfigError
from charlm.system.console import say
from charlm.system.number import in_range
from charlm.training.signals import SIGNALS

if TYPE_CHECKING:
    from charlm.config import Settings
    from charlm.system.process_group import ProcessGroup
    from charlm.training.state import TrainState

DEFAULT_MINUTES = 5.0
"""How long a run takes whose settings are chosen."""
EVALUATION_COST = 0.22
"""Time to evaluate a character, relative to training on it: 0.20 to 0.23 measured, until a run measures its own."""
_MOST = 0.5
"""Largest share of the minutes before the first update, and of the rest after the last one."""
_MEASURING, _MOST_MEASURING_S = 0.08, 5.0
"""Share of the minutes in which speed is measured, and its limit."""
_START_S, _AFTER_CHOICE_S = 2.5, 0.5
"""Seconds before the first update and after the last, and the part of them that comes after the choice."""
_UPDATES = 0.92
"""Share of the remaining time that updates get; evaluations, samples and checkpoints get the rest."""
_AVERAGED = 0.05
"""The time of updates is averaged over this share of the minutes."""


def check_minutes(minutes: float | None, settings: "Settings") -> None:
    """ConfigError for minutes out of range, or given twice."""
    from charlm.config.schema import MINUTES

    if minutes is None:
        return
    try:
        in_range("minutes", minutes, *MINUTES)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if "train.max_minutes" in settings:
        raise ConfigError("train.max_minutes: found beside minutes or its default; allowed: minutes alone")


def leaving_s(loading_s: float) -> float:
    """Estimated time for Python to start, and for the sample and the exit: 0.22 s where importing charlm took 1.5 s."""
    return min(loading_s / 4, 1.5)


class Budget:
    """How long the parts of a run may take, and the share of its minutes that is over; without minutes always 0.

    begun_s: when the minutes began, by time.perf_counter(); None: they begin with `begin`. All processes take the first
    one's clock, so their budgets agree.
    """

    def __init__(self, minutes: float | None, begun_s: float | None = None) -> None:
        self.run_s = 60 * minutes if minutes else math.inf
        self.begun_s = begun_s
        self.evaluation_updates = 0.0
        """What the last evaluation took, in updates: a slower machine is slower at both. Before the first a guess."""
        self.saving_s = self.sampling_s = 0.0
        """What the last checkpoint took, and the last sample."""
        self._recent_s = self._recent_updates = 0.0  # sums that fade

    # Before the training

    def measuring_s(self) -> float:
        """How long the speed of models may be measured."""
        return min(_MOST_MEASURING_S, _MEASURING * self.run_s)

    def training_s(self) -> float:
        """How long updates may take, of the minutes that are left, as expected before the training."""
        starting_s = max(_START_S, self._passed_s() + _AFTER_CHOICE_S)
        return _UPDATES * (self.run_s - min(starting_s, _MOST * self.run_s))

    def _passed_s(self) -> float:
        """Seconds since the minutes began, without those that compiling took; 0 if they have not begun."""
        from charlm.native.compiler import compiled_s

        if self.begun_s is None:
            return 0.0
        return time.perf_counter() - self.begun_s - compiled_s(self.begun_s)

    # While it trains

    def begin(self, state: "TrainState", valid_windows: float) -> None:
        """Begin the training, of a run that stands at `state`; say so if starting took most of the minutes.

        valid_windows: how many times as much as an update an evaluation reads.
        """
        self.evaluation_updates = EVALUATION_COST * valid_windows
        starting_s = self._passed_s()
        if starting_s > _MOST * self.run_s:
            starting_s = _MOST * self.run_s
            say("start", f"starting took most of {self.run_s:.1f} s; training gets {1 - _MOST:.0%} of them anyway")
        self.begun_s = time.perf_counter() - starting_s - state.elapsed_s

    def tick(self, state: "TrainState", group: "ProcessGroup", signals: list[str]) -> list[str]:
        """Bring the state's time up to date; returns the signals that any process has received."""
        assert self.begun_s is not None
        state.elapsed_s, signals = group.agree(time.perf_counter() - self.begun_s, signals, SIGNALS)
        if state.step == 0:
            state.starting_s = state.elapsed_s
        return signals

    def count_update(self, seconds: float) -> None:
        """Average the time of an update, over the last minutes."""
        kept = math.exp(-seconds / (_AVERAGED * self.run_s))
        self._recent_s = kept * self._recent_s + seconds
        self._recent_updates = kept * self._recent_updates + 1

    @property
    def update_s(self) -> float:
        """Time of an update at the present speed; 0 before the first one of a session."""
        return self._recent_s / max(self._recent_updates, 1.0)

    def share_done(self, state: "TrainState") -> float:
        """Share of the minutes between the first update and the last that has passed; 0 without minutes."""
        left_s = max(self.run_s - state.starting_s, 1e-9)
        return state.updating_s / (left_s - min(self._ending_s, _MOST * left_s))

    def has_time_to_evaluate(self, state: "TrainState") -> bool:
        """Whether there is time for an evaluation beside the last one."""
        return state.elapsed_s + 2 * self._ending_s <= self.run_s

    @property
    def _ending_s(self) -> float:
        """Expected time from the last update to the end: an evaluation, a sample, and two checkpoints."""
        return self.evaluation_updates * self.update_s + self.sampling_s + 2 * self.saving_s
