"""Fixtures for tests of commands."""

import shutil
from pathlib import Path

import pytest

from tests.conftest import TINY
from tests.text import words_text

SETTINGS = ["model.cell.hidden=24", "optimizer.lr=0.02", "train.bptt=16", "train.log_every=100", "train.eval_every=200"]


@pytest.fixture
def copied_run(trained_run: Path, tmp_path: Path) -> Path:
    """A run of this test's own, in the place where its config says its text is."""
    return shutil.copytree(trained_run, tmp_path / "run")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speeds that take no time to measure."""
    monkeypatch.setattr("charlm.training.plan._MEASURE_S", 0.01)
    monkeypatch.setattr("charlm.choice.speed.measure", lambda config, *_: 1e-8 * config.model.cell.hidden**2)


def train(folder: Path, text: str, *settings: str) -> Path:
    """A run of the tiny config, altered by settings, on the text beside it."""
    from charlm.config import load_config
    from charlm.training.start import start_run

    (folder / "text.txt").write_text(text, encoding="utf-8")
    (folder / "tiny.yaml").write_text(TINY.format(source=folder / "text.txt"), encoding="utf-8")
    start_run(load_config(folder / "tiny.yaml", settings), folder / "run")
    return folder / "run"


@pytest.fixture(scope="session")
def members_run(tmp_path_factory: pytest.TempPathFactory, compiled: Path) -> Path:
    """A run of a model of two members, to read only."""
    return train(tmp_path_factory.mktemp("members"), words_text(20_000), "model.members=2", "model.layers=2")
