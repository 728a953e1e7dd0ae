"""`charlm train TEXT --minutes M`: settings from the text, the time and the machine."""

import time
from dataclasses import dataclass

from charlm.choice import speed
from charlm.choice.families import PLAIN, USUAL, Request, families_of
from charlm.choice.ngram import SimpleScores, mean_line_chars, simple_scores, spread_simple_scores
from charlm.choice.recipe import all_settings, comments
from charlm.choice.rule import EXPECTED_WITHIN, MOST_EPOCHS, Candidate, expected_nats
from charlm.choice.search import (
    Prospects,
    best,
    candidates_by_family,
    fits_into_memory,
    next_to_measure,
    with_members,
    with_training,
)
from charlm.config import Config
from charlm.data.corpus import Corpus, CountedSources
from charlm.data.progress import to_be_done_by
from charlm.data.vocabulary import Vocabulary
from charlm.errors import DataError, DeviceError
from charlm.system.clock import LONGEST_START, Clock
from charlm.system.console import say
from charlm.system.device import describe_device, free_memory
from charlm.system.formatting import counted, format_duration
from charlm.system.process_group import ONE_PROCESS, ProcessGroup
from charlm.training.machine import Machine, choose_machine
from charlm.training.start import fine_tuned_vocabulary

LEAST_CHARS = 500
_SMALL_CHARS = 50_000
"""Below this, a line says that the text is small."""
_FEW_UPDATES = 200
"""Below this, a line says that the updates are few."""
_LEAST_VALID, _MOST_VALID = 5_000, 250_000
_LEAST_NGRAM_CHARS = 100
"""If a split is shorter, simple models score parts from all over the text instead."""
_START_S, _AFTER_CHOICE_S = 3.0, 1.5
"""Seconds before the first update and after the last, and the part of them that comes after the choice."""
_TRAINING = 0.92
"""Share of the remaining time that updates get; evaluations, samples and checkpoints get the rest."""
_MEASURING, _MOST_MEASURING_S = 0.08, 5.0
"""Share of the time in which speed is measured, and its limit."""
_MEASURED_S = 0.15
"""Updates of a model are timed for this long at most."""


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
    text: CountedSources
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
    families = group.on_first(candidates_by_family, request, families_of(cells, machine.has_kernels), corpus, machine)

    def split(chars_read: int) -> tuple[int, int]:
        return _split(request, base, corpus, chars_read)

    def fits(config: Config) -> bool:
        return fits_into_memory(config, len(corpus.vocabulary), machine)

    def prospects(faster: float = 1.0) -> Prospects:
        left_s = training_s(request.minutes, clock)
        return {
            (at, index): with_training(family[index], update_s / faster, left_s, split)
            for at, family in enumerate(families)
            for index, update_s in enumerate(speed.estimates(family))
        }

    budget_s = min(_MOST_MEASURING_S, 60 * request.minutes * _MEASURING)
    ends_s, enough_s = time.perf_counter() + budget_s, min(_MEASURED_S, budget_s / 16)
    while next_model := group.on_first(next_to_measure, families, prospects, ends_s):
        family, index = families[next_model[0]], next_model[1]
        config = family[index].config
        seconds = speed.measure(config, machine, len(corpus.vocabulary), enough_s)
        if machine.device.type == "cuda":
            free_memory()
        if seconds is None:
            del family[index:]  # no larger one fits into memory either
        for same in (each for sizes in families for each in sizes if each.config == config):
            same.measured_s, same.measurements = seconds, same.measurements + 1

    def choose() -> tuple[Config, dict[str, str], dict[str, str], int]:
        if not (likely := list(prospects().values())):
            raise DeviceError(f"memory: not even a small model could be trained ({machine.device.type}); free some")
        chosen = with_members(best(likely), request, training_s(request.minutes, clock), split, fits)
        return _described(request, base, corpus, chosen, len(likely), machine)

    choice = group.on_first(choose)
    return Suggestion(*choice, machine, text, corpus.vocabulary)


def _load(request: Request, base: Config, clock: Clock | None) -> tuple[CountedSources, Corpus]:
    """The text, and all of it encoded."""
    with to_be_done_by(clock and clock.ends_s()):
        text = CountedSources(base.data)
        vocabulary = fine_tuned_vocabulary(base, request.initial, text) if request.initial else None
        corpus = text.corpus(vocabulary, whole=True)
    if (chars := len(corpus.splits["train"])) < LEAST_CHARS:
        raise DataError(
            f"{request.source}: found {counted(chars, 'character')}; allowed: {LEAST_CHARS} or more, and 100,000 "
            "are about the least that gives readable words; add text"
        )
    return text, corpus


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


