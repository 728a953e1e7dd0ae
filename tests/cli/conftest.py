"""Fixtures for tests of commands."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def copied_run(trained_run: Path, tmp_path: Path) -> Path:
    """A run of this test's own, in the place where its config says its text is."""
    return shutil.copytree(trained_run, tmp_path / "run")
