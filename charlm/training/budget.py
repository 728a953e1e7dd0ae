"""The minutes of a run, from `--minutes M` to the last checkpoint.

They begin with the command, or when the text of a pipe has been read; with a config they begin with the training.
charlm first measures the speed of models (`measuring_s`), and then chooses one for the time left (`training_s`).
Learning rates follow `share_done`, and the run ends where it is 1, which leaves time for the last evaluation and two
checkpoints. Compiling kernels does not count: it happens once per machine. A resumed run continues the times in its
`TrainState`. Imports no torch, because a command first makes its budget.
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
_MOST = 0.5
"""Largest share of the minutes before the first update, and of the rest after the last one."""
_MEASURING, _MOST_MEASURING_S = 0.08, 5.0
"""Share of the minutes in which speed is measured, and its limit."""
_START_S, _AFTER_CHOICE_S = 3.0, 1.5
"""Seconds before the first update and after the last, and the part of them that comes after the choice."""
_UPDATES = 0.92
"""Share of the remaining time that updates get; evaluations, samples and checkpoints get the rest."""
_FIRST_UPDATES = 3
"""Updates of a session that are not timed: they allocate memory, and on a GPU the third one is recorded as a graph."""
_AVERAGED = 0.05
"""The time of updates is averaged over this share of the minutes."""


def check_minutes(minutes: float | None, settings: list[str], *, default: float | None = None) -> None:
    """ConfigError for minutes out of range, or given twice."""
    from charlm.config import valid_overrides
    from charlm.config.schema import MINUTES

    if minutes is not None:
        try:
            in_range("minutes", minutes, *MINUTES)
        except ValueError as error:
            raise ConfigError(str(error)) from None
    is_given_twice = any(path == ("train", "max_minutes") for _, path, _ in valid_overrides(settings))
    if is_given_twice and (minutes or default):
        raise ConfigError("train.max_minutes: found beside minutes or its default; allowed: minutes alone")


def leaving_s(loading_s: float) -> float:
    """Estimated time for Python to start, and for the sample and the exit: 0.22 s where importing charlm took 1.5 s."""
    return min(loading_s / 4, 1.5)


class Budget:
    """How long the parts of a run may take, and the share of its minutes that is over; without minutes always 0.

    begun_s: when the minutes began, by time.perf_counter(); None: they begin with `begin`. Only the budget writes the
    times in a TrainState. All processes take the first one's clock, so their budgets agree.
    """

    def __init__(self, minutes: float | None, begun_s: float | None = None) -> None:
        self.run_s = 60 * minutes if minutes else math.inf
        self.begun_s = begun_s
        self.elapsed_s = 0.0
        """Of all sessions, as of the last `tick`."""
        self._starting_s = 0.0  # before the first update
        self._ending_s = 0.0  # expected from the last update to the end
        self._tick_s = 0.0
        self._valid_chars = 0
        self._saving_s = 0.0
        self._evaluation_cost = 0.0  # as EVALUATION_COST; 0 before the first evaluation
        self._updates = -_FIRST_UPDATES
        self._recent_s, self._recent_chars = 0.0, 0.0  # sums that fade

    # Before the training

    def measuring_s(self) -> float:
        """How long the speed of models may be measured."""
        return min(_MOST_MEASURING_S, _MEASURING * self.run_s)

    def training_s(self) -> float:
        """How long updates may take, of the minutes that are left, as expected before the training."""
        begun_s = self._begun_s()
        passed_s = 0.0 if begun_s is None else time.perf_counter() - begun_s + _AFTER_CHOICE_S
        return _UPDATES * (self.run_s - min(max(_START_S, passed_s), _MOST * self.run_s))

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
        latest_s = self._tick_s - _MOST * self.run_s
        if begun_s < latest_s:
            say("start", f"starting took most of {self.run_s:.1f} s; training gets {1 - _MOST:.0%} of them anyway")
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
        self._updates += 1
        if self._updates > 0:
            kept = math.exp(-seconds / (_AVERAGED * self.run_s))
            self._recent_s = kept * self._recent_s + seconds
            self._recent_chars = kept * self._recent_chars + chars
            self._expect_ending()

    def count_evaluation(self, seconds: float) -> None:
        """The first evaluation's cost replaces the guess; later ones count by halves."""
        if self._recent_s:
            cost = seconds / self._evaluation_s(1.0)
            self._evaluation_cost = ((self._evaluation_cost or cost) + cost) / 2
            self._expect_ending()

    def count_saving(self, seconds: float) -> None:
        self._saving_s = seconds

    @property
    def updating_s(self) -> float:
        """Time since the first update."""
        return self.elapsed_s - self._starting_s

    def share_done(self) -> float:
        """Share of the minutes between the first update and the last that has passed; 0 without minutes."""
        left_s = max(self.run_s - self._starting_s, 1e-9)
        return self.updating_s / (left_s - min(self._ending_s, _MOST * left_s))

    def has_time_to_evaluate(self) -> bool:
        """Whether there is time for an evaluation beside the last one."""
        return self.elapsed_s + 2 * self._ending_s <= self.run_s

    def _evaluation_s(self, cost: float) -> float:
        """Seconds of an evaluation at the present speed."""
        return cost * self._valid_chars * self._recent_s / self._recent_chars

    def _expect_ending(self) -> None:
        """Expect the last evaluation at the present speed; a run saves twice after its last update."""
        self._ending_s = self._evaluation_s(self._evaluation_cost or EVALUATION_COST) + 2 * self._saving_s
