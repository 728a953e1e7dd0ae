"""Fixtures for tests of studies."""

import time
from types import SimpleNamespace

import pytest

pytest.importorskip("optuna", reason="no Optuna")

from charlm.config import parse_config
from charlm.errors import DataError
from charlm.tuning import settings
from charlm.tuning.search import Search
from charlm.tuning.settings import choose_settings
from charlm.tuning.study import Study
from tests.text import words_text


@pytest.fixture(autouse=True)
def suggestion(monkeypatch):
    """Replaces what charlm would choose, which takes seconds to measure; by default nothing.

    `choose(request)` returns the sections of a config. Returns the overrides of all requests.
    """
    asked = []

    def replace(choose):
        def suggest(request):
            asked.append(sorted(request.overrides))
            return SimpleNamespace(config=request.config(choose(request)))

        monkeypatch.setattr(settings, "suggest", suggest)
        return asked

    def nothing(request):
        raise DataError("switched off by CHARLM_KERNELS")

    replace(nothing)
    return replace


@pytest.fixture
def config_of(tmp_path):
    """Tiny configs; `train` and `optimizer` are sections."""
    file = tmp_path / "text.txt"
    file.write_text(words_text(3000))

    def build(train=None, optimizer=None, **top):
        raw = {
            "data": {"source": str(file), "split": [0.8, 0.2, 0]},
            "model": {"cell": {"kind": "lstm", "hidden": 8}, "embedding": 4},
            "train": {"batch_size": 4, "bptt": 32, "max_steps": 20, **(train or {})},
            "optimizer": {"lr": 0.02, **(optimizer or {})},
            **{"threads": 1, "precision": "fp32", "device": "cpu", **top},
        }
        return parse_config(raw, "test")

    return build


OVER = ("optimizer.lr=1e-05..0.1:log", "model.dropout.output=0", "model.cell.hidden=8", "train.batch_size=4")


@pytest.fixture
def study_of(tmp_path, config_of, kernels):
    """Studies over the learning rate."""

    def build(name="study", over=OVER, minutes=None, **config):
        return Study(tmp_path / name, lambda: choose_settings(config_of(**config), over, hours=1, minutes=minutes))

    return build


@pytest.fixture
def search():
    """Runs a search; returns how it ended."""

    def run(study, trials, seconds=60):
        return Search(study, time.perf_counter() + seconds, trials).run()

    return run
