"""Only one process at a time may write into a run."""

import os
import re
import subprocess
import sys

import pytest

from charlm.errors import RunError
from charlm.system.lock import locked
from charlm.training.start import resume_run, start_run
from tests.runs import contents, with_max_steps


def test_a_second_process_is_refused_and_told_of_the_first(tmp_path, config_of):
    run = tmp_path / "run"
    start_run(config_of(), run)
    before = contents(run)
    with locked(run):
        for again in (lambda: start_run(config_of(), run), lambda: resume_run(run, with_max_steps(20))):
            with pytest.raises(RunError) as caught:
                again()
            assert re.fullmatch(
                rf"{run}: in use by process {os.getpid()} on \S+ since [-\d]+ [:\d]+; allowed: one process at a time; "
                "wait for it or stop it, or take another --run-dir",
                str(caught.value),
            )
    assert contents(run) == before
    assert resume_run(run, with_max_steps(14)).step == 14


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path):
    program = (
        "import sys, time; from pathlib import Path; from charlm.system.lock import locked\n"
        "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(RunError, match=f"in use by process {process.pid} on "), locked(tmp_path):
            pass
        process.kill()
    with locked(tmp_path):
        pass
