"""`charlm train TEXT --minutes M`: settings from the text, the time and the machine.

charlm measures the update time of some models that fit into memory (`speed`), and so knows how many updates each makes.
A rule says which model is then best (`rule`); all other settings follow from it (`recipe`).
"""

import itertools
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from charlm.choice import speed
from charlm.choice.families import PLAIN, Family, Request
from charlm.choice.recipe import all_settings, is_own_text, rate_factor, unknown_share
from charlm.choice.rule import MOST_EPOCHS, Candidate, best, is_promising
from charlm.config import Config
from charlm.data.corpus import Corpus, CountedSources
from charlm.data.vocabulary import Vocabulary
from charlm.errors import ConfigError, DataError, DeviceError
from charlm.model import count_parameters
from charlm.system.device import describe_device
from charlm.system.formatting import counted, format_duration
from charlm.system.host import raise_limit_or
from charlm.system.process_group import ONE_PROCESS, ProcessGroup
from charlm.training.budget import Budget
from charlm.training.fine_tuning import fine_tuned_vocabulary
from charlm.training.machine import Machine, choose_machine, least_bytes

LEAST_CHARS = 500
_SMALL_CHARS, _FEW_UPDATES = 50_000, 200
"""Below these, a line says what to expect."""
_LEAST_LETTERS = 10
"""Distinct characters of a text that may have words."""
_LEAST_VALID, _MOST_VALID = 5_000, 250_000
_MEMBER_PASSES, _MOST_MEMBERS = 15.0, 4
"""Passes over the text that each of several members makes at least, and how many members there are at most."""
_MEMORY = 0.5
"""Share of the free memory that the lower bound of what a run needs may take, for what it does not count."""


class Suggestion(NamedTuple):
    """The settings chosen for a text, why (label → text), and the updates that the measured speed promises."""

    config: Config
    reasons: dict[str, str]
    updates: int
    opened: tuple[Machine, CountedSources]
    """The machine and the text for which they were chosen."""
    vocabulary: Vocabulary


def suggest(request: Request, group: ProcessGroup = ONE_PROCESS, budget: Budget | None = None) -> Suggestion:
    """Choose settings for a text and a time on this machine; the batch is a multiple of the group's processes.

    All processes call this together: all measure speed, and the first one chooses. budget: the minutes, if they have
    begun. ConfigError, DataError, DeviceError, or VocabularyError for characters unknown to the initial model.
    """
    budget = budget or Budget(request.minutes)
    base, families = group.on_each(request.base), group.on_each(request.families)
    machine = choose_machine(base, group, [cell for _, cell in families])
    usable = [family for family, _ in families if family != PLAIN or not machine.has_kernels]
    text, corpus = group.local_first(_load, request, base)
    if request.initial and is_own_text(request.initial, corpus) and not request.gives("data.split"):
        # What the weights were trained on is not scored.
        split = {"data.split": list(request.initial.config.data.split)}
        request = replace(request, given={**request.given, **split})
        base = request.base()
    choice = _Choice(request, base, corpus, machine)
    candidates = group.on_first(choice.candidates, usable)
    training_s = group.on_first(budget.training_s)
    timed = speed.measured(candidates, corpus, machine, training_s, budget.measuring_s())
    config, reasons, updates = group.on_first(choice.best_config, timed, budget)
    return Suggestion(config, reasons, updates, (machine, text), corpus.vocabulary)


def _load(request: Request, base: Config) -> tuple[CountedSources, Corpus]:
    """The text, and all of it encoded."""
    text = CountedSources(base.data)
    vocabulary = fine_tuned_vocabulary(base, request.initial, text) if request.initial else None
    corpus = text.corpus(vocabulary, whole=True)
    if (length := len(corpus.splits["train"])) < LEAST_CHARS:
        found, needed = counted(length, corpus.vocabulary.unit), "readable words need about 100,000"
        raise DataError(f"{request.source}: found {found}; allowed: {LEAST_CHARS} or more; add text: {needed}")
    return text, corpus


