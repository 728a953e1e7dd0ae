"""All settings of a run, from its model, how much it reads, how long that takes, and what its first weights know."""

import copy
import math
from typing import Any

import numpy as np

from charlm.checkpoint import Checkpoint
from charlm.choice.rule import MOST_EPOCHS, Candidate, dropout, regularization
from charlm.data.corpus import Corpus, sample
from charlm.data.encoded import EncodedText
from charlm.data.records import as_records
from charlm.inference.evaluation import WARMUP, evaluate
from charlm.inference.loading import load_model
from charlm.training.budget import EVALUATION_COST
from charlm.training.machine import Machine

_SHORT = 2000
"""Updates of a short run."""
_EVALUATIONS = 20
"""How many evaluations to make at most."""
_EVALUATIONS_SHARE = 0.05
"""Share of the minutes that all evaluations may take, with their checkpoints."""
_SHORT_MINUTES, _SHORT_SHARE = (1 / 6, 1 / 2), 0.007
"""That share of a run of ten seconds that reads its text once. It rises evenly, to half a minute or three passes."""
_SAVING_S = 0.02
"""What a small checkpoint takes."""
_READ_AT, _FEW_EPOCHS = 0.9, 3.0
"""Share of a run after which a pass ends with the text, if the run makes fewer passes than this."""
_HIGHEST = 2.4e-2
"""A larger batch raises no rate above this, in runs of 1,000 to 20,000 updates."""
_RATES = {"sgd": 25.0, "rmsprop": 1 / 3, "adagrad": 5.0}
"""Learning rates relative to AdamW's, of optimizers that need others."""
_SAMPLE_CHARS = 50_000
"""Characters, from all over the text, that tell how well the weights know it."""
_USUAL = 0.4
"""Assumed score of weights on their own text ÷ the score of its character frequencies, for a run without a score."""
_LONGER, _POWER = 4.0, 1.3
"""Fitted to trainings of 250 to 8,000 updates (benchmarks/README.md)."""


def all_settings(candidate: Candidate, minutes: float, valid_share: float, rate: float) -> dict[str, Any]:
    """All settings of a run, without the user's. rate: factor of the learning rate, see `rate_factor`."""
    updates, update_s = candidate.updates, candidate.update_s
    model, family = candidate.config.model, candidate.family
    settings = copy.deepcopy(candidate.settings)
    settings["data"]["split"] = [round(1 - valid_share, 8), valid_share, 0.0]
    if updates < family.forget_bias_updates:
        settings["model"]["cell"]["forget_bias"] = 1.0
    settings["model"]["dropout"] = dropout(regularization(candidate), model.layers)
    eval_every = _eval_every(candidate, minutes)
    evaluations = updates // eval_every if eval_every else 0
    ema = min(max(1 - 25 / updates, 0.9), 0.9999)
    activation_penalty = 0.0
    if family.activation_penalty:
        activation_penalty = min(max(updates / 10_000, 0.5), 1.0)
    settings["train"] |= {
        "ema": round(ema, 5),
        "activation_penalty": round(activation_penalty, 2),
        "log_every": _round_up(min(2 / update_s, updates / 20)),
        "eval_every": eval_every,
        "save_every": _round_up(min(120 / update_s, updates)),
        "sample_every": _round_up(max(updates / 5, 20 / update_s) if minutes >= 1 else updates / 2),
        "on_divergence": "rollback",
    }
    if not candidate.config.data.records:  # records begin with the initial state, and come in a random order
        settings["train"]["reset_state"] = 0.01
        read_share = _read_share(candidate.epochs)
        if read_share < 1:
            settings["train"]["read_share"] = read_share
    if candidate.epochs >= MOST_EPOCHS:
        settings["train"]["max_epochs"] = MOST_EPOCHS
    if evaluations >= 10:
        settings["train"]["patience"] = evaluations // 2
    settings["optimizer"] |= _optimizer(candidate, rate)
    return settings


