"""What two runs are compared by."""

import contextlib
import json
import signal
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from charlm.checkpoint import read_checkpoint
from charlm.config import parse_config
from charlm.training.metrics import train_row
from charlm.training.step import Trainer

TIMES = {"elapsed_s", "chars_per_s"}


def rows(run: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def untimed(run: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows(run)]


def assert_same_checkpoint(one: Path, other: Path) -> None:
    a, b = read_checkpoint(one), read_checkpoint(other)
    for group in ("weights", "averaged", "optimizer", "carried"):
        ours, theirs = getattr(a, group), getattr(b, group)
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert torch.equal(ours[name], theirs[name]), f"{group} {name}"
    ours, theirs = ({k: v for k, v in each.progress.items() if not k.endswith("_s")} for each in (a, b))
    assert ours == theirs


def contents(run: Path):
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}


def with_max_steps(steps):
    return lambda saved: parse_config(saved.model_dump(mode="json"), "saved", {"train.max_steps": steps})


@contextlib.contextmanager
def before_updates(step, happen, times=1):
    """Calls a function with the trainer before the update that follows `step` updates; again after a rollback."""
    update, calls = Trainer.update, []

    def updated(trainer):
        if trainer.state.step == step and len(calls) < times:
            calls.append(step)
            happen(trainer)
        update(trainer)

    with mock.patch.object(Trainer, "update", updated):
        yield


def interrupted_after(steps, number=signal.SIGINT):
    """Sends this process a signal during update `steps`."""
    return before_updates(steps - 1, lambda _: signal.raise_signal(number))


def row_of(trainer: Trainer) -> dict[str, Any]:
    """The metrics since the trainer's last row."""
    return train_row(trainer.state, trainer.config.train, trainer.corpus.symbols_per_char)
