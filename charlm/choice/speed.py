"""How long an update takes on this machine: measured for some sizes, kept in the cache, and interpolated."""

import contextlib
import functools
import gc
import hashlib
import itertools
import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from charlm import __version__
from charlm.cells.stored import as_json
from charlm.choice.families import Candidate
from charlm.config import Config, is_in_file
from charlm.data.corpus import Corpus, Ids
from charlm.data.vocabulary import Vocabulary
from charlm.errors import CharlmError, DataError, DeviceError, is_out_of_memory
from charlm.layers import RecurrentLayers
from charlm.system.cache import cache_folder, make_cache_folder, open_private
from charlm.system.console import say
from charlm.system.cpu import describe_cpu
from charlm.system.device import free_memory
from charlm.system.files import replace_file
from charlm.system.process_group import ONE_PROCESS, ProcessGroup
from charlm.training.processes import choose_device
from charlm.training.step import Trainer

_ENOUGH_S = 0.15
"""Updates of a size are timed for this long, or an eighth of the budget; at least one is."""
_ROUNDS = 2
"""How often a size is measured, if there is time: other load may have slowed the first measurement."""
_OUTDATED = 0.85
"""Seconds now, relative to those in the cache, from which on something slowed the machine when those were measured."""
_LEAST_ON_GPU = 5
"""On a GPU at least so many updates are timed: graphs are recorded during the first ones."""
_WINDOWS = 4
"""Windows of the random text."""
_MOST_VOCABULARY = 15
"""Power of two of the largest vocabulary that is measured; all its code points are characters."""
_LONGEST_S = 0.3
"""A size whose updates are expected to take longer is not measured, unless it is its family's first."""


@dataclass
class Speedometer:
    """Seconds per update of the candidates of some families, for texts with vocabularies of about this size.

    A family's candidates differ in size only, the smallest first. What the cache knows is read at once, and one size of
    each family is measured: of the first in any case, of the others while there is time. `improve` measures more, and
    `renew` what the cache knows.
    """

    families: Sequence[Sequence[Candidate]]
    device: torch.device
    vocabulary_size: int
    budget_s: float
    """Measure nothing after this time."""
    group: ProcessGroup = ONE_PROCESS
    """Its processes share the batch and measure together: this is the first one, the others are in `help_first`."""

    def __post_init__(self) -> None:
        self._end_s = time.perf_counter() + self.budget_s
        # Rounded up to a power of two, so that similar texts share what was measured.
        self.vocabulary_size = 2 ** min(max(6, math.ceil(math.log2(self.vocabulary_size))), _MOST_VOCABULARY)
        self._points: list[dict[int, float]] = [{} for _ in self.families]  # size → seconds, of each family
        self._rounds: dict[tuple[int, int], int] = {}  # how often a size was measured; without what the cache knows
        self._fitting = [len(family) for family in self.families]  # sizes that may fit into memory
        for at, family in enumerate(self.families):
            for index in range(len(family)):
                if (seconds := self._store(at, index).read()) is not None:
                    self._points[at][index] = seconds
        for at, family in enumerate(self.families):
            for index in dict.fromkeys((min(1, len(family) - 1), 0)):  # the smallest if the other does not fit
                if not self._points[at] and (not at or time.perf_counter() < self._end_s):
                    self._measure(at, index)

    def update_s(self) -> list[list[float]]:
        """Seconds per update of each candidate, by interpolation between those that were measured.

        Without the sizes that did not fit into memory; empty for a family for which no time was left.
        """
        return [
            _interpolated(family, points)[:fitting] if points else []
            for family, points, fitting in zip(self.families, self._points, self._fitting, strict=True)
        ]

    def rounds(self, at: int, index: int) -> int:
        """How often a size of a family was measured itself; `_ROUNDS` if another measurement is not worth its time."""
        return self._rounds.get((at, index), _ROUNDS if index in self._points[at] else 0)

    def improve(self, at: int, index: int) -> bool:
        """Measure a size of a family, or the largest that is fast enough; False if that is not worth it.

        It was measured often enough, does not fit into memory, or no time is left.
        """
        times = _interpolated(self.families[at], self._points[at])
        while index > 0 and times[index] > _LONGEST_S:
            index -= 1
        if self.rounds(at, index) == _ROUNDS or index >= self._fitting[at] or time.perf_counter() > self._end_s:
            return False
        self._measure(at, index)
        return True

    def renew(self, at: int, index: int) -> bool:
        """Measure a size that only the cache knows; whether it no longer fits into memory, or is now much faster.

        If it is faster, the cache forgets the others, which count as faster in proportion until they are measured.
        """
        if (at, index) in self._rounds or index not in self._points[at] or time.perf_counter() > self._end_s:
            return False
        before_s = self._points[at][index]
        self._measure(at, index)
        if index >= self._fitting[at]:
            return True
        share = self._points[at][index] / before_s
        if share > _OUTDATED:
            return False
        for other, points in enumerate(self._points):
            for size in points:
                if (other, size) not in self._rounds:
                    points[size] *= share
                    self._rounds[other, size] = 0
                    self._store(other, size).forget()
        return True

    def _measure(self, at: int, index: int) -> None:
        """Measure a size, and keep its seconds, or that there is not enough memory."""
        # So that free_memory looks only at what was measured, which saves a tenth of a second. What the caller of
        # `charlm.train` has frozen stays so.
        if freezes := not gc.get_freeze_count():
            gc.freeze()
        try:
            config, enough_s = self.families[at][index].config, min(_ENOUGH_S, self.budget_s / 8)
            size = self.group.on_first(Size, config, self.vocabulary_size, enough_s)
            seconds = size.measured(self.group)
            free_memory()
        finally:
            if freezes:
                gc.unfreeze()
        if seconds is None:
            self._fitting[at] = min(self._fitting[at], index)
        else:
            if self.rounds(at, index):
                seconds = min(seconds, self._points[at][index])
            self._rounds[at, index] = self._rounds.get((at, index), 0) + 1
            self._points[at][index] = seconds
            self._store(at, index).write(seconds)

    def _store(self, at: int, index: int) -> "_Store":
        return _Store(self.families[at][index].config, self.device, self.vocabulary_size, self.group)


