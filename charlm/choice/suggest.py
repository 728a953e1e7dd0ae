"""`charlm train TEXT --minutes M`: settings from the text, the time and the machine.

Speed is measured for a few models (`speed`), so that it is known how many updates each makes in the time (`search`). A
rule says which model scores best after them (`rule`), and all other settings follow from it (`recipe`).
"""

from dataclasses import dataclass

from charlm.choice import speed
from charlm.choice.families import PLAIN, USUAL, Request, families_of
from charlm.choice.recipe import all_settings, comments
from charlm.choice.rule import MOST_EPOCHS, Candidate
from charlm.choice.search import best, candidates_by_family, fits_into_memory, with_members, with_training
from charlm.config import Config
from charlm.data.corpus import Corpus, CountedSources
from charlm.data.progress import to_be_done_by
from charlm.data.vocabulary import Vocabulary
from charlm.errors import DataError, DeviceError
from charlm.system.console import say
from charlm.system.device import describe_device
from charlm.system.formatting import counted, format_duration
from charlm.system.process_group import ONE_PROCESS, ProcessGroup
from charlm.training.budget import Budget
from charlm.training.machine import Machine, choose_machine
from charlm.training.start import fine_tuned_vocabulary

LEAST_CHARS = 500
_SMALL_CHARS = 50_000
"""Below this, a line says that the text is small."""
_FEW_UPDATES = 200
"""Below this, a line says that the updates are few."""
_LEAST_VALID, _MOST_VALID = 5_000, 250_000
_MEASURING, _MOST_MEASURING_S = 0.08, 5.0
"""Share of the time in which speed is measured, and its limit."""


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
    opened: tuple[Machine, CountedSources]
    """The machine and the text for which they were chosen."""
    vocabulary: Vocabulary

    def say_reasons(self) -> None:
        for label, reason in self.reasons.items():
            say(label, reason)


def suggest(request: Request, group: ProcessGroup = ONE_PROCESS, budget: Budget | None = None) -> Suggestion:
    """Choose settings for a text and a time on this machine; the batch is a multiple of the group's processes.

    All of them call this together: the first one chooses, and all measure speed.

    budget: the minutes, if they have begun; None: they begin with a later command. ConfigError for wrong overrides,
    DataError for a text that cannot be read or is too short, DeviceError for a device that is not there or has too
    little memory, VocabularyError for characters that a model to start from does not know.
    """
    budget = budget or Budget(request.minutes)
    base, cells = group.on_each(request.base), group.on_each(request.cells)
    machine = choose_machine(base, group, cells)
    text, corpus = group.local_first(_load, request, base, budget)
    families = group.on_first(candidates_by_family, request, families_of(cells, machine.has_kernels), corpus, machine)
    limit_s = min(_MOST_MEASURING_S, 60 * request.minutes * _MEASURING)
    training_s = group.on_first(budget.training_s)
    speeds = speed.measure_families(families, machine, len(corpus.vocabulary), training_s, limit_s)

    def split(chars_read: int) -> tuple[int, int]:
        return _split(request, base, corpus, chars_read)

    def fits(config: Config) -> bool:
        return fits_into_memory(config, len(corpus.vocabulary), machine)

    def choose() -> tuple[Config, dict[str, str], dict[str, str], int]:
        training_s = budget.training_s()
        candidates = [
            with_training(candidate, speed.update_s(candidate.parameters, measured), training_s, split)
            for family, measured in zip(families, speeds, strict=True)
            if measured
            for candidate in family
        ]
        if not candidates:
            raise DeviceError(f"memory: not even a small model could be trained ({machine.device.type}); free some")
        chosen = with_members(best(candidates), request, training_s, split, fits)
        settings = all_settings(chosen, request.minutes, _shares(request, base, corpus, chosen))
        why = comments(chosen, settings)
        settings["data"] = base.data.model_dump(mode="json", exclude_defaults=True) | settings["data"]
        reasons = _reasons(request, corpus, chosen, machine)
        return request.config(settings), why, reasons, chosen.updates

    return Suggestion(*group.on_first(choose), (machine, text), corpus.vocabulary)


def _load(request: Request, base: Config, budget: Budget) -> tuple[CountedSources, Corpus]:
    """The text, and all of it encoded."""
    with to_be_done_by(budget.ends_s()):
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


def _shares(request: Request, base: Config, corpus: Corpus, chosen: Candidate) -> list[float] | None:
    """The shares of train, valid and test; None if the user gives them."""
    if request.gives("data.split"):
        return None
    share = 0.0 if base.data.valid_source else float(f"{chosen.valid_chars / len(corpus.splits['train']):.2g}")
    return [round(1 - share, 8), share, 0.0]


def _reasons(request: Request, corpus: Corpus, chosen: Candidate, machine: Machine) -> dict[str, str]:
    """What was found out and chosen: label → text."""
    chars, vocabulary_size = len(corpus.splits["train"]), len(corpus.vocabulary)
    model, updates = chosen.config.model, counted(chosen.updates, "update")
    name = f"{model.description}, {model.members * chosen.parameters:,} parameters"
    minutes = format_duration(60 * request.minutes)
    reasons = {
        "text": f"{chars:,} characters, {vocabulary_size:,} distinct",
        "machine": f"{describe_device(machine.device)}: {chosen.chars_per_s:,.0f} characters/s with this model",
        "choice": f"{name}: the best for {minutes} by a rule fitted to measured trainings",
        "plan": f"about {updates}, {chosen.epochs:.1f} passes over the text",
    }
    if chosen.epochs >= MOST_EPOCHS:
        reasons["limit"] = f"after {MOST_EPOCHS:.0f} passes the text teaches little more; the run ends there"
    if request.initial:  # the rule holds only for models that begin with random weights
        return reasons | {"choice": f"{name}: the model of {request.initial_name}, which is trained on"}
    if chars < _SMALL_CHARS:
        reasons["small"] = (
            f"{chars:,} characters are few: expect words and layout, hardly sentences; 100,000 are about the "
            "least that gives readable text"
        )
    if chosen.updates < _FEW_UPDATES:
        reasons["few"] = f"about {updates}: expect hardly more than letters and short words"
    outside = {
        f"a text of {chars:,} characters": not 10_000 <= chars <= 20_000_000,
        f"a model of {chosen.parameters:,} parameters": chosen.parameters > 10_000_000,
        f"reading {chosen.chars:,} characters": chosen.chars > 20_000_000,
        f"the kind {model.cell.name}": chosen.family not in (*USUAL, PLAIN),
    }
    for what, is_outside in outside.items():
        if is_outside:
            reasons["outside"] = f"{what} is far outside of what the rule was fitted to; take its choice as a guess"
            break
    return reasons
