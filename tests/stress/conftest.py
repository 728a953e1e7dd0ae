"""Fixtures for tests that feed odd input."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stress.fuzz import Targets


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory, trained_run: Path) -> Iterator[Targets]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", sys.argv)
        yield Targets(tmp_path_factory.mktemp("input"), trained_run / "checkpoints/last.safetensors")
