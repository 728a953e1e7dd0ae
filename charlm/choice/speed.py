"""How long an update takes on this machine: a few models are measured, and a line through them gives the others."""

import itertools
import math
import time
from dataclasses import replace

import numpy as np

from charlm.choice.rule import Candidate
from charlm.config import Config
from charlm.data.corpus import Corpus
from charlm.errors import DeviceError, is_out_of_memory
from charlm.system.device import free_memory
from charlm.system.process_group import ONE_PROCESS
from charlm.training.machine import Machine
from charlm.training.plan import call_s
from charlm.training.step import Trainer

Speeds = dict[int, float]
"""Parameters of measured models → seconds of an update; infinity where memory was short."""

_SLICES, _SLICE_S = 3, 0.05
"""How often a model is measured, and for how long each time. The speed of a shared machine changes within a second."""
_LONGEST_S, _LEAST_UPDATES = 0.3, 300
"""A model with longer or fewer updates is not measured, unless it is its family's first."""
_OVERHEAD = 0.1
"""Share of an update's time that does not depend on the parameters."""
_LEAST_ON_GPU = 5
"""On a GPU at least so many updates are timed: graphs are recorded during the first ones."""
_WARMUP = 4
"""Updates before those that are timed: the first ones are slower, and are recorded to be repeated."""
_WINDOWS = 32
"""Windows of the text that updates read."""


def update_s(parameters: int, speeds: Speeds) -> float:
    """Seconds per update, on the line between the measured models next in size; beyond them in proportion to size."""
    sizes = sorted(speeds)
    times_s = [speeds[size] for size in sizes]
    if parameters > sizes[-1]:
        return times_s[-1] * parameters / sizes[-1]
    if parameters < sizes[0]:
        return times_s[0] * (_OVERHEAD + (1 - _OVERHEAD) * parameters / sizes[0])
    return float(np.interp(parameters, sizes, times_s))


def measured(
    groups: list[list[Candidate]], corpus: Corpus, machine: Machine, training_s: float, limit_s: float
) -> list[Candidate]:
    """The candidates for which there is memory, with their `update_s`.

    groups: candidates that differ in size only, the smallest first. Measures every second one that is fast enough for a
    training of `training_s`, in several short slices, within `limit_s`. All processes of the group call this together.
    """
    slice_s = min(_SLICE_S, limit_s / 16 / _SLICES)
    ends_s = time.perf_counter() + limit_s
    speeds: list[Speeds] = [{} for _ in groups]

    def is_worth_it(candidate: Candidate, of_group: Speeds) -> bool:
        if time.perf_counter() > ends_s:
            found_s = [seconds for each in speeds for seconds in each.values()]
            return not any(map(math.isfinite, found_s))
        if candidate.parameters in of_group:
            return math.isfinite(of_group[candidate.parameters])
        longest_s = min(_LONGEST_S, training_s / max(_LEAST_UPDATES, candidate.least_updates))
        return not of_group or update_s(candidate.parameters, of_group) <= longest_s

    every_other = [group[1::2] or group for group in groups]
    for sizes in [*itertools.zip_longest(*every_other)] * _SLICES:
        for candidate, of_group in zip(sizes, speeds, strict=True):
            if candidate and machine.group.on_first(is_worth_it, candidate, of_group):
                seconds = measure(candidate.config, corpus, machine, slice_s)
                # Other load only makes updates slower.
                of_group[candidate.parameters] = min(seconds, of_group.get(candidate.parameters, seconds))
                if machine.device.type == "cuda":
                    free_memory()
    timed: list[Candidate] = []
    for group, of_group in zip(groups, speeds, strict=True):
        if of_group:
            timed += [replace(each, update_s=update_s(each.parameters, of_group)) for each in group]
    return [candidate for candidate in timed if math.isfinite(candidate.update_s)]


def measure(config: Config, corpus: Corpus, machine: Machine, enough_s: float) -> float:
    """Median seconds of an update on the start of a text; inf if memory is short. All processes call this together."""
    group, train = machine.group, config.train
    if group.is_distributed:
        # One that lacks memory would leave the others waiting for its gradients: each tries its share alone before.
        share = train.model_copy(update={"batch_size": train.batch_size // group.size})
        alone = config.model_copy(update={"train": share})
        alone_s = measure(alone, corpus, replace(machine, group=ONE_PROCESS), 0.0)
        if any(group.sums([math.isinf(alone_s)])):
            return math.inf
        free_memory()
    ids = corpus.splits["train"][: train.batch_size * train.bptt * _WINDOWS + 1]
    start = replace(corpus, splits={"train": ids}, starts=None)
    try:
        trainer = group.on_each(Trainer, config, start, machine)
        least = _LEAST_ON_GPU if machine.device.type == "cuda" else 1
        return call_s(trainer.update, trainer, enough_s, least=least, warmup=_WARMUP)
    except Exception as error:
        if not group.is_distributed and (isinstance(error, DeviceError) or is_out_of_memory(error)):
            return math.inf
        raise
