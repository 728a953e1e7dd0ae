"""Fixtures for tests of commands."""

import random
import shutil
from pathlib import Path

import pytest

from tests.conftest import TINY
from tests.text import words_text

LINES = ["anna", "hanna", "johanna", "ann", "joan", "nora", "jo", ""]
LABELED = {"it": ["maria", "luca", "paola"], "de": ["hans", "ulrich", "gerd"]}
SETTINGS = ["model.cell.hidden=24", "optimizer.lr=0.02", "train.bptt=16", "train.log_every=100", "train.eval_every=200"]


@pytest.fixture
def copied_run(trained_run: Path, tmp_path: Path) -> Path:
    """A run of this test's own, in the place where its config says its text is."""
    return shutil.copytree(trained_run, tmp_path / "run")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speeds that nothing measures."""
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
def bytes_run(tmp_path_factory: pytest.TempPathFactory, compiled: Path) -> Path:
    """A run of a model of bytes, to read only."""
    return train(tmp_path_factory.mktemp("bytes"), words_text(20_000), "data.level=byte")


@pytest.fixture(scope="session")
def members_run(tmp_path_factory: pytest.TempPathFactory, compiled: Path) -> Path:
    """A run of a model of two members, to read only."""
    return train(tmp_path_factory.mktemp("members"), words_text(20_000), "model.members=2", "model.layers=2")


@pytest.fixture(scope="session")
def lines_run(tmp_path_factory: pytest.TempPathFactory, compiled: Path) -> Path:
    """A run on LINES, many times each, which it soon knows by heart; to read only."""
    settings = [*SETTINGS, "data.unit=line", "data.split=[0.6,0.4,0]", "train.max_steps=150"]
    return train(tmp_path_factory.mktemp("lines"), "\n".join(LINES * 40), *settings)


@pytest.fixture(scope="session")
def labels_run(tmp_path_factory: pytest.TempPathFactory, compiled: Path) -> Path:
    """A run on lines of a label in LABELED, a tab and two of its names, which it soon tells apart; to read only.

    "it" is three times as frequent as "de".
    """
    draw = random.Random(1)
    labels = [draw.choice(["it", "it", "it", "de"]) for _ in range(400)]
    text = "".join(f"{label}\t{draw.choice(LABELED[label])} {draw.choice(LABELED[label])}\n" for label in labels)
    settings = [*SETTINGS, "data.unit=line", "data.split=[0.8,0.2,0]"]
    return train(tmp_path_factory.mktemp("labels"), text, *settings, "train.max_steps=200")
