"""The settings of a run, from its model, how much it reads, and how long that takes."""

import copy
import math
from dataclasses import dataclass
from typing import Any

from charlm.choice.families import Candidate
from charlm.choice.rule import Reading, dropout, regularization

_LEAST_VALID, _MOST_VALID = 5_000, 250_000
_EVALUATION = 0.2
"""Time to evaluate a character over the time to train on it."""
_EVALUATIONS = 0.06
"""Share of the time that all evaluations together may take."""


@dataclass(frozen=True)
class Plan:
    """What a run will do."""

    candidate: Candidate
    reading: Reading
    valid_chars: int
    update_s: float
    minutes: float
    max_epochs: float | None
    """Passes after which the text can teach no more; None if the time ends before."""

    @property
    def chars_per_s(self) -> float:
        return self.reading.chars / self.reading.updates / self.update_s


def valid_chars(chars: int, chars_read: int) -> int:
    """Characters for validation: enough to be trusted, but not more than evaluations have time for."""
    most = min(_MOST_VALID, max(_LEAST_VALID, chars_read // 5))
    return int(min(max(0.1 * chars, _LEAST_VALID), most, 0.2 * chars))


def complete(plan: Plan) -> tuple[dict[str, Any], dict[str, str]]:
    """All settings of a run, without overrides, and comments on them: option → why it has its value."""
    reading, updates, update_s = plan.reading, plan.reading.updates, plan.update_s
    chars = reading.train_chars + plan.valid_chars
    share = float(f"{plan.valid_chars / chars:.2g}")
    strength = regularization(plan.candidate.parameters, reading)
    evaluations = _evaluations(plan)
    settings = copy.deepcopy(plan.candidate.settings)
    settings["data"]["split"] = [round(1 - share, 8), share, 0.0]
    settings["model"]["dropout"] = dropout(strength, plan.candidate.family.layers)
    settings["train"] |= {
        "reset_state": 0.01,
        "ema": round(min(max(1 - 25 / updates, 0.9), 0.9999), 5),
        "activation_penalty": round(min(max(updates / 10_000, 0.25), 1.0), 2),
        "max_minutes": plan.minutes,
        **({"max_epochs": plan.max_epochs} if plan.max_epochs else {}),
        "log_every": _round(min(2 / update_s, updates / 20)),
        "eval_every": _round(updates / evaluations) if evaluations > 1 else 0,
        "save_every": _round(min(120 / update_s, updates)),
        "sample_every": _round(max(updates / 5, 20 / update_s)) if plan.minutes >= 1 else 0,
        "patience": evaluations // 2 if evaluations >= 10 else 0,
        "on_divergence": "rollback",
    }
    settings["optimizer"] |= {"lr": _learning_rate(plan), "weight_decay": 0.1, "clip_norm": 10.0, **_schedule(updates)}
    return settings, _comments(plan)


def _schedule(updates: int) -> dict[str, Any]:
    """Short runs take short averages of the gradient, and end at 0."""
    warmup_steps = max(min(100, updates // 20), 1)
    if updates < _SHORT:
        return {
            "betas": [0.9, 0.98],
            "schedule": {"name": "linear", "warmup_steps": warmup_steps, "final_fraction": 0.0},
        }
    return {"schedule": {"name": "cosine", "warmup_steps": warmup_steps, "final_fraction": 0.02}}


_SHORT = 2000
"""Updates."""


def _learning_rate(plan: Plan) -> float:
    """Grows with the root of the batch; falls with the width and the number of updates."""
    family, train = plan.candidate.family, plan.candidate.config.train
    rate = family.lr * math.sqrt(train.batch_size * train.bptt / 1024)
    rate *= min(1.0, family.lr_hidden / plan.candidate.config.model.cell.hidden)
    rate *= min(1.0, 20_000 / plan.reading.updates) ** 0.2
    rate *= min(max(1000 / plan.reading.updates, 1.0) ** 0.5, 1.5)
    return float(f"{rate:.2g}")


def _evaluations(plan: Plan) -> int:
    """How many evaluations fit into their share of the time, 20 at most."""
    each_s = _EVALUATION * plan.valid_chars / plan.chars_per_s
    return max(1, min(20, int(_EVALUATIONS * plan.reading.updates * plan.update_s / each_s)))


def _round(number: float) -> int:
    """The next round number below: 1, 2 or 5 times a power of ten."""
    number = max(number, 1)
    power = 10 ** math.floor(math.log10(number))
    return int(power * max(step for step in (1, 2, 5) if step * power <= number))


def _comments(plan: Plan) -> dict[str, str]:
    reading = plan.reading
    return {
        "data.source": "",
        "data.split": f"training, validation, test; about {reading.train_chars:,} characters to learn from",
        "model.cell.hidden": "",
        "model.cell": f"{plan.candidate.parameters:,} parameters",
        "model.layers": "",
        "model.embedding": "",
        "model.dropout": f"about {reading.epochs:.1f} passes over the text; more passes need more dropout",
        "train.batch_size": "streams of the text that are read side by side",
        "train.bptt": "characters per window; gradients flow back this far",
        "train.reset_state": "samples start from the zero state, so train it too",
        "train.ema": "a running average of the weights is scored and sampled",
        "train.activation_penalty": "keeps outputs small; more for longer runs",
        "train.max_minutes": f"about {reading.updates:,} updates, {plan.chars_per_s:,.0f} characters/s on this machine",
        **({"train.max_epochs": "more passes would teach little"} if plan.max_epochs else {}),
        "train.log_every": "steps",
        "train.eval_every": "all evaluations together take a few percent of the time",
        "train.save_every": "about every two minutes",
        "train.sample_every": "a few samples while it trains",
        "train.patience": "stop after so many evaluations in a row that were no better",
        "train.on_divergence": "go back to the last checkpoint and halve the learning rate",
        "optimizer.name": "",
        "optimizer.lr": "higher for larger batches and short runs, lower for wide models and long runs",
        "optimizer.weight_decay": "",
        "optimizer.clip_norm": "the loss is a sum over the window, so this is not large",
        "optimizer.schedule": "the learning rate follows the clock to the end of the run",
    }
