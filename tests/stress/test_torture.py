"""The short form of scripts/torture."""

import pytest

from tests.stress.torture import kill_and_compare


@pytest.mark.usefixtures("kernels")
def test_a_run_killed_again_and_again_ends_as_if_left_alone(request):
    assert kill_and_compare(kills=2 if request.config.getoption("--quick") else 4, seed=2, unit="text") == []
