"""The pace of a run with a time limit: how long its end will take, and whether it is slower than planned."""

import math
import shlex
from pathlib import Path

from charlm.config import Config
from charlm.system.clock import EVALUATION_COST, Clock
from charlm.system.console import say
from charlm.training.state import TrainState

_FIRST_UPDATES = 3
"""Updates of a session that are not timed: they allocate memory, and on a GPU the third one is recorded as a graph."""
_WINDOW, _WINDOW_S, _MOST_WINDOW = 0.02, 2.0, 0.1
"""The time of updates is averaged over about 2 % of the minutes and 2 seconds, but at most 10 % of the minutes."""
_WATCHED = 2
"""Windows that a run is watched before a line says that it is slow: other load may soon be over."""
_AFTER_S = 0.15
"""Seconds at the planned speed in which a command writes its sample and exits. The command's clock allows for them, but
not for a slower machine. Beside five busy programs the end took 0.75 s longer, with updates six times slower."""
_EVALUATION_SLOWER = 1 / 4
"""If updates take s times as long because of other programs, evaluations take about s times s to this power as long.

On two cores, where updates took six times as long, evaluations took 8 to 16 times as long."""
_SLOW = 2.0
"""How many times slower than planned a run is from which on a line says so."""


class Pace:
    """What one session of a run has measured. All processes measure the same, because they share the clock."""

    def __init__(self, config: Config, valid_chars: int, run_dir: Path, clock: Clock | None) -> None:
        self.saving_s = 0.0
        """Seconds of the last checkpoint."""
        self._run_s = 60 * (config.train.max_minutes or math.inf)
        self._window_s = min(_WINDOW * self._run_s + _WINDOW_S, _MOST_WINDOW * self._run_s)
        self._valid_chars = valid_chars
        self._run_dir = run_dir
        self._planned_updates = clock.updates if clock else 0
        self._measured_cost = 0.0  # of evaluations; 0 before the first
        self._updates, self._updates_s = -_FIRST_UPDATES, 0.0
        self._recent_s, self._recent_chars, self._recent_updates = 0.0, 0.0, 0.0  # sums that fade
        self._times_slower = 1.0  # than planned, in the last updates; 1 at least
        self._said = False

    def count_update(self, state: TrainState, seconds: float, chars: int) -> None:
        """Take the time of an update into `state.ending_s`, and say so if the run is slow."""
        self._updates += 1
        if self._updates <= 0:
            return
        self._updates_s += seconds
        kept = math.exp(-seconds / self._window_s)
        self._recent_s = kept * self._recent_s + seconds
        self._recent_chars = kept * self._recent_chars + chars
        self._recent_updates = kept * self._recent_updates + 1
        run_s = max(self._run_s - state.starting_s, 1e-9)
        update_s = self._recent_s / self._recent_updates
        self._times_slower = max(self._planned_updates * update_s / run_s, 1.0)
        self._expect_ending(state)
        self._say_if_slow(state, update_s, self._planned_updates * self._updates_s / self._updates / run_s)

    def count_evaluation(self, state: TrainState, seconds: float) -> None:
        """Take the cost of an evaluation into `state.ending_s`: the first in place of the guess, later ones by halves.

        Other load may come or go while an evaluation runs.
        """
        if self._recent_s:
            cost = seconds / self._evaluation_s(1.0)
            self._measured_cost = ((self._measured_cost or cost) + cost) / 2
            self._expect_ending(state)

    def ends_soon(self, state: TrainState) -> bool:
        """Whether there is no time for an evaluation beside the last one."""
        return state.elapsed_s + 2 * state.ending_s > self._run_s

    def _evaluation_s(self, cost: float) -> float:
        """Seconds of an evaluation at the present speed, for its cost on a machine without other load."""
        training_s = self._valid_chars * self._recent_s / self._recent_chars
        return cost * training_s * self._times_slower**_EVALUATION_SLOWER

    def _expect_ending(self, state: TrainState) -> None:
        """Expect the last evaluation at the present speed; a run saves twice after its last update."""
        evaluation_s = self._evaluation_s(self._measured_cost or EVALUATION_COST)
        state.ending_s = evaluation_s + 2 * self.saving_s + _AFTER_S * (self._times_slower - 1)

    def _say_if_slow(self, state: TrainState, update_s: float, mean_times_slower: float) -> None:
        """Say once that the run will make fewer than half of the planned updates; now it makes one in `update_s`.

        mean_times_slower: of all updates so far, than planned; 0 without a plan.
        """
        is_watched = self._updates_s >= _WATCHED * self._window_s
        if self._said or not is_watched or min(mean_times_slower, self._times_slower) <= _SLOW:
            return
        self._said = True
        updates = state.step + max(self._run_s - state.ending_s - state.elapsed_s, 0) / update_s
        say(
            "slow",
            f"{self._times_slower:.1f} times slower than measured: about {updates:,.0f} updates instead of "
            f"{self._planned_updates:,}; look for other programs that use the processors; to train as long again "
            "afterward:",
            f"charlm train --resume --run-dir {shlex.quote(str(self._run_dir))} --minutes {2 * self._run_s / 60:g}",
        )
