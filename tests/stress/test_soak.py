"""scripts/soak, in short."""

import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.usefixtures("kernels")
def test_memory_and_open_files_do_not_grow():
    command = [sys.executable, "tests/stress/soak.py", "--steps", "1000", "--gigabytes", "0.02"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(
        r"1,000 steps, 50 times evaluated, sampled and saved: memory \S+ → \S+ MB, open files \d+ → \d+\n"
        r"0\.02 GB encoded and trained on for 200 steps: \d+ MB\n",
        done.stdout,
    )
