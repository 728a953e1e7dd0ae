"""`charlm train TEXT --minutes M`: settings from the text, the time and the machine.

The speed of a few models is measured (`speed`), which says how many updates each candidate makes in the time. A rule
says which one is then best (`rule`), and all other settings follow from it (`recipe`).
"""

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from charlm.checkpoint import Checkpoint
from charlm.choice import speed
from charlm.choice.families import PLAIN, Family, Request
from charlm.choice.recipe import all_settings
from charlm.choice.rule import MOST_EPOCHS, Candidate, best, is_promising
from charlm.choice.trained_weights import is_own_text, rate_factor, unknown_share
from charlm.config import Config
from charlm.config.yaml import dump_flow
from charlm.data.corpus import Corpus, CountedSources
from charlm.data.vocabulary import Vocabulary
from charlm.errors import ConfigError, DataError, DeviceError
from charlm.model import count_parameters
from charlm.system.device import describe_device
from charlm.system.formatting import counted, format_duration
from charlm.system.process_group import ONE_PROCESS, ProcessGroup
from charlm.training.budget import Budget
from charlm.training.machine import Machine, choose_machine, least_bytes
from charlm.training.start import fine_tuned_vocabulary

LEAST_CHARS = 500
_SMALL_CHARS, _FEW_UPDATES = 50_000, 200
"""Below these, a line says what to expect."""
_LEAST_VALID, _MOST_VALID = 5_000, 250_000
_MEMBER_PASSES, _MOST_MEMBERS = 25.0, 4
"""Passes over the text after which the time goes to one more member, and how many there are at most."""
_MEMORY = 0.5
"""Share of the free memory that the lower bound of what a run needs may take, for what it does not count."""

Split = Callable[[int], tuple[int, int]]
"""Characters for training and validation in a run that reads so many."""


class Suggestion(NamedTuple):
    """The settings that were chosen for a text."""

    config: Config
    reasons: dict[str, str]
    """What was found out and chosen: label → text."""
    updates: int
    """How many the measured speed promises."""
    opened: tuple[Machine, CountedSources]
    """The machine and the text for which they were chosen."""
    vocabulary: Vocabulary


def suggest(request: Request, group: ProcessGroup = ONE_PROCESS, budget: Budget | None = None) -> Suggestion:
    """Choose settings for a text and a time on this machine; the batch is a multiple of the group's processes.

    All of them call this together: the first one chooses, and all measure speed.

    budget: the minutes, if they have begun; None: they begin with a later command. ConfigError for wrong overrides,
    DataError for a text that cannot be read or is too short, DeviceError for a device that is not there or has too
    little memory, VocabularyError for characters that a model to start from does not know.
    """
    budget = budget or Budget(request.minutes)
    base, families = group.on_each(request.base), group.on_each(request.families)
    machine = choose_machine(base, group, [cell for _, cell in families])
    usable = [family for family, _ in families if family != PLAIN or not machine.has_kernels]
    text, corpus = group.local_first(_load, request, base)
    if request.initial and is_own_text(request.initial, corpus):
        request = _with_split_of(request, request.initial)
        base = request.base()

    def fits(config: Config) -> bool:
        needed_bytes = least_bytes(config, len(corpus.vocabulary), machine)
        return needed_bytes <= _MEMORY * (machine.free_bytes or math.inf)

    by_family = group.on_first(_candidates, request, usable, corpus, machine, fits)
    training_s = group.on_first(budget.training_s)
    speeds = speed.measure_families(by_family, corpus, machine, training_s, budget.measuring_s())

    split = functools.partial(_split, request, base, corpus)

    def choose() -> tuple[Config, dict[str, str], int]:
        unknown = unknown_share(request.initial, corpus, machine) if request.initial else 1.0
        training_s = budget.training_s()
        candidates: list[Candidate] = []
        for family, measured in zip(by_family, speeds, strict=True):
            for candidate in family if measured else []:
                update_s = speed.update_s(candidate.parameters, measured)
                candidates.append(_with_training(candidate, update_s, training_s, split))
        if not candidates:
            raise DeviceError(f"memory: not even a small model could be trained ({machine.device.type}); free some")
        chosen = _with_members(best(candidates), request, training_s, split, fits)
        shares = None
        if not request.gives("data.split"):
            share = 0.0 if base.data.valid_source else chosen.valid_chars / len(corpus.splits["train"])
            share = float(f"{share:.2g}")
            shares = [round(1 - share, 8), share, 0.0]
        rate = rate_factor(unknown, request.initial, chosen) if request.initial else 1.0
        settings = all_settings(chosen, request.minutes, shares, rate)
        if request.initial:  # at a high rate it may take most of a run to be better than the start
            settings["train"].pop("patience", None)
        settings["data"] = base.data.model_dump(mode="json", exclude_defaults=True) | settings["data"]
        config = request.config(settings)
        reasons = _reasons(request, corpus, chosen, machine, config.train.read_share)
        if request.initial:
            reasons["start"] = f"the weights predict this text {1 - unknown:.0%} as well as their own"
            if not request.gives("optimizer.lr"):
                reasons["start"] += f"; learning rate × {rate:.2g}"
        return config, reasons, chosen.updates

    return Suggestion(*group.on_first(choose), (machine, text), corpus.vocabulary)


