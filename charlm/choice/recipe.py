"""The settings of a run, from its model, how much it reads, and how long that takes."""

import copy
import math
from dataclasses import dataclass
from typing import Any

from charlm.choice.families import Candidate
from charlm.choice.rule import DROPOUT_PASSES, Reading, dropout, regularization

_LEAST_VALID, _MOST_VALID = 5_000, 250_000
_SHORT = 2000
"""Updates of a short run."""
_EVALUATION = 0.2
"""Time to evaluate a character relative to training on it."""
_EVALUATIONS, _EVALUATIONS_SHARE = 20, 0.06
"""How many evaluations to make at most, and the share of the time that all may take."""
_EVALUATED_MINUTES = 0.5
"""Shorter runs are evaluated at their end only."""
_READ_AT, _FEW_EPOCHS = 0.9, 3.0
"""Share of a run after which a pass ends with the text, if it makes fewer passes than this."""
_RATES = {"sgd": 25.0, "rmsprop": 1 / 3, "adagrad": 5.0}
"""Learning rates relative to AdamW's, of optimizers that need others."""


@dataclass(frozen=True)
class Run:
    """What a run will do."""

    candidate: Candidate
    reading: Reading
    valid_chars: int
    update_s: float
    minutes: float
    split: list[float] | None
    """Shares for training, validation and test; None if the user gives them."""
    max_epochs: float | None
    """Passes after which the text can teach no more; None if the time ends before."""

    @property
    def chars_per_s(self) -> float:
        return self.reading.chars / self.reading.updates / self.update_s


