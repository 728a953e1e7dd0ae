"""Judge exercises that were handed in, for teachers.

    python learn/grade.py handed-in/*.py

A file belongs to the exercise whose name its own contains: anna_03_top_k.py. The program runs the code in the files,
each in a process of its own, for a minute at most. Exit code 0 if all are right, else 1.
"""

import contextlib
import runpy
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "exercises"))
from checking import CHECKS, check_of, judge

MOST_S = 60


def grade(file):
    """Whether all of a file is right, and the verdict in words."""
    command = [sys.executable, __file__, "--one", str(file)]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=MOST_S)
    except subprocess.TimeoutExpired:
        return False, f"{file.name}: runs for more than {MOST_S} s"
    return done.returncode == 0 and bool(done.stdout), done.stdout.rstrip() or f"{file.name}: ends before its check"


def grade_here(file):
    """The same, in this process."""
    if not check_of(file):
        known = ", ".join(sorted(check.stem for check in CHECKS.glob("[0-9]*.py")))
        return False, f"{file.name}: belongs to no exercise; allowed: a name that contains one of {known}"
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what the learner prints
            return judge(file, runpy.run_path(str(file)))
    except (Exception, SystemExit) as error:  # whatever a learner's file may do
        return False, f"{file.name}: cannot be run ({type(error).__name__}: {error})"


if __name__ == "__main__":
    if not CHECKS.exists():
        sys.exit(f"{CHECKS}: no such folder; it holds the checks, put it back")
    if not sys.argv[1:]:
        sys.exit(__doc__)
    if sys.argv[1] == "--one":
        is_right, verdict = grade_here(Path(sys.argv[2]))
        print(verdict)
        sys.exit(0 if is_right else 1)
    are_right = True
    for name in sys.argv[1:]:
        is_right, verdict = grade(Path(name))
        print(verdict)
        are_right &= is_right
    sys.exit(0 if are_right else 1)
