"""How long an update takes on this machine: a few models are measured, and a line through them gives the others."""

import statistics
import time
from dataclasses import replace

import numpy as np
import torch

from charlm.choice.rule import Candidate
from charlm.config import Config
from charlm.data.corpus import Corpus
from charlm.data.vocabulary import Ids, Vocabulary
from charlm.errors import DeviceError, is_out_of_memory
from charlm.system.device import free_memory
from charlm.system.process_group import ONE_PROCESS
from charlm.training.machine import Machine
from charlm.training.step import Trainer

Speeds = dict[int, float]
"""Parameters of measured models → seconds of their fastest updates."""

_SLICES, _SLICE_S = 3, 0.05
"""How often a model is measured, and for how long each time. The speed of a shared machine changes within a second."""
_LONGEST_S = 0.3
"""A model with longer updates is not measured, unless it is its family's first."""
_UPDATES = 300
"""A model that would make fewer updates is not measured either."""
_OVERHEAD = 0.2
"""Share of an update's time that does not depend on the parameters, where one model of a family is measured."""
_LEAST_ON_GPU = 5
"""On a GPU at least so many updates are timed: graphs are recorded during the first ones."""
_WINDOWS = 4
"""Windows of the random text."""
_MOST_VOCABULARY = 2**15
"""Of the random text; all its code points are characters."""


def update_s(parameters: int, speeds: Speeds) -> float:
    """Seconds per update of a model: overhead + cost · parameters, on the line through its family's measured models.

    Beyond the largest of these in proportion to the parameters, and below the smallest at least so.
    """
    (low, low_s), (high, high_s) = min(speeds.items()), max(speeds.items())
    if parameters >= high:
        return high_s * parameters / high
    cost_s = (1 - _OVERHEAD) * low_s / low
    if low < high:
        cost_s = max(high_s - low_s, 0.0) / (high - low)
    return max(low_s + cost_s * (parameters - low), low_s * min(parameters / low, 1.0))


def measure_families(
    families: list[list[Candidate]], machine: Machine, vocabulary_size: int, training_s: float, limit_s: float
) -> list[Speeds]:
    """The measured speeds of each family, which is sorted by size; models that do not fit into memory leave it.

    Measures the second model of each family, then the largest that is fast enough for a training of `training_s`, in
    several short slices, one after the other. No measurement starts after `limit_s`, except that of the first family.
    All processes of the group call this together.
    """
    group = machine.group
    slice_s, ends_s = min(_SLICE_S, limit_s / 16 / _SLICES), time.perf_counter() + limit_s
    speeds: list[Speeds] = [{} for _ in families]

    def is_in_time() -> bool:
        return group.on_first(lambda: time.perf_counter() < ends_s)

    def measure_one(at: int, index: int) -> None:
        candidate = families[at][index]
        seconds = measure(candidate.config, machine, vocabulary_size, slice_s)
        if machine.device.type == "cuda":
            free_memory()
        if seconds is None:
            del families[at][index:]  # no larger one fits into memory either
        else:
            known_s = speeds[at].get(candidate.parameters, seconds)
            speeds[at][candidate.parameters] = min(seconds, known_s)

    for at, family in enumerate(families):
        while family and not speeds[at] and (at == 0 or is_in_time()):
            measure_one(at, min(1, len(family) - 1))
    for at, family in enumerate(families):
        while (index := group.on_first(_largest, family, speeds[at], training_s)) is not None and is_in_time():
            measure_one(at, index)
    for _ in range(_SLICES - 1):
        for at, family in enumerate(families):
            for index, candidate in enumerate(family):
                if candidate.parameters in speeds[at] and is_in_time():
                    measure_one(at, index)
    return speeds


def _largest(family: list[Candidate], speeds: Speeds, training_s: float) -> int | None:
    """The index of the largest model that is fast enough to be chosen, as far as one measured model tells; or None."""
    if len(speeds) != 1:
        return None
    for index in reversed(range(len(family))):
        candidate = family[index]
        longest_s = min(_LONGEST_S, training_s / max(_UPDATES, candidate.least_updates))
        is_larger = candidate.parameters > max(speeds)
        if is_larger and update_s(candidate.parameters, speeds) <= longest_s:
            return index
    return None


def measure(config: Config, machine: Machine, vocabulary_size: int, enough_s: float) -> float | None:
    """Seconds of the fastest update on random text, of several processes the median; None if memory is short.

    The fastest, because other load only makes updates slower. Updates are timed for `enough_s`, and at least one. All
    processes of the group call this together.
    """
    group, train = machine.group, config.train
    if group.is_distributed:
        # One that lacks memory would leave the others waiting for its gradients: each tries its share alone before.
        share = train.model_copy(update={"batch_size": train.batch_size // group.size})
        alone = config.model_copy(update={"train": share}), replace(machine, group=ONE_PROCESS)
        if group.sum(measure(*alone, vocabulary_size, 0.0) is None):
            return None
        free_memory()
    vocabulary = Vocabulary.of_code_points(np.arange(min(vocabulary_size, _MOST_VOCABULARY)))
    length = train.batch_size * train.bptt * _WINDOWS + 1
    ids: Ids = np.random.default_rng(1).integers(len(vocabulary), size=length).astype(np.uint32)
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
    is_gpu = trainer.device.type == "cuda"
    while len(times) < (_LEAST_ON_GPU if is_gpu else 1) or (spent_s < enough_s and len(times) < 50):
        start_s = time.perf_counter()
        trainer.update()
        if is_gpu:
            torch.cuda.synchronize(trainer.device)
        spent_s, _ = trainer.group.agree(sum(times), [])  # as after every update of a run
        if trainer.state.step > 1:  # the first one allocates
            times.append(time.perf_counter() - start_s)
    # Of several processes the slowest of the moment decides, and the fastest update is one in which none was slow.
    return statistics.median(times) if trainer.group.is_distributed else min(times)
