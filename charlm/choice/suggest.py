"""`charlm train TEXT --minutes M`: settings from the text, the time and the machine."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from charlm.cells import Cell
from charlm.choice.families import PLAIN, USUAL, Candidate, Family, Request, on_request
from charlm.choice.recipe import Run, complete, valid_chars
from charlm.choice.rule import LARGE_CHARS, LAST, Reading, expected_nats, relative_nats
from charlm.choice.speed import Speedometer, help_first
from charlm.choice.text import TextFacts, text_facts
from charlm.config import Config
from charlm.data.corpus import Corpus, load_configured_corpus
from charlm.data.progress import to_be_done_by
from charlm.errors import ConfigError, DataError, DeviceError
from charlm.model import count_parameters
from charlm.native.build import compiling_s
from charlm.native.precision import choose_precision
from charlm.system.device import describe_device, resolve_device, set_threads
from charlm.system.formatting import counted, format_duration
from charlm.system.process_group import ONE_PROCESS, ProcessGroup
from charlm.training.memory import available_bytes, bytes_on_device
from charlm.training.precision import compile_kernels
from charlm.training.start import LONGEST_START

LEAST_CHARS = 500
_SMALL_CHARS = 50_000
"""Below this, a line says that the text is small."""
_FEW_UPDATES = 200
"""Below this, a line says that the updates are few."""
_MOST_PER_CHAR = 80
"""Parameters per character of the text at most."""
_MOST_EPOCHS = 60.0
"""Passes over the text at most."""
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
_FASTER = 1.5
"""How much faster a size may be than it seems, from interpolation or from a first measurement."""
_MEMORY = 0.5
"""Share of the free memory that the lower bound of what a run needs may take."""


@dataclass(frozen=True)
class Suggestion:
    """The settings that were chosen for a text."""

    config: Config
    comments: dict[str, str]
    """Option or section → why it has its value; "" for those that need no reason."""
    reasons: dict[str, str]
    """What was found and chosen: label → text."""
    updates: int
    """How many the measured speed promises."""


@dataclass(frozen=True)
class _Outlook:
    """What a candidate promises."""

    candidate: Candidate
    reading: Reading
    update_s: float
    nats: float
    """Relative to what the text has by itself; see `relative_nats`."""

    @property
    def is_promising(self) -> bool:
        """Whether there are enough updates, and not too many parameters."""
        family, hidden = self.candidate.family, self.candidate.config.model.cell.hidden
        enough = self.reading.updates >= family.least_updates / family.width_factor(hidden)
        return enough and self.candidate.parameters <= _MOST_PER_CHAR * self.reading.train_chars


def suggest(request: Request, group: ProcessGroup = ONE_PROCESS, began_s: float | None = None) -> Suggestion:
    """Choose settings for a text and a time on this machine; the batch is a multiple of the group's processes.

    All of them call this together: the first one chooses, and they measure what it asks for.

    `began_s`: when the minutes began, as time.perf_counter() tells it; None: they begin with a later command.
    ConfigError for wrong overrides, DataError for a text that cannot be read or is too short, DeviceError for a device
    that is not there or has too little memory.
    """
    return group.on_first(_suggest, request, group, began_s) if group.is_first else help_first(group)


def _suggest(request: Request, group: ProcessGroup, began_s: float | None) -> Suggestion:
    base = request.base()
    device = resolve_device(base.device, group)
    set_threads(group.threads(base.threads))
    with to_be_done_by(None if began_s is None else began_s + 60 * request.minutes):
        corpus = load_configured_corpus(base.data, request.vocabulary, whole=True)
    if (chars := len(corpus.splits["train"])) < LEAST_CHARS:
        raise DataError(
            f"{request.source}: found {counted(chars, 'character')}; allowed: {LEAST_CHARS} or more, and 100,000 "
            "are about the least that gives readable words; add text"
        )
    text, parts = text_facts(corpus), _Parts.of(request, base, corpus)
    families = _families(request, text, device, group)
    budget_s = min(5.0, 60 * request.minutes * _MEASURING)
    meter = Speedometer(families, device, text.vocabulary, budget_s, group)
    outlooks = _measured_outlooks(parts, meter, request.minutes, began_s)
    if not outlooks:
        raise DeviceError(f"memory: not even a small model could be trained ({device.type}); free some")
    best = _best(_promising(outlooks))
    run = Run(
        best.candidate,
        best.reading,
        valid_chars=parts.valid(best.reading.chars),
        update_s=best.update_s,
        minutes=request.minutes,
        split=None if request.gives("data.split") else parts.split(best.reading.chars),
        max_epochs=_MOST_EPOCHS if best.reading.epochs >= _MOST_EPOCHS else None,
    )
    settings, comments = complete(run)
    settings["data"] = base.data.model_dump(mode="json", exclude_defaults=True) | settings["data"]
    nats = expected_nats(text, best.candidate, best.reading)
    reasons = _reasons(text, run, len(outlooks), nats, device)
    if request.initial:
        reasons = _reasons_to_fine_tune(reasons, request.initial)
    return Suggestion(request.config(settings), comments, reasons, best.reading.updates)


@dataclass(frozen=True)
class _Parts:
    """How a text is split."""

    chars: int
    given: tuple[int, int] | None
    """Characters for training and validation, if the user's options decide."""

    @classmethod
    def of(cls, request: Request, base: Config, corpus: Corpus) -> "_Parts":
        chars = len(corpus.splits["train"])
        if "valid" in corpus.splits:
            train, _, test = base.data.split if request.gives("data.split") else (1.0, 0.0, 0.0)
            return cls(chars, (int(chars * train / (train + test)), len(corpus.splits["valid"])))
        if request.gives("data.split"):
            train, valid, _ = base.data.split
            return cls(chars, (int(chars * train), int(chars * valid)))
        return cls(chars, None)

    def valid(self, chars_read: int) -> int:
        """Characters for validation in a run that reads so many for training."""
        return self.given[1] if self.given else valid_chars(self.chars, chars_read)

    def train(self, chars_read: int) -> int:
        """Characters for training."""
        return self.given[0] if self.given else self.chars - self.valid(chars_read)

    def split(self, chars_read: int) -> list[float]:
        """The shares of the text; all for training if there is another text for validation."""
        share = 0.0 if self.given else float(f"{self.valid(chars_read) / self.chars:.2g}")
        return [round(1 - share, 8), share, 0.0]


