"""The minutes of a run, and how they are spent. Imports no torch: a command makes its budget before all else."""

import math
import time
from typing import TYPE_CHECKING

from charlm.system.clock import compiled_s
from charlm.system.console import say

if TYPE_CHECKING:
    from charlm.system.process_group import ProcessGroup
    from charlm.training.state import TrainState

EVALUATION_COST = 0.22
"""Time to evaluate a character, relative to training on it: 0.20 to 0.23 measured, until a run measures its own."""
_LONGEST_START = 0.5
"""Largest share of the minutes that starting may take, so that the run learns something."""
_LONGEST_ENDING = 0.5
"""Largest share of the minutes, from the first update on, that the last evaluation and checkpoint get."""
_START_S, _AFTER_CHOICE_S = 3.0, 1.5
"""Seconds before the first update and after the last, and the part of them that comes after the choice."""
_UPDATES = 0.92
"""Share of the remaining time that updates get; evaluations, samples and checkpoints get the rest."""
_FIRST_UPDATES = 3
"""Updates of a session that are not timed: they allocate memory, and on a GPU the third one is recorded as a graph."""
_WINDOW, _WINDOW_S, _MOST_WINDOW = 0.02, 2.0, 0.1
"""The time of updates is averaged over about 2 % of the minutes and 2 seconds, but at most 10 % of the minutes."""
_EVALUATION_SLOWER = 1 / 4
"""If updates take s times as long because of other programs, evaluations take about s times s to this power as long.

On two cores, where updates took six times as long, evaluations took 8 to 16 times as long."""


class Budget:
    """The minutes of a run: how long its parts may take, and how much of them is over.

    Made when the minutes begin, `begun_s` as time.perf_counter() tells it. None: they begin with `begin`. Compiling is
    excluded. Without minutes nothing is ever over. Later sessions of a run go on where the last one has ended; what
    they need of it is in the TrainState, to which only the budget writes times. All processes have the first one's
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
        self._window_s = min(_WINDOW * self.run_s + _WINDOW_S, _MOST_WINDOW * self.run_s)
        self._valid_chars = 0
        self._saving_s = 0.0
        self._evaluation_cost = 0.0  # as EVALUATION_COST; 0 before the first evaluation
        self._updates = -_FIRST_UPDATES
        self._recent_s, self._recent_chars = 0.0, 0.0  # sums that fade
        self._fastest_s = math.inf  # a character at the best speed so far

    # Before the training

    def ends_s(self) -> float | None:
        """When the minutes are over, as time.perf_counter() tells it; None if they have not begun, or never are."""
        if self.begun_s is None or self.run_s == math.inf:
            return None
        return self.begun_s + compiled_s(self.begun_s) + self.run_s

    def training_s(self) -> float:
        """How long updates may take, of the minutes that are left, where settings are chosen."""
        ends_s = self.ends_s()
        passed_s = 0.0 if ends_s is None else self.run_s - (ends_s - time.perf_counter()) + _AFTER_CHOICE_S
        starting_s = min(max(_START_S, passed_s), _LONGEST_START * self.run_s)
        return _UPDATES * (self.run_s - starting_s)

    # While it trains

    def begin(self, state: "TrainState", valid_chars: int) -> None:
        """Begin the training, of a run that stands at `state`; say so if starting took most of the minutes."""
        self.elapsed_s, self._starting_s, self._ending_s = state.elapsed_s, state.starting_s, state.ending_s
        self._valid_chars = valid_chars
        self._tick_s = time.perf_counter()
        if self.begun_s is None:
            return
        latest_s = self._tick_s - _LONGEST_START * self.run_s
        begun_s = self.begun_s + compiled_s(self.begun_s)
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
        kept = math.exp(-seconds / self._window_s)
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
