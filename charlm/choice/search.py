"""The candidates for a text and a machine, the training that each would get, and which is best."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

from charlm.choice.families import Family, Request
from charlm.choice.rule import MOST_EPOCHS, Candidate, relative_nats
from charlm.config import Config
from charlm.data.corpus import Corpus
from charlm.errors import ConfigError, DeviceError
from charlm.model import count_parameters
from charlm.training.machine import Machine, least_bytes

Split = Callable[[int], tuple[int, int]]
"""Characters for training and validation in a run that reads so many."""

_MOST_PER_CHAR = 80
"""Parameters per character of the text at most."""
_TIE_NATS = 0.005
"""Much less than the rule's error. Smaller differences are no reason to prefer a model."""
_MEASURED_PARAMETERS = 2_000_000
"""Larger models do not win a tie for their size. Of these, only two layers of 384 units are in the rule's fit."""
_MEMBER_PASSES, _MOST_MEMBERS = 25.0, 4
"""Passes over the text after which the time goes to one more member, and how many there are at most."""
_MEMORY = 0.5
"""Share of the free memory that the lower bound of what a run needs may take."""


def candidates_by_family(
    request: Request, families: list[Family], corpus: Corpus, machine: Machine
) -> list[list[Candidate]]:
    """Models that fit into memory, by family and batch, the smallest first.

    ConfigError if the user's options fit none.
    """
    size, chars, vocabulary_size = machine.group.size, len(corpus.splits["train"]), len(corpus.vocabulary)
    bptt = 64 if chars >= 5_000 else 16
    batches = dict.fromkeys(-(-batch // size) * size for batch in _batches(request, chars, machine))
    by_family: list[list[Candidate]] = []
    faults: list[ConfigError] = []
    for family, batch_size in itertools.product(families, batches):
        sizes: list[Candidate] = []
        for hidden in family.hidden:
            settings = request.settings(family, hidden, batch_size, bptt)
            try:
                config = request.config(settings)
            except ConfigError as error:
                faults.append(error)
                break
            if sizes and config == sizes[-1].config:  # the user's options leave no choice
                continue
            if not fits_into_memory(config, vocabulary_size, machine):
                break
            parameters = count_parameters(config.model, vocabulary_size) // config.model.members
            sizes.append(Candidate(family, settings, config, parameters))
        smallest = [others[0].config for others in by_family]
        if sizes and sizes[0].config not in smallest:  # they are the same if the user gives kind, layers or batch
            by_family.append(sizes)
    if not by_family:
        fault = DeviceError(f"memory: no model fits into what is free ({machine.device.type})")
        raise faults[0] if faults else fault
    return by_family


def fits_into_memory(config: Config, vocabulary_size: int, machine: Machine) -> bool:
    """Whether the lower bound of what a run needs leaves enough of the free memory to what it does not count."""
    return least_bytes(config, vocabulary_size, machine) <= _MEMORY * (machine.free_bytes or math.inf)


def _batches(request: Request, chars: int, machine: Machine) -> list[int]:
    """Streams: few learn the most per character, many read more characters per second."""
    if chars < 5_000:
        return [4]
    is_large = chars > 100_000
    if machine.device.type != "cpu":
        return [64, 256] if is_large else [16, 64]
    return [16, 64] if is_large and (request.minutes >= 20 or machine.threads > 4) else [16]


def with_training(candidate: Candidate, update_s: float, seconds: float, split: Split) -> Candidate:
    """The candidate with the updates that it makes in so many seconds, and what of the text it learns from."""
    train, chars = candidate.config.train, candidate.chars_per_update
    updates = max(1, int(seconds / update_s))
    train_chars = max(split(updates * chars)[0], 1)
    passes = min(train.max_epochs or MOST_EPOCHS, MOST_EPOCHS)
    updates = min(updates, train.max_steps or updates, int(passes * train_chars / chars) + 1)
    valid_chars = split(updates * chars)[1]
    return replace(candidate, update_s=update_s, updates=updates, train_chars=train_chars, valid_chars=valid_chars)


def with_members(
    candidate: Candidate, request: Request, seconds: float, split: Split, fits: Callable[[Config], bool]
) -> Candidate:
    """The candidate, with several members in the time in which one would make more passes than teach it anything.

    fits: whether there is memory for a config. The user's number of members stays, and limits other than the time are
    those of one member.
    """
    train = candidate.config.train
    passes = seconds / candidate.update_s * candidate.chars_per_update / candidate.train_chars
    most = min(int(passes / _MEMBER_PASSES), _MOST_MEMBERS)
    if train.max_steps or train.max_epochs or request.initial or request.gives("model.members"):
        return candidate
    for members in range(most, 1, -1):
        settings = candidate.settings | {"model": candidate.settings["model"] | {"members": members}}
        config = request.config(settings)
        several = replace(candidate, settings=settings, config=config)
        several = with_training(several, members * candidate.update_s, seconds, split)
        if fits(config) and is_promising(several):
            return several
    return candidate


def is_promising(candidate: Candidate) -> bool:
    """Whether there are enough updates, and not too many parameters."""
    most_parameters = _MOST_PER_CHAR * candidate.train_chars
    return candidate.updates >= candidate.least_updates and candidate.parameters <= most_parameters


def best(candidates: list[Candidate]) -> Candidate:
    """The largest of the promising models with nearly the best score: it gains most if the machine turns out faster.

    Of those beyond `_MEASURED_PARAMETERS` the smallest. The smallest of all if none is promising.
    """
    promising = [each for each in candidates if is_promising(each)]
    if not promising:
        return min(candidates, key=lambda each: each.parameters)
    lowest = min(map(relative_nats, promising))
    near = [each for each in promising if relative_nats(each) < lowest + _TIE_NATS]
    return max(near, key=lambda each: (min(each.parameters, _MEASURED_PARAMETERS), -each.parameters))
