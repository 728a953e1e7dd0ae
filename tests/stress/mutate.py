"""Puts faults into a copy of the checkout, one at a time, and tells which test catches each.

python tests/stress/mutate.py                      every fault of tests/stress/mutations
python tests/stress/mutate.py --only optimizer     those whose title, file or list contains a word
python tests/stress/mutate.py --narrow             by the likeliest tests alone
python tests/stress/mutate.py --check              whether each fits its file; runs no test

A fault is some lines of one file and what replaces them:

    == charlm/training/optimizer.py: the decay ignores the learning rate
    -        factor = 1 - lr * decay
    +        factor = 1 - decay

The lines must occur once in the file, and Python must still compile. caught.json remembers the test that caught a
fault; it is tried first, then the tests with the name of the file, those of its folder, and all. The exit code is 1 if
a fault survives or does not fit its file.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[2]
LISTS = Path(__file__).parent / "mutations"
CAUGHT = LISTS / "caught.json"
LIMIT_S = 1800
"""A fault that makes the tests hang is caught, too."""
TESTS_OF = {
    "charlm/api.py": "test_api.py",
    "charlm/checkpoint.py": "checkpoint",
    "charlm/comparison": "test_comparison.py",
    "charlm/data/corpus.py": "data training/test_resume.py",
    "charlm/data/streams.py": "data training/test_step.py",
    "charlm/gpu": "gpu",
    "charlm/layers": "cells",
    "charlm/model": "test_model.py",
    "charlm/model/members.py": "test_members.py",
    "charlm/new_run.py": "cli",
    "charlm/native": "native cells",
    "charlm/native/generate.h": "inference",
    "charlm/runs.py": "checkpoint cli/test_runs.py",
    "charlm/system/lock.py": "training/test_faults.py training/test_start.py",
    "charlm/system/process_group.py": "training/test_processes.py",
    "charlm/system/section.py": "config",
    "charlm/web/look": "look",
    "charlm/web/model": "export",
    "charlm/web/report": "report",
    "charlm/web/shared": "look report export",
}
"""The tests of a file or folder, if they are not in the folder of its name."""


@dataclass(frozen=True)
class Mutation:
    """A fault; `area` is the name of its list."""

    area: str
    path: str
    title: str
    before: str
    after: str

    @property
    def name(self) -> str:
        return f"{self.path}: {self.title}"


def read_mutations() -> Iterator[Mutation]:
    for file in sorted(LISTS.glob("*.txt")):
        for block in file.read_text(encoding="utf-8").split("\n== ")[1:]:
            head, *lines = block.rstrip("\n").split("\n")
            path, title = head.split(": ", 1)
            before = [line[1:] for line in lines if line.startswith("-")]
            after = [line[1:] for line in lines if line.startswith("+")]
            yield Mutation(file.stem, path, title, "\n".join(before), "\n".join(after))


def mutated(mutation: Mutation) -> str:
    """The file's text with the fault; ValueError unless its lines occur once, SyntaxError where Python has one then."""
    text = f"\n{(ROOT / mutation.path).read_text(encoding='utf-8')}\n"
    before = f"\n{mutation.before}\n"
    if text.count(before) != 1:
        raise ValueError(f"its lines occur {text.count(before)} times, not once")
    changed = text.replace(before, f"\n{mutation.after}\n" if mutation.after else "\n")[1:-1]
    if mutation.path.endswith(".py"):
        compile(changed, mutation.path, "exec", dont_inherit=True)
    return changed


