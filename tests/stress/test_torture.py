"""The short form of scripts/torture."""

import pytest

from tests.stress.torture import kill_and_compare


@pytest.mark.slow
@pytest.mark.usefixtures("kernels")
def test_a_run_killed_again_and_again_ends_as_if_left_alone():
    assert kill_and_compare(kills=4, seed=2, unit="text") == []
