"""Judge exercises that were handed in, for teachers.

    python learn/grade.py handed-in/*.py

A file belongs to the exercise whose name its own contains: anna_03_top_k.py. The program runs the code in the files.
Exit code 0 if all are right, else 1.
"""

import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "exercises"))
from checking import CHECKS, check_of, judge


def grade(file):
    """Whether all of it is right, and the verdict in words."""
    if not check_of(file):
        known = ", ".join(sorted(check.stem for check in CHECKS.glob("[0-9]*.py")))
        return False, f"{file.name}: belongs to no exercise; allowed: a name that contains one of {known}"
    try:
        return judge(file, runpy.run_path(str(file)))
    except (Exception, SystemExit) as error:  # whatever a learner's file may do
        return False, f"{file.name}: cannot be run ({type(error).__name__}: {error})"


if __name__ == "__main__":
    if not CHECKS.exists():
        sys.exit(f"{CHECKS}: no such folder; it holds the checks, put it back")
    if not sys.argv[1:]:
        sys.exit(__doc__)
    are_right = True
    for name in sys.argv[1:]:
        is_right, verdict = grade(Path(name))
        print(verdict)
        are_right &= is_right
    sys.exit(0 if are_right else 1)
