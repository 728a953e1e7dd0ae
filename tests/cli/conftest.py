"""Fixtures for tests of commands."""

from pathlib import Path

import pytest

from tests.conftest import train
from tests.text import words_text

SETTINGS = ["model.cell.hidden=24", "optimizer.lr=0.02", "train.bptt=16", "train.log_every=100", "train.eval_every=200"]


@pytest.fixture(scope="session")
def members_run(tmp_path_factory: pytest.TempPathFactory, compiled: Path) -> Path:
    """A run of a model of two members, to read only."""
    return train(tmp_path_factory.mktemp("members"), words_text(20_000), "model.members=2", "model.layers=2")
