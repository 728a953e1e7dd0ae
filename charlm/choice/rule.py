"""What a model will score, by its size, the time and the text: a rule fitted to measured trainings (docs/choice.md).

    nats per character = c + A · (N / N₀)^−α + B · (D / D₀)^−β

c: what no model of this form gets below on the text; N: useful parameters; D: characters read, counted less for
repetitions and for large batches. The form is that of Hoffmann et al. 2022 (arXiv:2203.15556, (2)); repetitions count
as in Muennighoff et al. 2023 (arXiv:2305.16264, (5)). `benchmarks/fit_curves.py` fits A, α, B, β, what parameters are
worth, and `PER_CHAR`.
"""

import math
from dataclasses import dataclass

from charlm.choice.families import Candidate
from charlm.choice.text import TextFacts

A, ALPHA, PARAMETERS = 0.183, 0.44, 4e5
B, BETA, CHARS = 0.451, 0.36, 1e6
UPDATES, LEAST_UPDATES, MOST_UPDATES = 1000, 250, 8000
"""Families gain on the first with the number of updates: relative to the first number, between the other two.

Measured up to 4,000.
"""
PER_CHAR = 0.71
"""Limit of the useful parameters, per character of the train split."""
REPETITIONS = 4.0
"""Passes after which more passes teach nothing new, in the mean; 15 for the larger models of Muennighoff et al."""
LARGE_BATCH = 200.0
"""Streams of 64 characters at which a character teaches half as much as with one stream."""
LAST = 4.0
"""With `train.loss: last`, a window teaches as much as so many characters that are scored at every step.

Measured once: an LSTM of 112,000 parameters, 800 windows of 16 × 64 characters, 2.31 nats.
"""
DROPOUT_PASSES = 16.0
"""Passes after which more passes need no more dropout."""
MODERATE = 0.4
"""Strength of the dropout of a run that is long, but whose model is small for the text."""
LARGE_CHARS = 500_000
"""Characters from which on a text is large. Scores were at most 0.3 nats off `expected_nats`; on smaller texts 0.5."""
NGRAM_SHARE = 0.52
"""Needed only to say what to expect: see `expected_nats`."""


@dataclass(frozen=True)
class Reading:
    """How much a run reads."""

    updates: int
    batch_size: int
    bptt: int
    train_chars: int
    """Characters of the train split."""
    share: float = 1.0
    """Characters that teach, per character read: below 1 with `train.loss: last`."""

    @property
    def chars(self) -> int:
        return self.updates * self.batch_size * self.bptt

    @property
    def epochs(self) -> float:
        return self.chars / self.train_chars

    def distinct_chars(self) -> float:
        """Characters that teach as much as those read, each read once in a small batch."""
        passes = min(self.epochs, 1) + REPETITIONS * -math.expm1(-max(self.epochs - 1, 0) / REPETITIONS)
        batch = self.share * self.batch_size * self.bptt
        return self.share * passes * self.train_chars / (1 + batch / 64 / LARGE_BATCH)


def relative_nats(candidate: Candidate, reading: Reading) -> float:
    """Nats per character that a run ends with, without c.

    A model too large for the text gains little: n counted parameters are worth S · (1 − e^(−n / S)), where S is
    `PER_CHAR` times the characters of the train split.
    """
    counted, most = counted_parameters(candidate, reading), PER_CHAR * reading.train_chars
    return _nats(most * -math.expm1(-counted / most), reading)


def expected_nats(text: TextFacts, candidate: Candidate, reading: Reading) -> float:
    """Nats per character that a run ends with, roughly; at most those of guessing evenly.

    In proportion to the score of the text's 5-gram model, and lower for models that learn more. Here a surplus of
    parameters counts in full: what it is worth was fitted to differences between models on the same text only.
    """
    relative = _nats(counted_parameters(candidate, reading), reading)
    return min(NGRAM_SHARE * text.ngram_nats * (1 + relative), math.log(text.vocabulary))


def counted_parameters(candidate: Candidate, reading: Reading) -> float:
    """Parameters, counted by what one of the family is worth."""
    family = candidate.family
    updates = min(max(reading.updates, LEAST_UPDATES), MOST_UPDATES)
    return candidate.parameters * family.worth * (updates / UPDATES) ** family.worth_gain


def _nats(parameters: float, reading: Reading) -> float:
    """The two terms of the rule."""
    learned = max(reading.distinct_chars(), 1.0)
    return A * (parameters / PARAMETERS) ** -ALPHA + B * (learned / CHARS) ** -BETA


def regularization(parameters: int, reading: Reading) -> float:
    """How much a run needs against overfitting: 0 for a single pass, 3 for a small text read for hours.

    It grows with the passes over the text, up to `DROPOUT_PASSES`, and with the parameters per character of it. Up to
    `MODERATE` it also grows with the updates: a short run ends before it overfits, and a long one gains from some
    dropout before it does.
    """
    passes = math.log(min(max(reading.epochs, 1), DROPOUT_PASSES))
    share = parameters / reading.train_chars
    strength = passes + 0.5 * math.log(max(share, 1e-9)) - 2.0
    longer = min(0.5 * math.log(max(reading.updates / UPDATES, 1)), passes)
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
