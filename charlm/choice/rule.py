"""Which model is best, by its size, the time and the text: a rule fitted to trainings (benchmarks/README.md).

    nats per character = c + A · (N / N₀)^−α + B · (D / D₀)^−β − G · (1 − 1 / M)

c: what no model of this form gets below on the text; N: useful parameters of a member; D: characters that it reads,
counted less for repetitions and for large batches; M: members. The form is that of Hoffmann et al. 2022
(arXiv:2203.15556, (2)); repetitions count as in Muennighoff et al. 2023 (arXiv:2305.16264, (5)); the variance of a mean
falls as 1 / M. The rest is fitted; the RHN's multiplier is lower than its fit.
"""

import math
from dataclasses import dataclass
from typing import Any

from charlm.choice.families import Family
from charlm.config import Config

A, ALPHA, PARAMETERS = 0.183, 0.44, 4e5
B, BETA, CHARS = 0.35, 0.28, 1e6
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
_MOST_PER_CHAR, _ENOUGH_PER_CHAR = 80, 3
"""Parameters per character of the text at most, and effective ones that are enough for a tie."""
_MEMBERS_GAIN = 0.03
"""G, in nats; 0.01 to 0.07 measured, more in small texts."""
_TIE_NATS = 0.005
"""Much less than the rule's error. Smaller differences are no reason to prefer a model."""
_FITTED_PARAMETERS = 1_900_000
"""Effective parameters that are enough for any text: of larger models, only 2 × 384 units are in the rule's fit."""


@dataclass(frozen=True)
class Candidate:
    """A model with its batch, its speed, and how long a run would train it."""

    family: Family
    settings: dict[str, Any]
    """See `Request.settings`."""
    config: Config
    """The settings with the user's."""
    parameters: int
    """Of one member."""
    train_chars: int = 0
    valid_chars: int = 0
    update_s: float = 0.0
    updates: int = 0

    @property
    def chars_per_update(self) -> int:
        return self.config.train.batch_size * self.config.train.bptt

    @property
    def least_updates(self) -> float:
        """Updates below which another model is taken, if one is fast enough; wide models need more."""
        return self.family.least_updates / self.family.width_factor(self.config.model.cell.hidden)

    @property
    def epochs(self) -> float:
        return self.updates * self.chars_per_update / self.train_chars

    @property
    def chars_per_s(self) -> float:
        return self.chars_per_update / self.update_s


def best(candidates: list[Candidate]) -> Candidate:
    """Of promising models with nearly the best score, the smallest that is large enough for the text, else the largest.

    A larger model gains more if the machine turns out faster, up to where it overfits. If none is promising, the
    smallest of all.
    """
    promising = [each for each in candidates if is_promising(each)]
    if not promising:
        return min(candidates, key=lambda each: each.parameters)
    lowest = min(map(relative_nats, promising))
    near = [each for each in promising if relative_nats(each) < lowest + _TIE_NATS]
    enough = min(_ENOUGH_PER_CHAR * near[0].train_chars, _FITTED_PARAMETERS)
    return max(near, key=lambda each: (min(effective_parameters(each), enough), -each.parameters))


def effective_parameters(candidate: Candidate) -> float:
    """Parameters of the one-layer LSTM that are worth as much."""
    return candidate.parameters * candidate.family.worth_of_parameter(candidate.updates)


def is_promising(candidate: Candidate) -> bool:
    """Whether there are enough updates, and not too many parameters."""
    most_parameters = _MOST_PER_CHAR * candidate.train_chars
    return candidate.updates >= candidate.least_updates and candidate.parameters <= most_parameters


def relative_nats(candidate: Candidate) -> float:
    """Nats per character that a run ends with, without c.

    n effective parameters are worth S · (1 − e^(−n / S)) for a text of S / `PER_CHAR` characters.
    """
    usable = PER_CHAR * candidate.train_chars
    parameters = usable * -math.expm1(-effective_parameters(candidate) / usable)

    repetitions = REPETITIONS * -math.expm1(-max(candidate.epochs - 1, 0) / REPETITIONS)
    passes = min(candidate.epochs, 1) + repetitions
    learned = passes * candidate.train_chars / (1 + candidate.chars_per_update / 64 / LARGE_BATCH)
    members = _MEMBERS_GAIN * (1 - 1 / candidate.config.model.members)
    return A * (parameters / PARAMETERS) ** -ALPHA + B * (max(learned, 1.0) / CHARS) ** -BETA - members


def regularization(candidate: Candidate) -> float:
    """How much regularization a run needs: 0 for a single pass, 3 for a small text read for hours.

    Grows with the passes, up to `DROPOUT_PASSES`, with the parameters per character, and up to `MODERATE` with the
    updates: a short run ends before it overfits.
    """
    log_passes = math.log(min(max(candidate.epochs, 1), DROPOUT_PASSES))
    share = candidate.parameters / candidate.train_chars
    strength = log_passes + 0.5 * math.log(max(share, 1e-9)) - 2.0
    longer = min(0.5 * math.log(max(candidate.updates / 1000, 1)), log_passes)
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
