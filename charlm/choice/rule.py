"""What a model will score, by its size, the time and the text: a rule fitted to measured trainings (docs/choice.md).

    ln nats = c + A · (N · m / N₀)^−α + B · s / s₀ · (D / D₀)^−β

N: parameters; m: what a parameter of the family is worth; D: characters read, counted less for repetitions and for
large batches; c and s are the text's own: how well, and how fast, a 5-gram model learns it. The form is that of
Hoffmann et al. 2022 (arXiv:2203.15556, (2)), of the logarithm; repetitions count as in Muennighoff et al. 2023
(arXiv:2305.16264, (5)). `benchmarks/fit_curves.py` fits the constants.
"""

import math
from dataclasses import dataclass

from charlm.choice.families import Candidate
from charlm.choice.text import TextFacts

A, ALPHA, PARAMETERS = 0.062, 0.50, 4e5
B, BETA, CHARS, SLOPE = 0.372, 0.28, 1e6, 0.5
REPETITIONS = 15.0
"""Passes after which more passes teach nothing new, in the mean."""
LARGE_BATCH = 200.0
"""Streams of 64 characters at which a character teaches half as much as with one stream."""
CONTEXT_NATS = 0.48
"""How much lower, in ln nats, a network of any size can get than the text's 5-gram model."""


@dataclass(frozen=True)
class Reading:
    """How much a run reads."""

    updates: int
    batch_size: int
    bptt: int
    train_chars: int
    """Characters of the train split."""

    @property
    def chars(self) -> int:
        return self.updates * self.batch_size * self.bptt

    @property
    def epochs(self) -> float:
        return self.chars / self.train_chars

    def distinct_chars(self) -> float:
        """Characters that teach as much as those read, each read once in a small batch."""
        passes = min(self.epochs, 1) + REPETITIONS * -math.expm1(-max(self.epochs - 1, 0) / REPETITIONS)
        return passes * self.train_chars / (1 + self.batch_size * self.bptt / 64 / LARGE_BATCH)


def log_nats(candidate: Candidate, reading: Reading, text: TextFacts) -> float:
    """ln of the nats per character that a run ends with, without the text's own c."""
    worth = candidate.parameters * candidate.family.worth
    learned = max(reading.distinct_chars(), 1.0)
    slope = min(max(text.ngram_slope, 0.1), 1.0) / SLOPE
    return A * (worth / PARAMETERS) ** -ALPHA + B * slope * (learned / CHARS) ** -BETA


def expected_nats(text: TextFacts, found: float) -> float:
    """Nats per character for what `log_nats` found, roughly; at most those of guessing evenly."""
    return min(text.ngram_nats * math.exp(found - CONTEXT_NATS), math.log(max(text.vocabulary, 2)))


def regularization(parameters: int, reading: Reading) -> float:
    """How much a run needs against overfitting: 0 for a single pass, 3 for a small text read for hours.

    It grows with the passes over the text and with the parameters per character of it.
    """
    share = parameters / reading.train_chars
    return min(max(math.log(max(reading.epochs, 1)) + 0.5 * math.log(max(share, 1e-9)) - 2.0, 0.0), 3.5)


def dropout(strength: float, layers: int) -> dict[str, float]:
    """The dropout section for a strength from `regularization`."""
    output = min(0.25 * strength, 0.7)
    places = {
        "embedding": 0.05 * (strength - 1.5),
        "weights": min(0.2 * (strength - 0.5), 0.5),
        "between_layers": output / 2 if layers > 1 else 0.0,
        "output": output,
    }
    return {place: round(p, 2) for place, p in places.items() if p >= 0.02}