def _load(request: Request, base: Config) -> tuple[CountedSources, Corpus]:
    """The text, and all of it encoded."""
    text = CountedSources(base.data)
    vocabulary = fine_tuned_vocabulary(base, request.initial, text) if request.initial else None
    corpus = text.corpus(vocabulary, whole=True)
    if (chars := len(corpus.splits["train"])) < LEAST_CHARS:
        raise DataError(
            f"{request.source}: found {counted(chars, 'character')}; allowed: {LEAST_CHARS} or more, and 100,000 "
            "are about the least that gives readable words; add text"
        )
    return text, corpus


def _with_split_of(request: Request, initial: Checkpoint) -> Request:
    """The request with the split of the run to start from, on the same text: what was trained on is not scored."""
    if request.gives("data.split"):
        return request
    return replace(request, overrides=[*request.overrides, f"data.split={dump_flow(list(initial.config.data.split))}"])


def _candidates(
    request: Request, families: list[Family], corpus: Corpus, machine: Machine, fits: Callable[[Config], bool]
) -> list[list[Candidate]]:
    """Models that fit into memory, by family and batch, the smallest first; ConfigError if the user's options fit none.

    Of small batches a model learns the most per character, of large ones it reads more characters per second.
    """
    size, chars = machine.group.size, len(corpus.splits["train"])
    bptt = 64 if chars >= 5_000 else 16
    is_large, is_gpu = chars > 100_000, machine.device.type != "cpu"
    batches = [64, 256] if is_gpu and is_large else [16, 64]
    if chars < 5_000:
        batches = [4]
    elif not is_gpu and not (is_large and (request.minutes >= 20 or machine.threads > 4)):
        batches = [16]
    found: list[list[Candidate]] = []
    faults: list[ConfigError] = []
    for family, batch in itertools.product(families, batches):
        sizes: list[Candidate] = []
        for hidden in family.hidden:
            settings = request.settings(family, hidden, -(-batch // size) * size, bptt)
            try:
                config = request.config(settings)
            except ConfigError as error:
                faults.append(error)
                break
            if not fits(config):
                break
            if all(config != other.config for other in itertools.chain(sizes, *found)):  # the user may leave no choice
                parameters = count_parameters(config.model, len(corpus.vocabulary)) // config.model.members
                sizes.append(Candidate(family, settings, config, parameters))
        if sizes:
            found.append(sizes)
    if not found:
        fault = DeviceError(f"memory: no model fits into what is free ({machine.device.type})")
        raise faults[0] if faults else fault
    return found


def _with_training(candidate: Candidate, update_s: float, seconds: float, split: Split) -> Candidate:
    """The candidate with the updates that it makes in so many seconds, and what of the text it learns from."""
    train, chars = candidate.config.train, candidate.chars_per_update
    updates = max(1, int(seconds / update_s))
    train_chars = max(split(updates * chars)[0], 1)
    passes = min(train.max_epochs or MOST_EPOCHS, MOST_EPOCHS)
    updates = min(updates, train.max_steps or updates, int(passes * train_chars / chars) + 1)
    valid_chars = split(updates * chars)[1]
    return replace(candidate, update_s=update_s, updates=updates, train_chars=train_chars, valid_chars=valid_chars)


def _with_members(
    candidate: Candidate, request: Request, seconds: float, split: Split, fits: Callable[[Config], bool]
) -> Candidate:
    """The candidate, with several members in the time in which one would make more passes than teach it anything.

    The user's number of members stays, and limits other than the time are those of one member.
    """
    train = candidate.config.train
    if train.max_steps or train.max_epochs or request.initial or request.gives("model.members"):
        return candidate
    passes = seconds / candidate.update_s * candidate.chars_per_update / candidate.train_chars
    for members in range(min(int(passes / _MEMBER_PASSES), _MOST_MEMBERS), 1, -1):
        settings = candidate.settings | {"model": candidate.settings["model"] | {"members": members}}
        several = replace(candidate, settings=settings, config=request.config(settings))
        several = _with_training(several, members * candidate.update_s, seconds, split)
        if fits(several.config) and is_promising(several):
            return several
    return candidate


def _split(request: Request, base: Config, corpus: Corpus, chars_read: int) -> tuple[int, int]:
    """Characters for training and validation in a run that reads so many.

    Without the user's split: enough to be trusted, but not more than evaluations have time for.
    """
    chars, is_given = len(corpus.splits["train"]), request.gives("data.split")
    train, valid, test = base.data.split if is_given else (1.0, 0.0, 0.0)
    if "valid" in corpus.splits:
        return int(chars * train / (train + test)), len(corpus.splits["valid"])
    if is_given:
        return int(chars * train), int(chars * valid)
    highest = min(_MOST_VALID, max(_LEAST_VALID, chars_read // 5))
    chosen = int(min(max(0.1 * chars, _LEAST_VALID), highest, 0.2 * chars))
    return chars - chosen, chosen


def _reasons(
    request: Request, corpus: Corpus, chosen: Candidate, machine: Machine, read_share: float
) -> dict[str, str]:
    """What was found out and chosen: label → text."""
    chars, vocabulary_size = len(corpus.splits["train"]), len(corpus.vocabulary)
    model, updates = chosen.config.model, counted(chosen.updates, "update")
    name = f"{model.description}, {model.members * chosen.parameters:,} parameters"
    minutes = format_duration(60 * request.minutes)
    passes = f"{chosen.epochs:.1f} passes over the text"
    if read_share < 1:
        passes = f"{chosen.epochs / read_share:.1f} epochs, each of {100 * read_share:.2g}% of the text"
    reasons = {
        "text": f"{chars:,} characters, {vocabulary_size:,} distinct",
        "machine": f"{describe_device(machine.device)}: {chosen.chars_per_s:,.0f} characters/s with this model",
        "choice": f"{name}: the best for {minutes} by a rule fitted to measured trainings",
        "plan": f"about {updates}, {passes}",
    }
    if chosen.epochs >= MOST_EPOCHS:
        reasons["plan"] += "; more would teach little, so the run ends there"
    if request.initial:  # the rule holds only for models that begin with random weights
        reasons["choice"] = f"{name}: the model of the run that it starts from"
    elif chars < _SMALL_CHARS:
        reasons["text"] += "; expect words and layout, hardly sentences; for these give 100,000 or more"
    elif chosen.updates < _FEW_UPDATES:
        reasons["plan"] += "; expect hardly more than letters and short words; for more give more minutes"
    return reasons