@dataclass(frozen=True)
class _Choice:
    """The steps of a choice. All of the corpus is for training, until shares are chosen."""

    request: Request
    base: Config
    corpus: Corpus
    machine: Machine

    @property
    def chars(self) -> int:
        return len(self.corpus.splits["train"])

    def candidates(self, families: list[Family]) -> list[list[Candidate]]:
        """Models that fit into memory, by family and batch, the smallest first."""
        processes = self.machine.group.size
        bptt = 64 if self.chars >= 5_000 else 16
        groups: list[list[Candidate]] = []
        for family, batch in itertools.product(families, self._batches()):
            sizes: list[Candidate] = []
            for hidden in family.hidden:
                batch_size = math.ceil(batch / processes) * processes
                settings = self.request.settings(family, hidden, batch_size, bptt)
                try:
                    config = self.request.config(settings)
                except ConfigError:  # the user's options do not fit this size
                    break
                if not self._fits(config):
                    break
                # If the user gives all options, sizes and families do not differ.
                if any(config == other.config for other in itertools.chain(sizes, *groups)):
                    continue
                parameters = count_parameters(config.model, len(self.corpus.vocabulary)) // config.model.members
                sizes.append(Candidate(family, settings, config, parameters))
            if sizes:
                groups.append(sizes)
        return groups

    def _batches(self) -> list[int]:
        """Of small batches a model learns the most per character, of large ones it reads more characters a second."""
        is_large = self.chars > 100_000
        if self.chars < 5_000:
            return [4]
        if self.machine.device.type != "cpu":
            return [64, 256] if is_large else [16, 64]
        has_time = self.request.minutes >= 20 or self.machine.threads > 4
        return [16, 64] if is_large and has_time else [16]

    def _fits(self, config: Config) -> bool:
        free, needed_bytes = self.machine.free_bytes, least_bytes(config, len(self.corpus.vocabulary), self.machine)
        return free is None or needed_bytes <= _MEMORY * free

    def best_config(self, candidates: list[Candidate], budget: Budget) -> tuple[Config, dict[str, str], int]:
        """The config of the best timed candidate, the reasons, and its updates; DeviceError if there is none."""
        request, machine, initial = self.request, self.machine, self.request.initial
        if not candidates:
            device, advice = machine.device.type, raise_limit_or("free some")
            raise DeviceError(f"memory: too little to train even a small model ({device}); {advice}")
        unknown = unknown_share(initial, self.corpus, machine) if initial else 1.0
        training_s = budget.training_s()
        trained = [self._with_training(candidate, training_s) for candidate in candidates]
        chosen = best([self._with_members(candidate, training_s) for candidate in trained])
        rate = rate_factor(unknown, initial, chosen) if initial else 1.0
        valid_share = 0.0
        if not self.base.data.valid_source:
            valid_share = float(f"{chosen.valid_chars / self.chars:.2g}")
        settings = all_settings(chosen, request.minutes, valid_share, rate)
        if initial:  # at a high rate it may take most of a run to be better than the start
            settings["train"].pop("patience", None)
        config = request.config(settings)
        reasons = self._reasons(chosen, config)
        if initial:
            reasons["start"] = f"the weights predict this text {1 - unknown:.0%} as well as their own"
            if not request.gives("optimizer.lr"):
                reasons["start"] += f"; learning rate × {rate:.2g}"
        return config, reasons, chosen.updates

    def _with_training(self, candidate: Candidate, seconds: float) -> Candidate:
        """The candidate with its number of updates in `seconds`, and the number of characters that it trains on."""
        train, chars = candidate.config.train, candidate.chars_per_update
        updates = max(1, int(seconds / candidate.update_s))
        if train.max_steps:
            updates = min(updates, train.max_steps)
        most_passes = train.max_epochs or MOST_EPOCHS
        train_chars, _ = self._split(updates * chars)
        updates = min(updates, int(most_passes * max(train_chars, 1) / chars) + 1)
        # A run of fewer updates is validated on less of the text, and has more of it to train on.
        train_chars, valid_chars = self._split(updates * chars)
        return replace(candidate, updates=updates, train_chars=max(train_chars, 1), valid_chars=valid_chars)

    def _with_members(self, candidate: Candidate, seconds: float) -> Candidate:
        """The candidate, with as many members as make enough passes in the time of one."""
        train, updates = candidate.config.train, seconds / candidate.update_s
        is_limited = (train.max_steps or math.inf) < updates or (train.max_epochs or math.inf) < MOST_EPOCHS
        if is_limited or self.request.initial or self.request.gives("model.members"):
            return candidate
        passes = updates * candidate.chars_per_update / candidate.train_chars
        most_members = min(int(passes / _MEMBER_PASSES), _MOST_MEMBERS)
        for members in range(most_members, 1, -1):
            model = candidate.settings["model"] | {"members": members}
            settings = candidate.settings | {"model": model}
            config, update_s = self.request.config(settings), members * candidate.update_s
            several = replace(candidate, settings=settings, config=config, update_s=update_s)
            several = self._with_training(several, seconds)
            if self._fits(several.config) and is_promising(several):
                return several
        return candidate

    def _split(self, chars_read: int) -> tuple[int, int]:
        """Characters for training and, enough to be trusted, for validation in a run that reads so many."""
        chars = self.chars
        own_valid = self.corpus.splits.get("valid")
        is_given = self.request.gives("data.split")
        train, valid, test = self.base.data.split if is_given else (1.0, 0.0, 0.0)
        if own_valid is not None:  # the share is ignored, and the others are rescaled to sum to 1
            return int(chars * train / (train + test)), len(own_valid)
        if is_given:
            return int(chars * train), int(chars * valid)
        highest = min(_MOST_VALID, max(_LEAST_VALID, chars_read // 5))
        chosen = int(min(max(0.1 * chars, _LEAST_VALID), highest, 0.2 * chars))
        return chars - chosen, chosen

    def _text(self) -> str:
        """How long the text is."""
        vocabulary = self.corpus.vocabulary
        length = f"{self.chars:,} {vocabulary.unit}s"
        if vocabulary.level == "byte":
            return f"{length}, {self.chars / self.corpus.symbols_per_char:,.0f} characters"
        return f"{length}, {len(vocabulary):,} distinct"

    def _reasons(self, chosen: Candidate, config: Config) -> dict[str, str]:
        """What was found out and chosen: label → text."""
        machine, model, read_share = self.machine, chosen.config.model, config.train.read_share
        minutes = format_duration(60 * self.request.minutes)
        name = f"{model.description}, {model.members * chosen.parameters:,} parameters"
        speed = chosen.chars_per_s / self.corpus.symbols_per_char
        passes = f"{chosen.epochs:.1f} passes over the text"
        if read_share < 1:
            passes = f"{chosen.epochs / read_share:.1f} epochs, each of {100 * read_share:.2g}% of the text"
        reasons = {
            "text": self._text(),
            "machine": describe_device(machine.device),
            "choice": f"{name}: the best for {minutes} by a rule fitted to measured trainings",
            "plan": f"about {counted(chosen.updates, 'update')} at {speed:,.0f} characters/s, {passes}",
        }
        if chosen.epochs >= (config.train.max_epochs or math.inf):
            reasons["plan"] += "; more would teach little, so the run ends there"
        has_words = len(self.corpus.vocabulary) >= _LEAST_LETTERS
        if self.request.initial:  # the rule holds only for models that begin with random weights
            reasons["choice"] = f"{name}: the model of the run that it starts from"
        elif has_words and self.chars < _SMALL_CHARS:
            reasons["text"] += "; expect words and layout, hardly sentences; for these give 100,000 or more"
        elif has_words and chosen.updates < _FEW_UPDATES:
            reasons["choice"] += "; expect hardly more than letters and short words; for more give more minutes"
        return reasons
