"""How long an update takes on this machine: measured for some models, kept in the cache, estimated for the others."""

import contextlib
import hashlib
import itertools
import json
import math
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from charlm import __version__
from charlm.cells.stored import as_json
from charlm.choice.rule import Candidate
from charlm.config import Config, is_in_file
from charlm.data.corpus import Corpus, Ids
from charlm.data.vocabulary import Vocabulary
from charlm.errors import DataError, DeviceError, is_out_of_memory
from charlm.system.cache import cache_folder, make_cache_folder, open_private
from charlm.system.console import say
from charlm.system.cpu import describe_cpu
from charlm.system.device import free_memory
from charlm.system.files import replace_file
from charlm.system.process_group import ONE_PROCESS
from charlm.training.machine import Machine
from charlm.training.step import Trainer

_ENOUGH_S = 0.15
"""Updates of a model are timed for this long, or an eighth of the budget; at least one is."""
_LEAST_ON_GPU = 5
"""On a GPU at least so many updates are timed: graphs are recorded during the first ones."""
_WINDOWS = 4
"""Windows of the random text."""
_MOST_VOCABULARY = 15
"""Power of two of the largest vocabulary that is measured; all its code points are characters."""
_LONGEST_S = 0.3
"""A model whose updates are expected to take longer is not measured, unless it is its family's first."""
_OUTDATED_S = 86_400
"""Figures of the cache count for a day: other programs may have slowed the measurement."""


class Speeds:
    """Seconds per update of the candidates of some families, each sorted by size.

    The first process of a group decides with it what is measured; all measure together.
    """

    def __init__(
        self, families: Sequence[Sequence[Candidate]], machine: Machine, vocabulary_size: int, budget_s: float
    ) -> None:
        """`budget_s`: no measurement starts after this time, except the first one of the first family."""
        self.families, self.machine = families, machine
        # Rounded up to a power of two, so that similar texts share what was measured.
        self._vocabulary_size = 2 ** min(max(6, math.ceil(math.log2(vocabulary_size))), _MOST_VOCABULARY)
        self._enough_s = min(_ENOUGH_S, budget_s / 8)
        self._ends_s = time.perf_counter() + budget_s
        self._fitting = [len(family) for family in families]  # candidates that may fit into memory
        self._known: list[dict[int, float]] = []  # for each family: index of a candidate → seconds
        for family in families:
            cached = ((index, _read(self._cache_name(candidate))) for index, candidate in enumerate(family))
            self._known.append({index: seconds for index, seconds in cached if seconds})

    def estimates(self, at: int) -> list[float]:
        """Seconds of the candidates of a family that may fit into memory; empty if none is known."""
        return _interpolated(self.families[at], self._known[at])[: self._fitting[at]] if self._known[at] else []

    def to_measure(self, at: int, index: int) -> tuple[int, int] | None:
        """The candidate, or else its family's largest that is fast enough; None if it is known or no time is left.

        If nothing of the family is known, its second candidate, or the first if the second does not fit into memory.
        """
        if not self._known[at]:
            index = min(1, self._fitting[at] - 1)
            is_in_time = at == 0 or time.perf_counter() < self._ends_s
            return (at, index) if index >= 0 and is_in_time else None
        estimates = self.estimates(at)
        while index > 0 and estimates[index] > _LONGEST_S:
            index -= 1
        return None if index in self._known[at] or time.perf_counter() > self._ends_s else (at, index)

    def measure(self, at: int, index: int) -> None:
        """Measure a candidate, and keep its seconds, or that it does not fit into memory."""
        candidate = self.families[at][index]
        seconds = measure(candidate.config, self.machine, self._vocabulary_size, self._enough_s)
        if self.machine.device.type == "cuda":
            free_memory()
        if seconds is None:
            self._fitting[at] = min(self._fitting[at], index)
        else:
            self._known[at][index] = seconds
            self.machine.group.on_first(_write, self._cache_name(candidate), seconds)

    def _cache_name(self, candidate: Candidate) -> str:
        """The file for a candidate: one for each machine, version and config."""
        machine, config = self.machine, candidate.config
        on_cpu, cell, train = machine.device.type == "cpu", config.model.cell, config.train
        parts = [
            *(__version__, torch.__version__, machine.threads, machine.group.size, machine.group.local_size),
            describe_cpu() if on_cpu else torch.cuda.get_device_name(machine.device),
            *(machine.has_kernels, machine.precision, self._vocabulary_size),
            *(train.batch_size, train.bptt, train.ema > 0, config.optimizer.name, config.data.unit),
            config.model.model_dump(mode="json"),
            as_json(cell) if is_in_file(cell.kind) else "",  # the file may change
        ]
        return f"{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]}.json"


def _read(name: str) -> float | None:
    """Seconds of the cache; None if there are none, or the file is damaged or outdated."""
    with contextlib.suppress(OSError, ValueError, DataError), open_private(cache_folder(_FOLDER) / name) as file:
        seconds = float(file.read(_MOST_BYTES))
        is_new = time.time() - os.fstat(file.fileno()).st_mtime < _OUTDATED_S
        return seconds if is_new and 1e-6 < seconds < 3600 else None
    return None


def _write(name: str, seconds: float) -> None:
    """Keep the seconds; a cache that cannot be written only costs time."""
    try:
        replace_file(make_cache_folder(_FOLDER) / name, repr(seconds).encode(), 0o600)
    except (OSError, DataError) as error:
        say("cache", f"speed cannot be kept ({error})")


_FOLDER = "speed"
_MOST_BYTES = 100


def _interpolated(family: Sequence[Candidate], known: dict[int, float]) -> list[float]:
    """Seconds of all candidates: a power of the parameters between two known ones, in proportion to them beyond."""
    measured = sorted((family[index].parameters, seconds) for index, seconds in known.items())
    pairs = list(itertools.pairwise(measured)) or [(measured[0], measured[0])]

    def estimate(parameters: int) -> float:
        (low, low_s), (high, high_s) = next((pair for pair in pairs if parameters <= pair[1][0]), pairs[-1])
        power = math.log(high_s / low_s) / math.log(high / low) if high > low else 0.8
        power = min(max(power, 0.2), 1.2)
        return high_s * (parameters / high) ** (power if parameters <= high else max(power, 1.0))

    return [known.get(index, estimate(candidate.parameters)) for index, candidate in enumerate(family)]


def measure(config: Config, machine: Machine, vocabulary_size: int, enough_s: float) -> float | None:
    """Seconds of the fastest update on random text, of several processes the median; None if memory is short.

    The fastest, because other load only makes updates slower. All processes of the group call this together.
    """
    group = machine.group
    if group.is_distributed:
        # One that lacks memory would leave the others waiting for its gradients: each tries its part alone before.
        train = config.train.model_copy(update={"batch_size": config.train.batch_size // group.size})
        part, alone = config.model_copy(update={"train": train}), replace(machine, group=ONE_PROCESS)
        if group.sum(measure(part, alone, vocabulary_size, 0.0) is None):
            return None
        free_memory()
    vocabulary = Vocabulary.of_code_points(np.arange(vocabulary_size))
    length = config.train.batch_size * config.train.bptt * _WINDOWS + 1
    ids: Ids = np.random.default_rng(1).integers(vocabulary_size, size=length).astype(np.uint32)
    corpus = Corpus(vocabulary, {"train": ids}, sha256="", size_bytes=len(ids), files=1)
    try:
        return _fastest_s(group.on_each(Trainer, config, corpus, machine), enough_s)
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