def copy_checkout(folder: Path) -> None:
    """The files that git tracks, as they are in the checkout."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    shared = ROOT.parent / "shared"
    if shared.exists():
        (folder.parent / "shared").symlink_to(shared)


def candidates(mutation: Mutation, known: str, checkout: Path, *, narrow: bool) -> Iterator[list[str]]:
    """Tests for pytest, the likeliest to find the fault first. known: the test that caught it last."""
    if known and (checkout / known.split("::")[0]).exists():
        yield [known]
    path = Path(mutation.path)
    folder = Path("tests", path.parts[1])
    named = [TESTS_OF[part] for part in map(str, (path, *path.parents)) if part in TESTS_OF]
    likely = [folder / f"test_{path.stem}.py", *(Path("tests", test) for tests in named[:1] for test in tests.split())]
    for tests in likely if named else [*likely, folder]:
        if (checkout / tests).exists():
            yield [str(tests)]
    if not narrow:
        yield ["tests"]


def catching_test(mutation: Mutation, known: str, checkout: Path, *, narrow: bool) -> str:
    """The first test that fails with the fault, and passes without it; "" if none does."""
    file = checkout / mutation.path
    original = file.read_text(encoding="utf-8")
    flaky: list[str] = []
    try:
        for arguments in candidates(mutation, known, checkout, narrow=narrow):
            file.write_text(mutated(mutation), encoding="utf-8")
            while test := first_failure([*arguments, *(f"--deselect={name}" for name in flaky)], checkout):
                file.write_text(original, encoding="utf-8")
                if "::" not in test or not first_failure([test], checkout):
                    return test
                flaky.append(test)
                file.write_text(mutated(mutation), encoding="utf-8")
        return ""
    finally:
        file.write_text(original, encoding="utf-8")


def first_failure(arguments: list[str], checkout: Path) -> str:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ended = subprocess.run(
            command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{arguments[0]} (took over {LIMIT_S} s)"
    if ended.returncode in (0, 4, 5):  # passed, or no such test
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", ended.stdout, re.MULTILINE)
    return found[1] if found else f"{arguments[0]} (exit code {ended.returncode})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="faults whose title, file or list contains this")
    parser.add_argument("--copies", type=int, default=2, help="faults tried at once")
    parser.add_argument("--narrow", action="store_true", help="never run all tests; keep what caught.json knows")
    parser.add_argument("--check", action="store_true", help="run no test")
    options = parser.parse_args()
    chosen = [mutation for mutation in read_mutations() if options.only in f"{mutation.area} {mutation.name}"]
    caught: dict[str, str] = json.loads(CAUGHT.read_text()) if CAUGHT.exists() else {}
    missed = []
    for mutation in chosen:
        try:
            mutated(mutation)
        except (ValueError, SyntaxError, OSError) as error:
            missed.append(f"{mutation.name}: {error}")
    names = [mutation.name for mutation in chosen]
    missed += [f"{name}: found twice" for name in {*names} if names.count(name) > 1]
    if missed:
        sys.exit("\n".join(missed))
    if options.check:
        for area, count in Counter(mutation.area for mutation in chosen).items():
            print(f"{area:10} {count:4}")
        return
    survived = []
    with tempfile.TemporaryDirectory() as folder:
        checkouts: SimpleQueue[Path] = SimpleQueue()
        for number in range(options.copies):
            checkout = Path(folder) / str(number) / "checkout"
            copy_checkout(checkout)
            checkouts.put(checkout)

        def attempt(mutation: Mutation) -> str:
            checkout = checkouts.get()
            try:
                return catching_test(mutation, caught.get(mutation.name, ""), checkout, narrow=options.narrow)
            finally:
                checkouts.put(checkout)

        with ThreadPoolExecutor(options.copies) as pool:
            for mutation, test in zip(chosen, pool.map(attempt, chosen), strict=True):
                print(f"{mutation.area:8} {mutation.name}\n         {test or 'SURVIVED'}", flush=True)
                if not test:
                    survived.append(mutation.name)
                if test or not options.narrow:
                    caught[mutation.name] = test
                CAUGHT.write_text(json.dumps(caught, indent=1, sort_keys=True) + "\n")
    sys.exit("\n".join(["survived:", *survived]) if survived else 0)


if __name__ == "__main__":
    main()
