"""Runs that the tests of `charlm report` share."""

import json
import shutil
from pathlib import Path

import pytest

from charlm.runs import BEST, FOLDER, read_header
from tests.cli.test_runs import forge


def train_row(step: int, nats: float = 2.0, **others: object) -> dict:
    row = {"step": step, "chars": 40 * step, "split": "train", "nats": nats, "lr": 1e-3, "grad_norm": 1.5}
    return row | {"chars_per_s": 1000.0, "elapsed_s": step / 10} | others


@pytest.fixture
def run_of(trained_run, tmp_path):
    """A copy of a run with other rows in its metrics and samples; text stands as it is."""

    def make(name: str, rows: list | None = None, samples: list | None = None) -> Path:
        folder = shutil.copytree(trained_run, tmp_path / name)
        for file, lines in (("metrics.jsonl", rows), ("samples.jsonl", samples)):
            if lines is not None:
                texts = [line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines]
                (folder / file).write_text("".join(texts), encoding="utf-8")
        return folder

    return make


@pytest.fixture
def learning(run_of):
    """A run of 200 rows whose loss falls, with a rollback."""

    def make(name: str = "learning", best: float = 1.0) -> Path:
        rows = [train_row(step, best + 3 / step) for step in range(1, 201)]
        rows += [train_row(step, best + 4 / step, split="valid", grad_norm=None) for step in range(50, 201, 50)]
        rows.append({"step": 100, "split": "rollback", "diverged_step": 117, "fault": "loss inf", "lr_factor": 0.5})
        samples = [{"step": step, "text": f"at {step}\r\n<b>\u202e", "bits": [8.0] * 4 + [0.0] * (len(str(step)) + 5)}
                   for step in (50, 100, 150)]  # fmt: skip
        run = run_of(name, rows, samples)
        file = run / FOLDER / BEST
        found, wanted = read_header(file)[1]["best_nats"], min(row["nats"] for row in rows if row["split"] == "valid")
        forge(file, f'\\"best_nats\\": {found}', f'\\"best_nats\\": {wanted}')
        return run

    return make