def valid_chars(chars: int, chars_read: int) -> int:
    """Characters for validation: enough to be trusted, but not more than evaluations have time for."""
    most = min(_MOST_VALID, max(_LEAST_VALID, chars_read // 5))
    return int(min(max(0.1 * chars, _LEAST_VALID), most, 0.2 * chars))


def complete(run: Run) -> tuple[dict[str, Any], dict[str, str]]:
    """All settings of a run, without the user's, and comments on them: option → why it has its value."""
    reading, updates, update_s = run.reading, run.reading.updates, run.update_s
    settings = copy.deepcopy(run.candidate.settings)
    if run.split:
        settings["data"]["split"] = run.split
    if updates < run.candidate.family.forget_bias_updates:
        settings["model"]["cell"]["forget_bias"] = 1.0
    strength = regularization(run.candidate.parameters, reading)
    settings["model"]["dropout"] = dropout(strength, run.candidate.config.model.layers)
    eval_every = _eval_every(run)
    evaluations = updates // eval_every if eval_every else 0
    is_text = run.candidate.config.data.unit == "text"  # a line begins with the zero state in any case
    settings["train"] |= {
        **({"reset_state": 0.01} if is_text else {}),
        **({"read_share": share} if is_text and (share := _read_share(reading.epochs)) < 1 else {}),
        "ema": round(min(max(1 - 25 / updates, 0.9), 0.9999), 5),
        "activation_penalty": round(min(max(updates / 10_000, 0.5), 1.0), 2),
        "max_minutes": run.minutes,
        **({"max_epochs": run.max_epochs} if run.max_epochs else {}),
        "log_every": _round_up(min(2 / update_s, updates / 20)),
        "eval_every": eval_every,
        "save_every": _round_up(min(120 / update_s, updates)),
        "sample_every": _round_up(max(updates / 5, 20 / update_s)) if run.minutes >= 1 else 0,
        **({"patience": evaluations // 2} if evaluations >= 10 else {}),
        "on_divergence": "rollback",
    }
    settings["optimizer"] |= _optimizer(run)
    return settings, _comments(run, settings)


def _optimizer(run: Run) -> dict[str, Any]:
    """Learning rate, decay, clipping and schedule, as far as they fit the optimizer, which may be the user's."""
    name, updates = run.candidate.config.optimizer.name, run.reading.updates
    warmup_steps = max(min(100, updates // 20), 1)
    found: dict[str, Any] = {"clip_norm": 10.0, "lr": _learning_rate(run)}
    found["weight_decay"] = 0.1 if name in ("adamw", "muon") else 0.0  # for the others it is a penalty
    if name == "adamw" and updates < _SHORT:
        found["betas"] = [0.9, 0.98]
    final_fraction = 0.0 if updates < _SHORT else 0.02
    found["schedule"] = {
        "name": "linear" if updates < _SHORT else "cosine",
        "warmup_steps": warmup_steps,
        "final_fraction": final_fraction,
    }
    return found


def _learning_rate(run: Run) -> float:
    """Grows with the root of the batch, at most to the double; falls with the width and the number of updates."""
    family, train, updates = run.candidate.family, run.candidate.config.train, run.reading.updates
    optimizer = _RATES.get(run.candidate.config.optimizer.name, 1.0)
    batch = min(math.sqrt(train.batch_size * train.bptt / 1024), 2.0)
    width = family.width_factor(run.candidate.config.model.cell.hidden)
    length = min(20_000 / updates, 1.0) ** 0.2 * min(max(1000 / updates, 1.0) ** 0.5, family.short_lr)
    return float(f"{optimizer * family.lr * batch * width * length:.2g}")


def _read_share(epochs: float) -> float:
    """Share of the text that each pass reads, so that a run of few passes ends with a pass.

    It has then seen all parts of the text, and the end when the learning rate is low. A text changes from its beginning
    to its end, where the validation part is.
    """
    passes = _READ_AT * epochs
    return float(f"{passes / math.ceil(passes):.3g}") if epochs < _FEW_EPOCHS else 1.0


def _eval_every(run: Run) -> int:
    """Updates between two evaluations, so that all take their share of the time; 0: only at the end."""
    updates = run.reading.updates
    if not run.valid_chars or run.minutes < _EVALUATED_MINUTES:
        return 0
    each_s = _EVALUATION * run.valid_chars / run.chars_per_s
    evaluations = min(_EVALUATIONS, int(_EVALUATIONS_SHARE * updates * run.update_s / each_s))
    return _round_up(updates / evaluations) if evaluations > 1 else 0


def _round_up(number: float) -> int:
    """The next whole number of two digits and zeros."""
    number = max(math.ceil(number), 1)
    unit = 10 ** max(len(str(number)) - 2, 0)
    return math.ceil(number / unit) * unit


def _comments(run: Run, settings: dict[str, Any]) -> dict[str, str]:
    reading, train = run.reading, run.candidate.config.train
    reasons = {
        "data.source": "",
        "data.split": f"training, validation, test; about {reading.train_chars:,} characters to learn from",
        "model.cell.hidden": "",
        "model.cell": f"{run.candidate.parameters:,} parameters",
        "model.layers": "",
        "model.embedding": "",
        "model.dropout": f"about {reading.epochs:.1f} passes over the text; more passes, up to {DROPOUT_PASSES:.0f}, "
        "need more dropout",
        "train.batch_size": "streams of the text that are read side by side",
        "train.bptt": "characters per window; gradients flow back this far",
        "train.reset_state": "samples start from the zero state, so train it too",
        "train.read_share": "a pass reads pieces from all over the text: there is no time for all of it",
        "train.ema": "a running average of the weights is scored and sampled",
        "train.activation_penalty": "keeps outputs small; more for longer runs",
        "train.max_minutes": f"about {reading.updates:,} updates, {run.chars_per_s:,.0f} characters/s on this machine",
        "train.max_epochs": "more passes would teach little",
        "train.log_every": "steps",
        "train.eval_every": "all evaluations together take a few percent of the time",
        "train.save_every": "every two minutes or so",
        "train.sample_every": "a few samples while it trains",
        "train.patience": "evaluations without improvement before the run stops",
        "train.on_divergence": "go back to the last checkpoint and halve the learning rate",
        "optimizer.name": "",
        "optimizer.lr": "higher for larger batches and short runs, lower for wide models and long runs",
        "optimizer.weight_decay": "",
        "optimizer.clip_norm": "the loss is a sum over the window, so this is not large" if train.loss == "sum" else "",
        "optimizer.schedule": "the learning rate follows the clock to the end of the run",
    }
    last = {"train.loss": f"of {train.bptt} characters read, only the last is learned"} if train.loss == "last" else {}
    return {key: reason for key, reason in reasons.items() if _has(settings, key)} | last


def _has(settings: dict[str, Any], key: str) -> bool:
    """Whether the settings have a value above 0 for the option, or are about its section."""
    value: Any = settings
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value not in (None, 0)
