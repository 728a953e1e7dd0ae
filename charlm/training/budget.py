"""The minutes of a run, from `--minutes M` to the last checkpoint.

    given      by --minutes, which are 5 without it and without --config (`check_minutes`), or by train.max_minutes
    begin      when the command does (`new_run.start`), or once the text of a pipe has been read; those of a config
               begin with the training. What comes after the run is taken from them before (`leaving_s`)
    choosing   the speed of models is measured for `measuring_s`, and one is chosen for `training_s` of updates
    training   learning rates follow `share_done`, and the run ends where it is 1 (`TrainingLoop`); evaluations end
               sooner (`has_time_to_evaluate`)
    ending     the last evaluation and two checkpoints have the time that they are expected to take

Compiling kernels does not count: it happens once on a machine. A resumed run goes on with the times in its
`TrainState`. Imports no torch, because a command makes its budget before all else.
"""

import math
import time
from typing import TYPE_CHECKING

from charlm.errors import ConfigError
from charlm.system.console import say
from charlm.system.number import in_range

if TYPE_CHECKING:
    from charlm.system.process_group import ProcessGroup
    from charlm.training.state import TrainState

DEFAULT_MINUTES = 5.0
"""How long a run takes whose settings are chosen."""
EVALUATION_COST = 0.22
"""Time to evaluate a character, relative to training on it: 0.20 to 0.23 measured, until a run measures its own."""
_LONGEST_START = 0.5
"""Largest share of the minutes that starting may take, so that the run learns something."""
_LONGEST_ENDING = 0.5
"""Largest share of the minutes, from the first update on, that the last evaluation and checkpoint get."""
_MEASURING, _MOST_MEASURING_S = 0.08, 5.0
"""Share of the minutes in which speed is measured, and its limit."""
_START_S, _AFTER_CHOICE_S = 3.0, 1.5
"""Seconds before the first update and after the last, and the part of them that comes after the choice."""
_UPDATES = 0.92
"""Share of the remaining time that updates get; evaluations, samples and checkpoints get the rest."""
_FIRST_UPDATES = 3
"""Updates of a session that are not timed: they allocate memory, and on a GPU the third one is recorded as a graph."""
_AVERAGED, _AVERAGED_S, _MOST_AVERAGED = 0.02, 2.0, 0.1
"""The time of updates is averaged over about 2 % of the minutes and 2 seconds, but at most 10 % of the minutes."""
_EVALUATION_SLOWER = 1 / 4
"""If updates take s times as long because of other programs, evaluations take about s times s to this power as long.

On two cores, where updates took six times as long, evaluations took 8 to 16 times as long."""


def check_minutes(minutes: float | None, settings: list[str], *, default: float | None = None) -> None:
    """ConfigError for minutes out of range, or given twice."""
    from charlm.config import valid_overrides
    from charlm.config.schema import MINUTES

    if minutes is not None:
        try:
            in_range("minutes", minutes, *MINUTES)
        except ValueError as error:
            raise ConfigError(str(error)) from None
    if minutes is None and default is None:
        return
    if any(path == ("train", "max_minutes") for _, path, _ in valid_overrides(settings)):
        raise ConfigError("train.max_minutes: found beside minutes or its default; allowed: minutes alone")


def leaving_s(loading_s: float) -> float:
    """Estimated time for Python to start, and for the sample and the exit: a quarter of charlm's import time.

    0.22 s measured where importing took 1.5 s; the rest is reserve. At most 1.5 s.
    """
    return min(loading_s / 4, 1.5)


