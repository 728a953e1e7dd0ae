"""`charlm train TEXT --minutes M`: settings from the text, the time and the machine."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from charlm.choice.families import PLAIN, USUAL, Family, Request, families_of
from charlm.choice.recipe import MOST_EPOCHS, all_settings, choose_valid_chars, comments
from charlm.choice.rule import LARGE_CHARS, Candidate, expected_nats, relative_nats
from charlm.choice.speed import estimates, update_seconds
from charlm.choice.text import mean_line_chars, ngram_nats
from charlm.config import Config
from charlm.data.corpus import Corpus, Text
from charlm.data.progress import to_be_done_by
from charlm.data.vocabulary import Vocabulary
from charlm.errors import ConfigError, DataError, DeviceError
from charlm.model import count_parameters
from charlm.system.clock import LONGEST_START, Clock
from charlm.system.console import say
from charlm.system.device import describe_device
from charlm.system.formatting import counted, format_duration
from charlm.system.process_group import ONE_PROCESS, ProcessGroup
from charlm.training.machine import Machine, choose_machine, least_bytes
from charlm.training.start import fine_tuned_vocabulary

Prospects = dict[tuple[int, int], Candidate]
"""Family and size → a candidate of known speed, with the training that it would get."""

LEAST_CHARS = 500
_SMALL_CHARS = 50_000
"""Below this, a line says that the text is small."""
_FEW_UPDATES = 200
"""Below this, a line says that the updates are few."""
_MOST_PER_CHAR = 80
"""Parameters per character of the text at most."""
_TIE_NATS = 0.005
"""Much less than the rule's error. Smaller differences are no reason to prefer a model."""
_MEASURED_PARAMETERS = 2_000_000
"""Larger models do not win a tie for their size. Of these, only two layers of 384 units are in the rule's fit."""
_START_S = 3.0
"""Seconds before the first update and after the last."""
_AFTER_CHOICE_S = 1.5
"""The part of them that comes after the choice."""
_TRAINING = 0.92
"""Share of the remaining time that updates get; evaluations, samples and checkpoints get the rest."""
_MEASURING = 0.08
"""Share of the time, and 5 seconds at most, in which speed is measured."""
_LONGEST_S = 0.3
"""A model whose updates are expected to take longer is not measured, unless it is its family's first."""
_FASTER = 1.5
"""How much faster a model may be than estimated."""
_MEMORY = 0.5
"""Share of the free memory that the lower bound of what a run needs may take."""


@dataclass(frozen=True)
class Suggestion:
    """The settings that were chosen for a text."""

    config: Config
    comments: dict[str, str]
    """Option or section → why it has its value; "" for those that need no reason."""
    reasons: dict[str, str]
    """What was found out and chosen: label → text."""
    updates: int
    """How many the measured speed promises."""
    machine: Machine
    text: Text
    """The text that was read."""
    vocabulary: Vocabulary

    def say_reasons(self) -> None:
        for label, reason in self.reasons.items():
            say(label, reason)


def suggest(request: Request, group: ProcessGroup = ONE_PROCESS, clock: Clock | None = None) -> Suggestion:
    """Choose settings for a text and a time on this machine; the batch is a multiple of the group's processes.

    All of them call this together: the first one chooses, and all measure speed.

    clock: the minutes, if they have begun; None: they begin with a later command. ConfigError for wrong overrides,
    DataError for a text that cannot be read or is too short, DeviceError for a device that is not there or has too
    little memory, VocabularyError for characters that a model to start from does not know.
    """
    base, cells = group.on_each(request.base), group.on_each(request.cells)
    machine = choose_machine(base, group, cells)
    text, corpus = group.local_first(_load, request, base, clock)
    vocabulary_size, given = len(corpus.vocabulary), _given_split(request, base, corpus)
    families = group.on_first(_candidates, request, families_of(cells, machine.has_kernels), corpus, machine)

    def prospects(faster: float = 1.0) -> Prospects:
        left_s, chars = training_s(request.minutes, clock), len(corpus.splits["train"])
        return {
            (at, index): _with_training(family[index], update_s / faster, left_s, chars, given)
            for at, family in enumerate(families)
            for index, update_s in enumerate(estimates(family))
        }

    budget_s = min(5.0, 60 * request.minutes * _MEASURING)
    ends_s = time.perf_counter() + budget_s
    while place := group.on_first(_next_to_measure, families, prospects, ends_s):
        family, index = families[place[0]], place[1]
        seconds = update_seconds(family[index].config, machine, vocabulary_size, budget_s / 8)
        if seconds is None:
            del family[index:]  # no larger one fits into memory either
        else:
            family[index].measured_s = seconds
    choice = group.on_first(lambda: _choose(request, base, corpus, list(prospects().values()), machine))
    return Suggestion(*choice, machine, text, corpus.vocabulary)


