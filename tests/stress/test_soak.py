"""The short form of scripts/soak."""

import sys

import pytest

from tests.stress import soak

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.usefixtures("kernels"),
]


@pytest.mark.slow
def test_memory_and_open_files_do_not_grow_with_the_steps(tmp_path, capsys):
    assert soak.many_steps(tmp_path, 1000) == []
    assert capsys.readouterr().out.startswith("1,000 steps, ")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(tmp_path, capsys):
    assert soak.large_text(tmp_path, gigabytes=0.02) == []
    assert capsys.readouterr().out.startswith("0.02 GB encoded and trained on for 200 steps: ")
