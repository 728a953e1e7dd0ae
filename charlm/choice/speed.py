"""How long an update takes on this machine: measured for some models, estimated for the others."""

import itertools
import math
import statistics
import time
from collections.abc import Sequence
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

_LEAST_ON_GPU = 5
"""On a GPU at least so many updates are timed: graphs are recorded during the first ones."""
_WINDOWS = 4
"""Windows of the random text."""
_MOST_VOCABULARY = 2**15
"""Of the random text; all its code points are characters."""


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