def _load(request: Request, base: Config, clock: Clock | None) -> tuple[Text, Corpus]:
    """The text, and all of it encoded."""
    with to_be_done_by(clock and clock.ends_s()):
        text = Text(base.data)
        vocabulary = fine_tuned_vocabulary(base, request.initial, text) if request.initial else None
        corpus = text.corpus(vocabulary, whole=True)
    if (chars := len(corpus.splits["train"])) < LEAST_CHARS:
        raise DataError(
            f"{request.source}: found {counted(chars, 'character')}; allowed: {LEAST_CHARS} or more, and 100,000 "
            "are about the least that gives readable words; add text"
        )
    return text, corpus


def _given_split(request: Request, base: Config, corpus: Corpus) -> tuple[int, int] | None:
    """Characters for training and validation, if the user's options decide."""
    chars, is_given = len(corpus.splits["train"]), request.gives("data.split")
    train, valid, test = base.data.split if is_given else (1.0, 0.0, 0.0)
    if "valid" in corpus.splits:
        return int(chars * train / (train + test)), len(corpus.splits["valid"])
    return (int(chars * train), int(chars * valid)) if is_given else None


# Candidates


def _candidates(request: Request, families: list[Family], corpus: Corpus, machine: Machine) -> list[list[Candidate]]:
    """Candidates by family and batch, the smallest first; ConfigError if the user's options fit none."""
    size, chars = machine.group.size, len(corpus.splits["train"])
    bptt, faults = 64 if chars >= 5_000 else 16, []
    batches = dict.fromkeys(-(-batch // size) * size for batch in _batches(request, chars, machine))
    by_family = [
        _sizes(request, family, batch, bptt, corpus, machine, faults) for family in families for batch in batches
    ]
    if not any(by_family):
        fault = DeviceError(f"memory: no model fits into what is free ({machine.device.type})")
        raise faults[0] if faults else fault
    return [sizes for sizes in by_family if sizes]


def _batches(request: Request, chars: int, machine: Machine) -> list[int]:
    """Streams: few learn the most per character, many read more characters per second."""
    if chars < 5_000:
        return [4]
    is_large = chars > 100_000
    if machine.device.type != "cpu":
        return [64, 256] if is_large else [16, 64]
    return [16, 64] if is_large and (request.minutes >= 20 or machine.threads > 4) else [16]


def _sizes(
    request: Request,
    family: Family,
    batch_size: int,
    bptt: int,
    corpus: Corpus,
    machine: Machine,
    faults: list[ConfigError],
) -> list[Candidate]:
    """A family's models that fit into memory; a fault is added if the user's options do not fit it."""
    candidates: list[Candidate] = []
    vocabulary_size, most = len(corpus.vocabulary), _MEMORY * (machine.free_bytes or math.inf)
    for hidden in family.hidden:
        settings = request.settings(family, hidden, batch_size, bptt)
        try:
            config = request.config(settings)
        except ConfigError as error:
            faults.append(error)
            break
        if candidates and config == candidates[-1].config:  # the user's options leave no choice
            continue
        if least_bytes(config, vocabulary_size, machine) > most:
            break
        candidates.append(Candidate(family, settings, config, count_parameters(config.model, vocabulary_size)))
    return candidates


# What they promise


def _with_training(
    candidate: Candidate, update_s: float, seconds: float, text_chars: int, given: tuple[int, int] | None
) -> Candidate:
    """The candidate with the updates that it makes in so many seconds, and what of the text it learns from."""
    train, chars = candidate.config.train, candidate.chars_per_update
    updates = max(1, int(seconds / update_s))
    train_chars = max(given[0] if given else text_chars - choose_valid_chars(text_chars, updates * chars), 1)
    passes = min(train.max_epochs or MOST_EPOCHS, MOST_EPOCHS)
    updates = min(updates, train.max_steps or updates, int(passes * train_chars / chars) + 1)
    valid_chars = given[1] if given else choose_valid_chars(text_chars, updates * chars)
    return replace(candidate, update_s=update_s, updates=updates, train_chars=train_chars, valid_chars=valid_chars)


def training_s(minutes: float, clock: Clock | None = None) -> float:
    """How long the updates of a run may take in its minutes, of which some may have passed by the clock."""
    starting_s = max(_START_S, clock.passed_s() + _AFTER_CHOICE_S) if clock else _START_S
    return _TRAINING * (60 * minutes - min(starting_s, 60 * minutes * LONGEST_START))


def _next_to_measure(
    families: list[list[Candidate]], prospects: Callable[[float], Prospects], ends_s: float
) -> tuple[int, int] | None:
    """The family and size to measure next; None if nothing is left to measure, or no time.

    First one candidate of each family, the second if it fits into memory; the first family's even if there is no time.
    Then those that may be the best: they would be if they were somewhat faster than estimated.
    """
    is_in_time = time.perf_counter() < ends_s
    for at, family in enumerate(families):
        if family and (is_in_time or at == 0) and not estimates(family):
            return at, min(1, len(family) - 1)
    likely = prospects(1.0)
    if not likely or not is_in_time:
        return None
    promising = _promising(list(likely.values()))
    least, best = min(map(relative_nats, promising)), _best(promising)
    rivals = sorted((relative_nats(hope), at) for at, hope in prospects(_FASTER).items() if _is_promising(hope))
    places = [place for nats, place in rivals if nats < least]
    places += [place for place, candidate in likely.items() if candidate is best]
    for at, index in places:
        seconds = estimates(families[at])
        while index > 0 and seconds[index] > _LONGEST_S:
            index -= 1  # the largest that is fast enough
        if not families[at][index].measured_s:
            return at, index
    return None


def _is_promising(candidate: Candidate) -> bool:
    """Whether there are enough updates, and not too many parameters."""
    least = candidate.family.least_updates / candidate.family.width_factor(candidate.config.model.cell.hidden)
    return candidate.updates >= least and candidate.parameters <= _MOST_PER_CHAR * candidate.train_chars


def _promising(candidates: list[Candidate]) -> list[Candidate]:
    """The promising ones; if there is none, the smallest model."""
    return [each for each in candidates if _is_promising(each)] or [min(candidates, key=lambda each: each.parameters)]


def _best(candidates: list[Candidate]) -> Candidate:
    """The largest model of those that promise nearly the best score: it gains most if the machine turns out faster.

    Of those beyond `_MEASURED_PARAMETERS` the smallest.
    """
    least = min(map(relative_nats, candidates))
    near = [candidate for candidate in candidates if relative_nats(candidate) < least + _TIE_NATS]
    return max(near, key=lambda each: (min(each.parameters, _MEASURED_PARAMETERS), -each.parameters))


# The choice, and what to say about it


def _choose(
    request: Request, base: Config, corpus: Corpus, prospects: list[Candidate], machine: Machine
) -> tuple[Config, dict[str, str], dict[str, str], int]:
    """Config, comments, reasons and updates of the best candidate."""
    if not prospects:
        raise DeviceError(f"memory: not even a small model could be trained ({machine.device.type}); free some")
    best = _best(_promising(prospects))
    split = None
    if not request.gives("data.split"):
        chars = len(corpus.splits["train"])
        share = 0.0 if base.data.valid_source else float(f"{best.valid_chars / chars:.2g}")
        split = [round(1 - share, 8), share, 0.0]
    settings = all_settings(best, request.minutes, split)
    reasons_of_options = comments(best, settings)
    settings["data"] = base.data.model_dump(mode="json", exclude_defaults=True) | settings["data"]
    reasons = _reasons(request, corpus, best, len(prospects), machine)
    return request.config(settings), reasons_of_options, reasons, best.updates


def _reasons(request: Request, corpus: Corpus, best: Candidate, candidates: int, machine: Machine) -> dict[str, str]:
    """What was found out and chosen: label → text."""
    ids, vocabulary_size = corpus.splits["train"], len(corpus.vocabulary)
    nats, line_chars = ngram_nats(ids, vocabulary_size), mean_line_chars(ids, corpus.vocabulary)
    model, updates = best.config.model, counted(best.updates, "update")
    name = f"{model.cell.name}, {model.layers} × {model.cell.hidden} units, {best.parameters:,} parameters"
    lines = f", mean line length {line_chars:.0f}" if line_chars < 1000 else ""
    reasons = {
        "text": f"{len(ids):,} characters, {vocabulary_size:,} distinct{lines}; a 5-gram model scores {nats:.2f} nats",
        "machine": f"{describe_device(machine.device)}: {best.chars_per_s:,.0f} characters/s with this model",
        "choice": f"{name}: the best of {candidates} for {format_duration(60 * request.minutes)} by a rule fitted to "
        "measured trainings",
        "plan": f"about {updates}, {best.epochs:.1f} passes over the text",
    }
    limit = f"after {MOST_EPOCHS:.0f} passes the text teaches little more; the run ends there"
    if request.initial:  # the rule holds only for models that begin with random weights
        reasons["choice"] = f"{name}: the model of {request.initial_name}, which is trained on"
        return reasons | ({"limit": limit} if best.epochs >= MOST_EPOCHS else {})
    error = 0.3 if len(ids) >= LARGE_CHARS else 0.5
    expected = expected_nats(best, nats, vocabulary_size)
    reasons["expect"] = f"about {expected:.1f} nats per character, give or take {error}"
    if len(ids) < _SMALL_CHARS:
        reasons["small"] = (
            f"{len(ids):,} characters are few: expect words and layout, hardly sentences; 100,000 are about the "
            "least that gives readable text"
        )
    if best.updates < _FEW_UPDATES:
        reasons["few"] = f"about {updates}: expect hardly more than letters and short words"
    if best.epochs >= MOST_EPOCHS:
        reasons["limit"] = limit
    if outside := _outside(len(ids), best):
        reasons["outside"] = f"{outside} is far outside of what the rule was fitted to; take its choice as a guess"
    return reasons


def _outside(chars: int, best: Candidate) -> str:
    """What lies far outside the trainings that the rule was fitted to, if anything."""
    if not 10_000 <= chars <= 20_000_000:
        return f"a text of {chars:,} characters"
    if best.parameters > 10_000_000:
        return f"a model of {best.parameters:,} parameters"
    if best.chars > 20_000_000:
        return f"reading {best.chars:,} characters"
    if best.family not in (*USUAL, PLAIN):
        return f"the kind {best.config.model.cell.name}"
    if best.config.train.loss == "last":
        return "train.loss: last"
    return ""