def _optimizer(candidate: Candidate, rate: float) -> dict[str, Any]:
    """Learning rate, decay, clipping and schedule, as far as they fit the optimizer, which may be the user's."""
    name, updates, family = candidate.config.optimizer.name, candidate.updates, candidate.family
    is_short = updates < _SHORT
    width = family.width_factor(candidate.config.model.cell.hidden)
    larger_batch = min(math.sqrt(candidate.chars_per_update / 1024), 2.0, _HIGHEST / (width * family.rate(1000)))
    lr = family.rate(updates) * width * larger_batch * rate * _RATES.get(name, 1.0)
    options: dict[str, Any] = {
        "clip_norm": 10.0,
        "lr": float(f"{lr:.2g}"),
        "weight_decay": 0.1 if name in ("adamw", "muon") else 0.0,  # for the others it is a penalty
        "schedule": {
            "name": "linear" if is_short else "cosine",
            "warmup_steps": max(min(100, updates // 20), 1),
            "final_fraction": 0.0 if is_short else 0.02,
        },
    }
    if name == "adamw":
        options["betas"] = [0.5, 0.98] if is_short else [0.7, 0.999]
    return options


def _read_share(epochs: float) -> float:
    """Share of the text that each pass reads, chosen so that a run of few passes ends with a whole pass.

    The run has then seen all parts of the text, and its end, just before the validation text, at a low learning rate.
    """
    if epochs >= _FEW_EPOCHS:
        return 1.0
    passes = _READ_AT * epochs
    share = passes / math.ceil(passes)
    return float(f"{share:.3g}")


def _eval_every(candidate: Candidate, minutes: float) -> int:
    """Updates between two evaluations, so that all take their share of the time; 0: only at the end."""
    if not candidate.valid_chars:
        return 0
    # A short text is read in few streams of 4 · WARMUP characters or more, which takes as long as more streams do.
    least_windows = 4 * WARMUP / candidate.config.train.bptt
    windows = max(candidate.valid_chars / candidate.chars_per_update, least_windows)
    each_s = EVALUATION_COST * windows * candidate.update_s + _SAVING_S
    shares = _SHORT_SHARE, _EVALUATIONS_SHARE
    # After a few passes a run can overfit, which only a curve of many points shows.
    share = max(np.interp(minutes, _SHORT_MINUTES, shares), np.interp(candidate.epochs, (1, _FEW_EPOCHS), shares))
    evaluations = min(_EVALUATIONS, int(share * 60 * minutes / each_s))
    if evaluations <= 1:
        return 0
    return _round_up(candidate.updates / evaluations)


def _round_up(number: float) -> int:
    """The next whole number of two digits and zeros."""
    number = max(math.ceil(number), 1)
    unit = 10 ** max(len(str(number)) - 2, 0)
    return math.ceil(number / unit) * unit


# Trained weights


def is_own_text(initial: Checkpoint, corpus: Corpus) -> bool:
    """Whether the weights were trained on this very text."""
    return corpus.sha256 == initial.progress.get("corpus_sha256")


def unknown_share(initial: Checkpoint, corpus: Corpus, machine: Machine) -> float:
    """How new a text is to the weights: 0 if they predict it as well as their own, 1 if no better than by frequencies.

    corpus: all of it is for training. Ids beyond the checkpoint's vocabulary are unknown characters.
    """
    if is_own_text(initial, corpus):
        return 0.0
    text = sample(corpus.splits["train"], _SAMPLE_CHARS).ravel()
    known = text[text < len(initial.vocabulary)]
    if len(known) < 2:
        return 1.0
    model = load_model(initial, machine.device, machine.precision)
    pieces = EncodedText(as_records(known, model.reset_id), initial.vocabulary)
    # Of bytes: pieces may be cut inside characters, so their own number of characters is wrong.
    nats = evaluate(model, pieces).nats_sum / (len(pieces.ids) - 1) * corpus.symbols_per_char
    shares = np.bincount(known) / len(known)
    shares = shares[shares > 0]
    frequency_nats = -float((shares * np.log(shares)).sum()) * corpus.symbols_per_char
    own_nats = initial.progress.get("best_nats") or _USUAL * frequency_nats
    if frequency_nats <= own_nats:
        return 1.0
    unknown = (nats - own_nats) / (frequency_nats - own_nats)
    new_characters = 1 - len(known) / len(text)
    return new_characters + (1 - new_characters) * min(max(unknown, 0.0), 1.0)


def rate_factor(unknown: float, initial: Checkpoint, candidate: Candidate) -> float:
    """Learning rate relative to the rate for random weights. unknown: see `unknown_share`.

    On a familiar text a high rate first makes the weights worse. A run `_LONGER` times as long as the runs before it
    makes up for that, and gets the rate for random weights.
    """
    chars = candidate.updates * candidate.chars_per_update
    share = chars / max(_LONGER * initial.trained_symbols, 1.0)
    return max(unknown, min(share, 1.0) ** _POWER)
