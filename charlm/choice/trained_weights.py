"""The learning rate of a run that starts from trained weights (`charlm train --init-from`)."""

import numpy as np

from charlm.checkpoint import Checkpoint
from charlm.choice.rule import Candidate
from charlm.data.corpus import Corpus, sample
from charlm.data.lines import as_records
from charlm.inference.evaluation import evaluate
from charlm.inference.trained import load_model
from charlm.training.machine import Machine

_CHARS = 50_000
"""Characters, from all over the text, that tell how well the weights know it."""
_USUAL = 0.4
"""Assumed score of weights on their own text ÷ the score of its character frequencies, for a run without a score."""
_LONGER, _POWER = 4.0, 1.3
"""Fitted to trainings of 250 to 8,000 updates (benchmarks/README.md)."""


def is_own_text(initial: Checkpoint, corpus: Corpus) -> bool:
    """Whether the weights were trained on this very text."""
    return corpus.sha256 == initial.progress.get("corpus_sha256")


def unknown_share(initial: Checkpoint, corpus: Corpus, machine: Machine) -> float:
    """How much of what can be learned about a text the weights do not know, 0 to 1.

    0: the weights predict the text as well as their own. 1: no better than the frequencies of its characters do.
    corpus: all of it is for training. Ids beyond the checkpoint's vocabulary are characters that it lacks.
    """
    if is_own_text(initial, corpus):
        return 0.0
    text = sample(corpus.splits["train"], _CHARS).ravel()
    known = text[text < len(initial.vocabulary)]
    if len(known) < 2:
        return 1.0
    model = load_model(initial, machine.device, machine.precision)
    nats = evaluate(model, as_records(known, model.reset_id)).nats_per_char
    shares = np.bincount(known) / len(known)
    shares = shares[shares > 0]
    frequency_nats = -float((shares * np.log(shares)).sum())
    own_nats = initial.progress.get("best_nats") or _USUAL * frequency_nats
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