# Candidates


def _families(request: Request, text: TextFacts, device: torch.device, group: ProcessGroup) -> list[list[Candidate]]:
    """Candidates by family and batch, the smallest first; ConfigError if the user's options fit none."""
    faults: list[ConfigError] = []
    cells = _cells(request, faults)
    asked = cells[0].kind if len({cell.kind for cell in cells}) == 1 else None
    families = [family for family in USUAL if asked in (None, family.kind)] or [on_request(asked or "")]
    if compile_kernels(cells, device) and asked in (None, PLAIN.kind):
        families.insert(0, PLAIN)
    batches = [-(-batch // group.size) * group.size for batch in _batches(text, request.minutes, device)]
    found = [
        list(_candidates(request, text, device, group, family, batch, faults))
        for family in families
        for batch in dict.fromkeys(batches)
    ]
    found = [candidates for candidates in found if candidates]
    if not found:
        raise faults[0] if faults else DeviceError(f"memory: no model fits into what is free ({device.type})")
    return found


def _cells(request: Request, faults: list[ConfigError]) -> list[Cell]:
    """The cells of the usual families; if the user asks for a kind, all are of that kind."""
    cells = []
    for family in USUAL:
        try:
            cells.append(request.config(request.settings(family, family.hidden[0], 16, 64)).model.cell)
        except ConfigError as error:
            faults.append(error)
    return cells


def _batches(text: TextFacts, minutes: float, device: torch.device) -> list[int]:
    """Streams: few learn the most per character, many read more characters per second."""
    if text.chars < 5_000:
        return [4]
    if device.type != "cpu":
        return [64, 256] if text.chars > 100_000 else [16, 64]
    return [16, 64] if text.chars > 100_000 and (minutes >= 20 or torch.get_num_threads() > 4) else [16]


def _candidates(
    request: Request,
    text: TextFacts,
    device: torch.device,
    group: ProcessGroup,
    family: Family,
    batch_size: int,
    faults: list[ConfigError],
) -> Iterator[Candidate]:
    """A family's models that fit into memory; none, and a fault, if the user's options do not fit it."""
    free = available_bytes(device)
    seen = []
    for hidden in family.hidden:
        settings = request.settings(family, hidden, batch_size, 64 if text.chars >= 5_000 else 16)
        try:
            config = request.config(settings)
        except ConfigError as error:
            faults.append(error)
            return
        config = config.model_copy(update={"precision": choose_precision(config.precision, device)[0]})
        if config in seen:  # the user's options leave no choice
            continue
        if free is not None and bytes_on_device(config, text.vocabulary, device, group) > _MEMORY * free:
            return
        seen.append(config)
        yield Candidate(family, settings, config, count_parameters(config.model, text.vocabulary))


# What they promise


def _measured_outlooks(parts: _Parts, meter: Speedometer, minutes: float, began_s: float | None) -> list[_Outlook]:
    """The outlooks of all candidates; while there is time, those that may be the best are measured.

    The best is measured in any case, to see whether what the cache knows still holds.
    """
    while True:
        seconds = training_s(minutes, began_s)
        sizes = [
            (meter.families[at][index], update_s, (at, index))
            for at, times in enumerate(meter.update_s())
            for index, update_s in enumerate(times)
        ]
        outlooks = [_outlook(parts, candidate, update_s, seconds) for candidate, update_s, _ in sizes]
        if not outlooks:
            return []
        promising = _promising(outlooks)
        least = min(outlook.nats for outlook in promising)
        rivals = []
        for candidate, update_s, place in sizes:
            hope = _outlook(parts, candidate, update_s / _FASTER, seconds)
            if hope.is_promising and hope.nats < least:
                rivals.append((meter.rounds(*place), hope.nats, place))
        *_, best = sizes[outlooks.index(_best(promising))]
        places = (*(place for *_, place in sorted(rivals)), best)
        if not any(meter.improve(*place) for place in places) and not meter.renew(*best):
            return outlooks


def _outlook(parts: _Parts, candidate: Candidate, update_s: float, seconds: float) -> _Outlook:
    train = candidate.config.train
    updates = max(1, int(seconds / update_s))
    chars = train.batch_size * train.bptt
    train_chars = max(parts.train(updates * chars), 1)
    passes = min(train.max_epochs or _MOST_EPOCHS, _MOST_EPOCHS)
    updates = min(updates, train.max_steps or updates, int(passes * train_chars / chars) + 1)
    share = 1.0 if train.loss == "sum" else min(LAST / train.bptt, 1.0)
    reading = Reading(updates, train.batch_size, train.bptt, train_chars, share)
    return _Outlook(candidate, reading, update_s, relative_nats(candidate, reading))


def training_s(minutes: float, began_s: float | None = None) -> float:
    """How long the updates of a run may take in its minutes, of which some may have passed since `began_s`."""
    starting_s = _START_S
    if began_s is not None:
        starting_s = max(starting_s, time.perf_counter() - began_s - compiling_s(began_s) + _AFTER_CHOICE_S)
    return _TRAINING * (60 * minutes - min(starting_s, 60 * minutes * LONGEST_START))


def _promising(outlooks: Iterable[_Outlook]) -> list[_Outlook]:
    """The promising ones; if there is none, the smallest model."""
    outlooks = list(outlooks)
    good = [outlook for outlook in outlooks if outlook.is_promising]
    return good or [min(outlooks, key=lambda outlook: outlook.candidate.parameters)]


def _best(outlooks: list[_Outlook]) -> _Outlook:
    """The largest model of those that promise nearly the best score: it gains most if the machine turns out faster.

    Of those beyond `_MEASURED_PARAMETERS` the smallest.
    """
    least = min(outlook.nats for outlook in outlooks)
    near = [outlook for outlook in outlooks if outlook.nats < least + _TIE_NATS]

    def preference(outlook: _Outlook) -> tuple[int, int]:
        parameters = outlook.candidate.parameters
        return min(parameters, _MEASURED_PARAMETERS), -parameters

    return max(near, key=preference)


# What to say


def _reasons(text: TextFacts, run: Run, candidates: int, nats: float, device: torch.device) -> dict[str, str]:
    model, reading = run.candidate.config.model, run.reading
    lines = f", mean line length {text.line_chars:.0f}" if text.line_chars < 1000 else ""
    found = {
        "text": f"{text.chars:,} characters, {text.vocabulary:,} distinct{lines}; "
        f"a 5-gram model scores {text.ngram_nats:.2f} nats",
        "machine": f"{describe_device(device)}: {run.chars_per_s:,.0f} characters/s with this model",
        "choice": f"{model.cell.name}, {model.layers} × {model.cell.hidden} units, {run.candidate.parameters:,} "
        f"parameters: the best of {candidates} for {format_duration(60 * run.minutes)} by a rule fitted to measured "
        "trainings",
        "plan": f"about {counted(reading.updates, 'update')}, {reading.epochs:.1f} passes over the text",
        "expect": f"about {nats:.1f} nats per character, give or take {0.3 if text.chars >= LARGE_CHARS else 0.5}",
    }
    if text.chars < _SMALL_CHARS:
        found["small"] = (
            f"{text.chars:,} characters are few: expect words and layout, hardly sentences; 100,000 are about the "
            "least that gives readable text"
        )
    if reading.updates < _FEW_UPDATES:
        found["few"] = f"about {counted(reading.updates, 'update')}: expect hardly more than letters and short words"
    if run.max_epochs:
        found["limit"] = f"after {run.max_epochs:.0f} passes the text teaches little more; the run ends there"
    if outside := _outside(text, run):
        found["outside"] = f"{outside} is far outside of what the rule was fitted to; take its choice as a guess"
    return found


def _reasons_to_fine_tune(reasons: dict[str, str], initial: str) -> dict[str, str]:
    """The same for a model that is given, whose weights are trained: the rule promises nothing for it."""
    model = reasons["choice"].partition(": ")[0]
    others = {label: reason for label, reason in reasons.items() if label not in _OF_THE_RULE}
    return others | {"choice": f"{model}: the model of {initial}, which is trained on"}


_OF_THE_RULE = ("expect", "small", "few", "outside")
"""Reasons that hold only for models that begin with random weights."""


def _outside(text: TextFacts, run: Run) -> str:
    """What lies far outside the trainings that the rule was fitted to, if anything."""
    if not 10_000 <= text.chars <= 20_000_000:
        return f"a text of {text.chars:,} characters"
    if run.candidate.parameters > 10_000_000:
        return f"a model of {run.candidate.parameters:,} parameters"
    if run.reading.chars > 20_000_000:
        return f"reading {run.reading.chars:,} characters"
    if run.candidate.family not in (*USUAL, PLAIN):
        return f"the kind {run.candidate.config.model.cell.name}"
    if run.candidate.config.train.loss == "last":
        return "train.loss: last"
    return ""
