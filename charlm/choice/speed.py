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
from charlm.system.device import free_memory
from charlm.system.files import replace_file
from charlm.system.host import describe_cpu
from charlm.system.process_group import ONE_PROCESS
from charlm.training.machine import Machine
from charlm.training.step import Trainer

_ENOUGH_S = 0.15
"""Updates of a model are timed for this long at most; at least one is."""
_LEAST_ON_GPU = 5
"""On a GPU at least so many updates are timed: graphs are recorded during the first ones."""
_WINDOWS = 4
"""Windows of the random text."""
_MOST_VOCABULARY = 15
"""Power of two of the largest vocabulary that is measured; all its code points are characters."""
_OUTDATED_S = 86_400
"""Figures of the cache count for a day: other programs may have slowed the measurement."""


def update_seconds(config: Config, machine: Machine, vocabulary_size: int, enough_s: float) -> float | None:
    """Seconds per update: from the cache, else measured for `enough_s`; None if it does not fit into memory.

    All processes of the machine's group call this together.
    """
    # Rounded up to a power of two, so that similar texts share what was measured.
    vocabulary_size = 2 ** min(max(6, math.ceil(math.log2(vocabulary_size))), _MOST_VOCABULARY)
    name = _cache_name(config, machine, vocabulary_size)
    seconds = machine.group.on_first(_read, name)
    if seconds is None:
        seconds = measure(config, machine, vocabulary_size, min(_ENOUGH_S, enough_s))
        if machine.device.type == "cuda":
            free_memory()
        if seconds is not None:
            machine.group.on_first(_write, name, seconds)
    return seconds


def _cache_name(config: Config, machine: Machine, vocabulary_size: int) -> str:
    """One file for each machine, version and config."""
    cell, train = config.model.cell, config.train
    key = [
        *(__version__, torch.__version__, machine.threads, machine.group.size, machine.group.local_size),
        describe_cpu() if machine.device.type == "cpu" else torch.cuda.get_device_name(machine.device),
        *(machine.has_kernels, machine.precision, vocabulary_size),
        *(train.batch_size, train.bptt, train.ema > 0, config.optimizer.name, config.data.unit),
        config.model.model_dump(mode="json"),
        as_json(cell) if is_in_file(cell.kind) else "",  # the file may change
    ]
    return f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]}.json"


def _read(name: str) -> float | None:
    """Seconds of the cache; None if there are none, or the file is damaged or outdated."""
    with contextlib.suppress(OSError, ValueError, DataError), open_private(cache_folder("speed") / name) as file:
        seconds, age_s = float(file.read(100)), time.time() - os.fstat(file.fileno()).st_mtime
        return seconds if age_s < _OUTDATED_S and 1e-6 < seconds < 3600 else None
    return None


def _write(name: str, seconds: float) -> None:
    """Keep the seconds; a cache that cannot be written only costs time."""
    try:
        replace_file(make_cache_folder("speed") / name, repr(seconds).encode(), 0o600)
    except (OSError, DataError) as error:
        say("cache", f"speed cannot be kept ({error})")


def estimates(family: Sequence[Candidate]) -> list[float]:
    """Seconds per update of the candidates of a family, which is sorted by size; empty if none is measured.

    Between two measured ones a power of the parameters, beyond them in proportion to the parameters.
    """
    measured = [(each.parameters, each.measured_s) for each in family if each.measured_s]
    pairs = list(itertools.pairwise(measured)) or [(each, each) for each in measured]

    def estimate(parameters: int) -> float:
        (low, low_s), (high, high_s) = next((pair for pair in pairs if parameters <= pair[1][0]), pairs[-1])
        power = math.log(high_s / low_s) / math.log(high / low) if high > low else 0.8
        power = min(max(power, 0.2), 1.2)
        return high_s * (parameters / high) ** (power if parameters <= high else max(power, 1.0))

    return [each.measured_s or estimate(each.parameters) for each in family] if measured else []


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
