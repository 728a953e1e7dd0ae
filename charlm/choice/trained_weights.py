"""The learning rate of a run that starts from trained weights (`charlm train --init-from`)."""

import numpy as np

from charlm.checkpoint import Checkpoint
from charlm.choice.rule import Candidate
from charlm.data.lines import as_records
from charlm.data.vocabulary import Ids
from charlm.inference.evaluation import evaluate
from charlm.inference.trained import load_model
from charlm.training.machine import Machine

_CHARS = 50_000
"""Characters at the end of the text that tell how well the weights know it."""
_LONGER, _POWER = 4.0, 1.3
"""Fitted to trainings of 250 to 8,000 updates (benchmarks/README.md)."""


def unknown_share(initial: Checkpoint, ids: Ids, machine: Machine) -> float:
    """How much of what can be learned about a text the weights do not know, 0 to 1.

    ids: [N], of the checkpoint's vocabulary; larger ones are characters that it lacks.

    0: the weights predict the text as well as their own. 1: no better than the frequencies of its characters do.
    """
    text = ids[-_CHARS:]
    known = text[text < len(initial.vocabulary)]
    own_nats = initial.progress.get("best_nats")
    if len(known) < 2 or own_nats is None:
        return 1.0
    model = load_model(initial, machine.device, machine.precision)
    nats = evaluate(model, as_records(known, model.reset_id), machine.device).nats_per_char
    shares = np.bincount(known) / len(known)
    shares = shares[shares > 0]
    frequency_nats = -float((shares * np.log(shares)).sum())
    if frequency_nats <= own_nats:
        return 1.0
    unknown = (nats - own_nats) / (frequency_nats - own_nats)
    new_characters = 1 - len(known) / len(text)
    return new_characters + (1 - new_characters) * min(max(unknown, 0.0), 1.0)


def rate_factor(unknown: float, initial: Checkpoint, candidate: Candidate) -> float:
    """Learning rate relative to that for random weights.

    unknown: see `unknown_share`. On a text that they know, a high rate makes the weights worse at first. A long run
    makes up for that and gains more in the end: the rate is that for random weights in a run that is `_LONGER` times
    as long as those before it.
    """
    chars = candidate.updates * candidate.chars_per_update
    share = chars / max(_LONGER * initial.trained_chars, 1.0)
    return max(unknown, min(share, 1.0) ** _POWER)
