"""What a model will score, by its size, the time and the text: a rule fitted to trainings (benchmarks/README.md).

    nats per character = c + A · (N / N₀)^−α + B · (D / D₀)^−β

c: what no model of this form gets below on the text; N: useful parameters; D: characters read, counted less for
repetitions and for large batches. The form is that of Hoffmann et al. 2022 (arXiv:2203.15556, (2)); repetitions count
as in Muennighoff et al. 2023 (arXiv:2305.16264, (5)). `benchmarks/fit_curves.py` fits A, α, B, β, the multipliers of
the families, `PER_CHAR` and `DEFLATE_POWER`; the RHN's multiplier is lower than fitted (benchmarks/README.md).
"""

import math
from dataclasses import dataclass
from typing import Any

from charlm.choice.families import Family
from charlm.choice.ngram import KNOWN_CHARS, SimpleScores
from charlm.config import Config

A, ALPHA, PARAMETERS = 0.183, 0.44, 4e5
B, BETA, CHARS = 0.451, 0.36, 1e6
UPDATES, LEAST_UPDATES, MOST_UPDATES = 1000, 250, 8000
"""A family's multiplier grows with the updates, relative to the first number, between the other two.

Measured up to 4,000.
"""
PER_CHAR = 0.71
"""Limit of the useful parameters, per character of the train split."""
REPETITIONS = 4.0
"""Passes after which more passes teach nothing new, in the mean; 15 for the larger models of Muennighoff et al."""
LARGE_BATCH = 200.0
"""Streams of 64 characters at which a character teaches half as much as with one stream."""
MOST_EPOCHS = 60.0
"""Passes over the text at most."""
DROPOUT_PASSES = 16.0
"""Passes after which more passes need no more dropout."""
MODERATE = 0.4
"""Strength of the dropout of a run that is long, but whose model is small for the text."""
DEFLATE_POWER = 0.43
"""Power of Deflate's nats / unigram nats in c; see `expected_nats`."""
EXPECTED_WITHIN = 0.15
"""Nats by which `expected_nats` was off at most on three of four texts when its fit left out texts like them."""


@dataclass
class Candidate:
    """A model with its batch, its speed, and how long a run would train it."""

    family: Family
    settings: dict[str, Any]
    """Options that decide how long an update takes, without the user's."""
    config: Config
    """The same with the user's."""
    parameters: int
    """Of one member."""
    measured_s: float | None = None
    """Seconds per update, measured last."""
    measurements: int = 0
    train_chars: int = 0
    """Characters of the train split."""
    valid_chars: int = 0
    update_s: float = 0.0
    updates: int = 0

    @property
    def chars_per_update(self) -> int:
        return self.config.train.batch_size * self.config.train.bptt

    @property
    def chars(self) -> int:
        """Characters that the run reads."""
        return self.updates * self.chars_per_update

    @property
    def epochs(self) -> float:
        return self.chars / self.train_chars

    @property
    def chars_per_s(self) -> float:
        return self.chars_per_update / self.update_s


def relative_nats(candidate: Candidate) -> float:
    """Nats per character that a run ends with, without c.

    A model too large for the text gains little: n effective parameters are worth S · (1 − e^(−n / S)), where S is
    `PER_CHAR` times the characters of the train split.
    """
    effective, usable = effective_parameters(candidate), PER_CHAR * candidate.train_chars
    return _nats(usable * -math.expm1(-effective / usable), candidate)


def expected_nats(candidate: Candidate, simple: SimpleScores) -> float:
    """Nats per character that a run ends with, roughly; at most the unigram nats u.

    c = n-gram nats · min(1, Deflate's nats / u)^`DEFLATE_POWER` / (1 + B · (n / D₀)^−β). The divisor is what the n-gram
    model lacks because it has read only n characters, as for any model. c · `relative_nats` is added and bent toward u:
    c + (u − c) · (1 − e^(−c · relative / (u − c))).
    """
    if not simple.unigram:  # one character alone
        return 0.0
    ngram_relative = B * (min(candidate.train_chars, KNOWN_CHARS) / CHARS) ** -BETA
    compression = min(simple.deflate / simple.unigram, 1.0)
    c = simple.ngram * compression**DEFLATE_POWER / (1 + ngram_relative)
    room = simple.unigram - c
    return c + room * -math.expm1(-c * relative_nats(candidate) / room)


def effective_parameters(candidate: Candidate) -> float:
    """Parameters of the one-layer LSTM that would learn as much in as many updates."""
    family = candidate.family
    updates = min(max(candidate.updates, LEAST_UPDATES), MOST_UPDATES)
    return candidate.parameters * family.multiplier * (updates / UPDATES) ** family.multiplier_power


def _nats(parameters: float, candidate: Candidate) -> float:
    """The two terms of the rule."""
    learned = max(distinct_chars(candidate.updates, candidate.chars_per_update, candidate.train_chars), 1.0)
    return A * (parameters / PARAMETERS) ** -ALPHA + B * (learned / CHARS) ** -BETA


def distinct_chars(updates: int, chars_per_update: int, train_chars: int) -> float:
    """Characters that teach as much as those read, each read once in a small batch."""
    epochs = updates * chars_per_update / train_chars
    passes = min(epochs, 1) + REPETITIONS * -math.expm1(-max(epochs - 1, 0) / REPETITIONS)
    return passes * train_chars / (1 + chars_per_update / 64 / LARGE_BATCH)


def regularization(candidate: Candidate) -> float:
    """How much a run needs against overfitting: 0 for a single pass, 3 for a small text read for hours.

    It grows with the passes over the text, up to `DROPOUT_PASSES`, and with the parameters per character of it. Up to
    `MODERATE` it also grows with the updates: a short run ends before it overfits, and a long one gains from some
    dropout before it does.
    """
    log_passes = math.log(min(max(candidate.epochs, 1), DROPOUT_PASSES))
    share = candidate.parameters / candidate.train_chars
    strength = log_passes + 0.5 * math.log(max(share, 1e-9)) - 2.0
    longer = min(0.5 * math.log(max(candidate.updates / UPDATES, 1)), log_passes)
    return min(max(strength, min(strength + longer, MODERATE), 0.0), 3.5)


def dropout(strength: float, layers: int) -> dict[str, float]:
    """The dropout section for a strength from `regularization`."""
    output = min(0.25 * strength, 0.7)
    places = {
        "embedding": 0.05 * (strength - 1.5),
        "weights": min(0.2 * (strength - 1.0), 0.5),
        "between_layers": output / 2 if layers > 1 else 0.0,
        "output": output,
    }
    return {place: round(p, 2) for place, p in places.items() if p >= 0.02}
