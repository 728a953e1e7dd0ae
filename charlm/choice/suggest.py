"""`charlm train TEXT --minutes M`: settings from the text, the time and the machine."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from charlm.choice.families import USUAL, Candidate, Family, Request, on_request
from charlm.choice.recipe import Plan, complete, valid_chars
from charlm.choice.rule import Reading, expected_nats, relative_nats
from charlm.choice.speed import Speedometer, compile_kernels
from charlm.choice.text import TextFacts, text_facts
from charlm.config import Config
from charlm.data.corpus import load_configured_corpus
from charlm.errors import ConfigError, DataError, DeviceError
from charlm.model import count_parameters
from charlm.native.precision import choose_precision
from charlm.system.device import describe_device, resolve_device, set_threads
from charlm.system.formatting import format_duration
from charlm.training.memory import available_bytes, least_bytes

LEAST_CHARS = 500
_SMALL_CHARS = 50_000
"""A text below this is said to be small."""
_LEAST_UPDATES = 30
"""A model that is too slow for so many is not chosen, unless all are."""
_MOST_PER_CHAR = 150
"""Parameters per character of the text at most."""
_MOST_EPOCHS = 60.0
"""Passes over the text at most."""
_START_S = 3.0
"""Seconds before the first update and after the last."""
_TRAINING = 0.92
"""Share of the remaining time that updates get; evaluations, samples and checkpoints get the rest."""
_MEASURING = 0.08
"""Share of the time, and 5 seconds at most, in which speed is measured."""
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


@dataclass(frozen=True)
class _Outlook:
    """What a candidate promises."""

    candidate: Candidate
    reading: Reading
    update_s: float
    nats: float
    """Relative to what the text has by itself; see `relative_nats`."""


def suggest(request: Request, processes: int = 1) -> Suggestion:
    """Choose settings for a text and a time on this machine; the batch is a multiple of `processes`.

    ConfigError for wrong overrides, DataError for a text that cannot be read or is too short, DeviceError for a device
    that is not there or has too little memory.
    """
    base = request.base()
    device = resolve_device(base.device)
    set_threads(base.threads)
    corpus = load_configured_corpus(base.data.model_copy(update={"split": (1.0, 0.0, 0.0)}))
    if (chars := len(corpus.splits["train"])) < LEAST_CHARS:
        raise DataError(
            f"{request.source}: found {chars} characters; allowed: {LEAST_CHARS} or more, and 100,000 are about "
            "the least that gives readable words; add text"
        )
    text = text_facts(corpus)
    families = _families(request, text, device, processes)
    meter = Speedometer(device, text.vocabulary, budget_s=min(5.0, 60 * request.minutes * _MEASURING))
    outlooks = [
        _outlook(text, candidate, update_s, request.minutes)
        for family, times in zip(families, meter.update_s(families), strict=True)
        for candidate, update_s in zip(family, times, strict=False)
    ]
    best = min(_promising(outlooks), key=lambda outlook: outlook.nats)
    plan = Plan(
        best.candidate,
        best.reading,
        valid_chars=text.chars - best.reading.train_chars,
        update_s=best.update_s,
        minutes=request.minutes,
        max_epochs=_MOST_EPOCHS if best.reading.epochs >= _MOST_EPOCHS else None,
    )
    settings, comments = complete(plan)
    nats = expected_nats(text, best.nats)
    return Suggestion(request.config(settings), comments, _reasons(text, plan, len(outlooks), nats, device))


# Candidates


def _families(request: Request, text: TextFacts, device: torch.device, processes: int) -> list[list[Candidate]]:
    """Candidates by family and batch, the smallest first; ConfigError if the user's options fit none."""
    faults: list[ConfigError] = []
    asked = _kind(request, faults)
    families = [family for family in USUAL if asked in (None, family.kind)] or [on_request(asked or "")]
    compile_kernels([family.kind for family in families], device)
    batches = [-(-batch // processes) * processes for batch in _batches(text, request.minutes, device)]
    found = [
        list(_candidates(request, text, device, family, batch, processes, faults))
        for family in families
        for batch in dict.fromkeys(batches)
    ]
    found = [candidates for candidates in found if candidates]
    if not found:
        raise faults[0] if faults else DeviceError(f"memory: no model fits into what is free ({device.type})")
    return found


def _kind(request: Request, faults: list[ConfigError]) -> str | None:
    """The kind that the user asks for, if any."""
    smallest = [request.settings(family, family.hidden[0], 1, 1) for family in USUAL]
    kinds = set()
    for settings in smallest:
        try:
            kinds.add(request.config(settings).model.cell.kind)
        except ConfigError as error:
            faults.append(error)
    return kinds.pop() if len(kinds) == 1 else None


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
    family: Family,
    batch_size: int,
    processes: int,
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
        if free is not None and least_bytes(config, text.vocabulary, processes) > _MEMORY * free:
            return
        seen.append(config)
        yield Candidate(family, settings, config, count_parameters(config.model, text.vocabulary))


# What they promise


def _outlook(text: TextFacts, candidate: Candidate, update_s: float, minutes: float) -> _Outlook:
    train = candidate.config.train
    left_s = 60 * minutes - min(_START_S, 15 * minutes)
    updates = max(1, int(_TRAINING * left_s / update_s))
    chars = train.batch_size * train.bptt
    train_chars = text.chars - valid_chars(text.chars, updates * chars)
    updates = min(updates, int(_MOST_EPOCHS * train_chars / chars) + 1)
    reading = Reading(updates, train.batch_size, train.bptt, train_chars)
    return _Outlook(candidate, reading, update_s, relative_nats(candidate, reading))


def _promising(outlooks: Iterable[_Outlook]) -> list[_Outlook]:
    """Those with enough updates and not too many parameters; else the smallest model."""
    outlooks = list(outlooks)
    good = [
        outlook
        for outlook in outlooks
        if outlook.reading.updates >= _LEAST_UPDATES
        and outlook.candidate.parameters <= _MOST_PER_CHAR * outlook.reading.train_chars
    ]
    return good or [min(outlooks, key=lambda outlook: outlook.candidate.parameters)]


# What to say


def _reasons(text: TextFacts, plan: Plan, candidates: int, nats: float, device: torch.device) -> dict[str, str]:
    model, reading = plan.candidate.config.model, plan.reading
    lines = f", lines of {text.line_chars:.0f} in the mean" if text.line_chars < 1000 else ""
    found = {
        "text": f"{text.chars:,} characters, {text.vocabulary:,} different{lines}; "
        f"a 5-gram model scores {text.ngram_nats:.2f} nats",
        "machine": f"{describe_device(device)}: {plan.chars_per_s:,.0f} characters/s with this model",
        "choice": f"{model.cell.kind}, {model.layers} × {model.cell.hidden} units, {plan.candidate.parameters:,} "
        f"parameters: the best of {candidates} for {format_duration(60 * plan.minutes)} by the rule in docs/choice.md",
        "plan": f"about {reading.updates:,} updates, {reading.epochs:.1f} passes over the text",
        "expect": f"about {nats:.1f} nats per character, give or take 0.3",
    }
    if text.chars < _SMALL_CHARS:
        found["small"] = (
            f"{text.chars:,} characters are few: expect words and layout, hardly sentences; 100,000 are about the "
            "least that gives readable text"
        )
    if plan.max_epochs:
        found["limit"] = f"after {plan.max_epochs:.0f} passes the text teaches little more; the run ends there"
    if outside := _outside(text, plan):
        found["outside"] = f"{outside} is beyond what the rule was fitted to; take its choice as a guess"
    return found


def _outside(text: TextFacts, plan: Plan) -> str:
    """What lies outside the trainings of benchmarks/curves.json, if anything."""
    if not 20_000 <= text.chars <= 20_000_000:
        return f"a text of {text.chars:,} characters"
    if plan.candidate.parameters > 6_000_000:
        return f"a model of {plan.candidate.parameters:,} parameters"
    if plan.reading.chars > 100_000_000:
        return f"reading {plan.reading.chars:,} characters"
    return ""
