"""What two runs are compared by."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import torch

from charlm.checkpoint import read_checkpoint
from charlm.config import parse_config
from charlm.training.metrics import train_row
from charlm.training.step import Trainer

TIMES = {"elapsed_s", "chars_per_s"}


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def untimed(run: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows(run)]


def assert_same_checkpoint(one: Path, other: Path) -> None:
    a, b = read_checkpoint(one), read_checkpoint(other)
    for group in ("weights", "averaged", "optimizer", "carried"):
        ours, theirs = getattr(a, group), getattr(b, group)
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert torch.equal(ours[name], theirs[name]), f"{group} {name}"
    assert {k: v for k, v in a.progress.items() if not k.endswith("_s")} == {
        k: v for k, v in b.progress.items() if not k.endswith("_s")
    }


def contents(run: Path):
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != ".lock"}


def with_max_steps(steps):
    return lambda saved: parse_config(saved.model_dump(mode="json"), "saved", [f"train.max_steps={steps}"])


class interrupted_after:
    """Send this process SIGINT (or another) during the update after `steps` updates."""

    def __init__(self, steps, number=signal.SIGINT):
        self.steps, self.number = steps, number

    def __enter__(self):
        self.update = Trainer.update

        def update(trainer):
            self.update(trainer)
            if trainer.state.step == self.steps:
                os.kill(os.getpid(), self.number)

        Trainer.update = update

    def __exit__(self, *_):
        Trainer.update = self.update


def row_of(trainer: Trainer) -> dict[str, Any]:
    """The metrics since the trainer's last row."""
    return train_row(trainer.state, trainer.config.train)