def training_s(minutes: float, clock: Clock | None = None) -> float:
    """How long the updates of a run may take in its minutes, of which some may have passed by the clock."""
    starting_s = max(_START_S, clock.passed_s() + _AFTER_CHOICE_S) if clock else _START_S
    return _TRAINING * (60 * minutes - min(starting_s, 60 * minutes * LONGEST_START))


def _described(
    request: Request, base: Config, corpus: Corpus, chosen: Candidate, candidates: int, machine: Machine
) -> tuple[Config, dict[str, str], dict[str, str], int]:
    """Config, comments, reasons and updates of the candidate that is the best of so many."""
    split = None
    if not request.gives("data.split"):
        share = chosen.valid_chars / len(corpus.splits["train"])
        share = 0.0 if base.data.valid_source else float(f"{share:.2g}")
        split = [round(1 - share, 8), share, 0.0]
    settings = all_settings(chosen, request.minutes, split)
    reasons_of_options = comments(chosen, settings)
    settings["data"] = base.data.model_dump(mode="json", exclude_defaults=True) | settings["data"]
    reasons = _reasons(request, corpus, chosen, candidates, machine)
    return request.config(settings), reasons_of_options, reasons, chosen.updates


def _simple_scores(corpus: Corpus, chosen: Candidate) -> SimpleScores:
    """What simple models of the train split score on the validation split.

    Lines are in either split by their hashes, so the validation split is then like any part of the text.
    """
    ids, train = corpus.splits["train"], chosen.train_chars
    known, unseen = ids[:train], corpus.splits.get("valid", ids[train : train + chosen.valid_chars])
    is_spread = chosen.config.data.unit == "line" and "valid" not in corpus.splits
    if is_spread or min(len(known), len(unseen)) < _LEAST_NGRAM_CHARS:
        return spread_simple_scores(ids, len(corpus.vocabulary))
    return simple_scores(known, unseen, len(corpus.vocabulary))


def _reasons(request: Request, corpus: Corpus, chosen: Candidate, candidates: int, machine: Machine) -> dict[str, str]:
    """What was found out and chosen: label → text."""
    ids, vocabulary_size = corpus.splits["train"], len(corpus.vocabulary)
    simple, line_chars = _simple_scores(corpus, chosen), mean_line_chars(ids, corpus.vocabulary)
    model, updates = chosen.config.model, counted(chosen.updates, "update")
    name = f"{model.description}, {model.members * chosen.parameters:,} parameters"
    lines = f", mean line length {line_chars:.0f}" if line_chars < 1000 else ""
    reasons = {
        "text": f"{len(ids):,} characters, {vocabulary_size:,} distinct{lines}; "
        f"an n-gram model scores {simple.ngram:.2f} nats",
        "machine": f"{describe_device(machine.device)}: {chosen.chars_per_s:,.0f} characters/s with this model",
        "choice": f"{name}: the best of {candidates} for {format_duration(60 * request.minutes)} by a rule fitted to "
        "measured trainings",
        "plan": f"about {updates}, {chosen.epochs:.1f} passes over the text",
    }
    limit = f"after {MOST_EPOCHS:.0f} passes the text teaches little more; the run ends there"
    if request.initial:  # the rule holds only for models that begin with random weights
        reasons["choice"] = f"{name}: the model of {request.initial_name}, which is trained on"
        return reasons | ({"limit": limit} if chosen.epochs >= MOST_EPOCHS else {})
    reasons["expect"] = (
        f"about {expected_nats(chosen, simple):.2f} nats per character; three of four texts end within "
        f"{EXPECTED_WITHIN} nats of it"
    )
    if len(ids) < _SMALL_CHARS:
        reasons["small"] = (
            f"{len(ids):,} characters are few: expect words and layout, hardly sentences; 100,000 are about the "
            "least that gives readable text"
        )
    if chosen.updates < _FEW_UPDATES:
        reasons["few"] = f"about {updates}: expect hardly more than letters and short words"
    if chosen.epochs >= MOST_EPOCHS:
        reasons["limit"] = limit
    outside = {
        f"a text of {len(ids):,} characters": not 10_000 <= len(ids) <= 20_000_000,
        f"a model of {chosen.parameters:,} parameters": chosen.parameters > 10_000_000,
        f"reading {chosen.chars:,} characters": chosen.chars > 20_000_000,
        f"the kind {model.cell.name}": chosen.family not in (*USUAL, PLAIN),
    }
    if any(outside.values()):
        first = next(what for what, is_outside in outside.items() if is_outside)
        reasons["outside"] = f"{first} is far outside of what the rule was fitted to; take its choice as a guess"
    return reasons