class Budget:
    """How long the parts of a run may take, and how much of its minutes is over.

    Made when the minutes begin, `begun_s` as time.perf_counter() tells it. None: they begin with `begin`. Without
    minutes nothing is ever over. Only the budget writes the times in a TrainState. All processes have the first one's
    clock, so they find the same.
    """

    def __init__(self, minutes: float | None, begun_s: float | None = None) -> None:
        self.run_s = 60 * minutes if minutes else math.inf
        self.begun_s = begun_s
        self.elapsed_s = 0.0
        """Of all sessions, as of the last `tick`."""
        self._starting_s = 0.0  # before the first update
        self._ending_s = 0.0  # expected from the last update to the end
        self._tick_s = 0.0
        self._averaged_s = min(_AVERAGED * self.run_s + _AVERAGED_S, _MOST_AVERAGED * self.run_s)
        self._valid_chars = 0
        self._saving_s = 0.0
        self._evaluation_cost = 0.0  # as EVALUATION_COST; 0 before the first evaluation
        self._updates = -_FIRST_UPDATES
        self._recent_s, self._recent_chars = 0.0, 0.0  # sums that fade
        self._fastest_s = math.inf  # a character at the best speed so far

    # Before the training

    def measuring_s(self) -> float:
        """How long the speed of models may be measured."""
        return min(_MOST_MEASURING_S, _MEASURING * self.run_s)

    def training_s(self) -> float:
        """How long updates may take, of the minutes that are left, where settings are chosen."""
        begun_s = self._begun_s()
        passed_s = 0.0 if begun_s is None else time.perf_counter() - begun_s + _AFTER_CHOICE_S
        starting_s = min(max(_START_S, passed_s), _LONGEST_START * self.run_s)
        return _UPDATES * (self.run_s - starting_s)

    def _begun_s(self) -> float | None:
        """When the minutes began, later by the time that compiling has taken since; None if they have not."""
        from charlm.native.compiler import compiled_s

        return None if self.begun_s is None else self.begun_s + compiled_s(self.begun_s)

    # While it trains

    def begin(self, state: "TrainState", valid_chars: int) -> None:
        """Begin the training, of a run that stands at `state`; say so if starting took most of the minutes."""
        self.elapsed_s, self._starting_s, self._ending_s = state.elapsed_s, state.starting_s, state.ending_s
        self._valid_chars = valid_chars
        self._tick_s = time.perf_counter()
        if (begun_s := self._begun_s()) is None:
            return
        latest_s = self._tick_s - _LONGEST_START * self.run_s
        if begun_s < latest_s:
            share = f"{1 - _LONGEST_START:.0%}"
            say("start", f"starting took most of {self.run_s:.1f} s; training gets {share} of them anyway")
        self._tick_s = max(begun_s, latest_s)

    def tick(self, state: "TrainState", group: "ProcessGroup", signals: list[str]) -> list[str]:
        """Bring the time up to date, in the state too; returns the signals that any process has received."""
        now_s = time.perf_counter()
        self.elapsed_s, signals = group.agree(self.elapsed_s + now_s - self._tick_s, signals)
        self._tick_s = now_s
        if state.step == 0:
            self._starting_s = self.elapsed_s
        state.elapsed_s, state.starting_s, state.ending_s = self.elapsed_s, self._starting_s, self._ending_s
        return signals

    def count_update(self, seconds: float, chars: int) -> None:
        """Take in the time of an update."""
        self._updates += 1
        if self._updates <= 0:
            return
        kept = math.exp(-seconds / self._averaged_s)
        self._recent_s = kept * self._recent_s + seconds
        self._recent_chars = kept * self._recent_chars + chars
        self._fastest_s = min(self._fastest_s, self._recent_s / self._recent_chars)
        self._expect_ending()

    def count_evaluation(self, seconds: float) -> None:
        """Take in the cost of an evaluation: the first in place of the guess, later ones by halves.

        Other load may come or go while an evaluation runs.
        """
        if self._recent_s:
            cost = seconds / self._evaluation_s(1.0)
            self._evaluation_cost = ((self._evaluation_cost or cost) + cost) / 2
            self._expect_ending()

    def count_saving(self, seconds: float) -> None:
        """Take in the time of a checkpoint."""
        self._saving_s = seconds

    # What a run asks

    @property
    def updating_s(self) -> float:
        """Time since the first update."""
        return self.elapsed_s - self._starting_s

    def share_done(self) -> float:
        """Share of the minutes between the first update and the last that has passed; 0 without minutes.

        The last evaluation and checkpoint need time, too.
        """
        left_s = max(self.run_s - self._starting_s, 1e-9)
        return self.updating_s / (left_s - min(self._ending_s, _LONGEST_ENDING * left_s))

    def has_time_to_evaluate(self) -> bool:
        """Whether there is time for an evaluation beside the last one."""
        return self.elapsed_s + 2 * self._ending_s <= self.run_s

    def _evaluation_s(self, cost: float) -> float:
        """Seconds of an evaluation at the present speed, for its cost on a machine without other load."""
        char_s = self._recent_s / self._recent_chars
        return cost * self._valid_chars * char_s * (char_s / self._fastest_s) ** _EVALUATION_SLOWER

    def _expect_ending(self) -> None:
        """Expect the last evaluation at the present speed; a run saves twice after its last update."""
        self._ending_s = self._evaluation_s(self._evaluation_cost or EVALUATION_COST) + 2 * self._saving_s
