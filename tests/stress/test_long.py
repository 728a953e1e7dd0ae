"""The short forms of scripts/stress torture and scripts/stress soak."""

import sys

import pytest

from tests.stress import soak
from tests.stress.torture import kill_and_compare

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("kernels")]


def test_a_run_killed_again_and_again_ends_as_if_left_alone():
    assert kill_and_compare(kills=4, seed=2, unit="text") == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_and_open_files_grow_neither_with_the_steps_nor_with_the_text(tmp_path, capsys):
    assert soak.many_steps(tmp_path, 1000) == []
    assert soak.large_text(tmp_path, gigabytes=0.02) == []
    steps, text = capsys.readouterr().out.splitlines()
    assert steps.startswith("1,000 steps, ")
    assert text.startswith("0.02 GB encoded and trained on for 200 steps: ")