class Size(NamedTuple):
    """What the first process asks all to measure."""

    config: Config
    vocabulary_size: int
    enough_s: float

    def measured(self, group: ProcessGroup) -> float | None:
        """`measure` on the device of this process."""
        return measure(self.config, choose_device(self.config, group), self.vocabulary_size, self.enough_s, group)


def help_first(group: ProcessGroup) -> Any:
    """Measure with the first process whatever it measures, until it returns something else; then return that too."""
    while isinstance(found := group.on_first(lambda: None), Size):
        with contextlib.suppress(CharlmError):  # all have it, and the first one says what comes of it
            found.measured(group)
        free_memory()
    return found


def measure(
    config: Config, device: torch.device, vocabulary_size: int, enough_s: float, group: ProcessGroup = ONE_PROCESS
) -> float | None:
    """Seconds of the fastest update on random text, of several processes the median; None if memory is short.

    The fastest, because other load only makes updates slower. All processes of the group call this together.
    """
    if group.is_distributed:
        train = config.train.model_copy(update={"batch_size": config.train.batch_size // group.size})
        threads = group.threads(config.threads)
        part = config.model_copy(update={"train": train, "threads": threads})
        # One that lacks memory would leave the others waiting for its gradients: each tries its part alone before.
        if group.sum(measure(part, device, vocabulary_size, 0.0) is None):
            return None
        free_memory()
    vocabulary = Vocabulary.of_code_points(np.arange(vocabulary_size))
    length = config.train.batch_size * config.train.bptt * _WINDOWS + 1
    ids: Ids = np.random.default_rng(1).integers(vocabulary_size, size=length).astype(np.uint32)
    corpus = Corpus(vocabulary, {"train": ids}, sha256="", size_bytes=len(ids), files=1)
    try:
        return _fastest_s(group.on_each(Trainer, config, corpus, device, group), enough_s)
    except Exception as error:
        if not group.is_distributed and (isinstance(error, DeviceError) or is_out_of_memory(error)):
            return None
        raise


def _fastest_s(trainer: Trainer, enough_s: float) -> float:
    times: list[float] = []
    spent_s = 0.0
    least = _LEAST_ON_GPU if trainer.device.type == "cuda" else 1
    while len(times) < least or (spent_s < enough_s and len(times) < 50):
        start_s = time.perf_counter()
        trainer.update()
        if trainer.device.type == "cuda":
            torch.cuda.synchronize()
        spent_s, _ = trainer.group.agree(sum(times), [])  # as after every update of a run
        if trainer.state.step > 1:  # the first one allocates
            times.append(time.perf_counter() - start_s)
    # Of several processes the slowest of the moment decides, and the fastest update is one in which none was slow.
    return statistics.median(times) if trainer.group.is_distributed else min(times)


def _interpolated(family: Sequence[Candidate], points: dict[int, float]) -> list[float]:
    """Seconds of all candidates: a power of the parameters between two points, in proportion to them beyond."""
    measured = sorted((family[index].parameters, seconds) for index, seconds in points.items())
    pairs = list(itertools.pairwise(measured)) or [(measured[0], measured[0])]

    def seconds(parameters: int) -> float:
        (low, low_s), (high, high_s) = next((pair for pair in pairs if parameters <= pair[1][0]), pairs[-1])
        power = math.log(high_s / low_s) / math.log(high / low) if high > low else 0.8
        power = min(max(power, 0.2), 1.2)
        return high_s * (parameters / high) ** (power if parameters <= high else max(power, 1.0))

    return [points.get(index, seconds(candidate.parameters)) for index, candidate in enumerate(family)]


class _Store:
    """The file of the cache for a candidate: one of each machine, device, version, precision and size."""

    def __init__(self, config: Config, device: torch.device, vocabulary_size: int, group: ProcessGroup) -> None:
        cell, program = config.model.cell, ""
        if is_in_file(cell.kind):  # its step may change, and depend on H
            program = as_json(cell)
        else:
            cell = cell.model_copy(update={"hidden": 1})
        layers = RecurrentLayers(cell, 1).to(device)
        backend = layers.select_backend(device, resets=config.data.unit == "line").description
        threads = config.threads or torch.get_num_threads()
        parts = [__version__, torch.__version__, _machine(device), threads, group.size, group.local_size, backend]
        train = config.train
        size = [config.precision, train.batch_size, train.bptt, train.ema > 0, config.optimizer.name, vocabulary_size]
        text = json.dumps([*parts, *size, config.model.model_dump(mode="json"), *([program] if program else [])])
        self._name = f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"

    def read(self) -> float | None:
        """The seconds that were measured before; None if there are none, or if the file is damaged."""
        with contextlib.suppress(OSError, ValueError, DataError):
            with open_private(cache_folder(_FOLDER) / self._name) as file:
                text = file.read(_MOST_BYTES).decode()
            seconds = float(text.partition(" ")[0])
            return seconds if text == self._text(seconds) and _LEAST_S < seconds < _MOST_S else None
        return None

    def _text(self, seconds: float) -> str:
        """What the file holds: the seconds, and a checksum of them and the file's name."""
        return f"{seconds!r} {hashlib.sha256(f'{self._name} {seconds!r}'.encode()).hexdigest()}"

    def write(self, seconds: float) -> None:
        """Keep the seconds; a cache that cannot be written only costs time."""
        try:
            replace_file(make_cache_folder(_FOLDER) / self._name, self._text(seconds).encode(), 0o600)
        except (OSError, DataError) as error:
            _say_once(f"speed cannot be kept ({error})")

    def forget(self) -> None:
        """Remove the seconds, if that is possible."""
        with contextlib.suppress(OSError, DataError):
            (cache_folder(_FOLDER) / self._name).unlink(missing_ok=True)


@functools.cache
def _machine(device: torch.device) -> str:
    return describe_cpu() if device.type == "cpu" else torch.cuda.get_device_name(device)


@functools.cache
def _say_once(line: str) -> None:
    say("cache", line)


_FOLDER = "speed"
_MOST_BYTES = 200
_LEAST_S, _MOST_S = 1e-6, 3600.0
"""An update that took less or more was measured by a clock that was changed, or by nobody."""
