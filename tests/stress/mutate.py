"""Puts faults into copies of the checkout, one at a time, and tells which tests catch each.

python tests/stress/mutate.py                      every fault of tests/stress/mutations, by the tests it names
python tests/stress/mutate.py --only optimizer     those whose title, file or list contains a word
python tests/stress/mutate.py --check              whether each fits its file; runs no test

A fault is some lines of one file and what replaces them. The tests that should catch it follow its title:

    == charlm/training/optimizer.py: the decay ignores the learning rate
    ? training/test_optimizer.py::test_decay
    -        factor = 1 - lr * decay
    +        factor = 1 - decay

The lines must occur once in the file, and Python must still compile. The exit code is 1 if a fault survives or does not
fit its file.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LISTS = Path(__file__).parent / "mutations"
LIMIT_S = 1200
"""A fault that makes the tests hang is caught, too."""


@dataclass(frozen=True)
class Mutation:
    """A fault; `area` is the name of its list."""

    area: str
    path: str
    title: str
    tests: list[str]
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
            tests = [f"tests/{line[2:]}" for line in lines if line.startswith("? ")]
            before = [line[1:] for line in lines if line.startswith("-")]
            after = [line[1:] for line in lines if line.startswith("+")]
            yield Mutation(file.stem, path, title, tests, "\n".join(before), "\n".join(after))


def mutated(mutation: Mutation) -> str:
    """The file's text with the fault; ValueError unless its lines occur once and its tests exist, or SyntaxError."""
    if not mutation.tests:
        raise ValueError("it names no test")
    for test in mutation.tests:
        file, _, function = test.partition("::")
        if f"def {function}" not in (ROOT / file).read_text(encoding="utf-8"):
            raise ValueError(f"there is no test {test}")
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


def catching_test(mutation: Mutation, checkout: Path) -> str:
    """The first test that fails with the fault, and passes without it; "" if none does."""
    file = checkout / mutation.path
    original = file.read_text(encoding="utf-8")
    file.write_text(mutated(mutation), encoding="utf-8")
    try:
        test = first_failure(mutation.tests, checkout)
    finally:
        file.write_text(original, encoding="utf-8")
    fails_anyway = "::" in test and first_failure([test], checkout)
    return "" if fails_anyway else test


def first_failure(tests: list[str], checkout: Path) -> str:
    """Its name; "" if all tests pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        command, cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            out, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            return f"took over {LIMIT_S} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode in (0, 5):  # passed, or none left
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", out, re.MULTILINE)
    return found[1] if found else f"exit code {process.returncode}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="faults whose title, file or list contains this")
    parser.add_argument("--copies", type=int, default=2, help="faults tried at once")
    parser.add_argument("--check", action="store_true", help="run no test")
    options = parser.parse_args()
    chosen = [mutation for mutation in read_mutations() if options.only in f"{mutation.area} {mutation.name}"]
    unfit = []
    for mutation in chosen:
        try:
            mutated(mutation)
        except (ValueError, SyntaxError, OSError) as error:
            unfit.append(f"{mutation.name}: {error}")
    if unfit:
        sys.exit("\n".join(unfit))
    print(*(f"{area:10} {count:4}" for area, count in Counter(one.area for one in chosen).items()), sep="\n")
    if not options.check:
        with ThreadPoolExecutor(options.copies) as pool:
            parts = pool.map(survivors, [chosen[number :: options.copies] for number in range(options.copies)])
            survived = [name for part in parts for name in part]
        sys.exit("\n".join(["survived:", *survived]) if survived else 0)


def survivors(mutations: list[Mutation]) -> list[str]:
    """The names of those that no test catches."""
    survived = []
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder, "checkout")
        copy_checkout(checkout)
        for mutation in mutations:
            test = catching_test(mutation, checkout)
            print(f"{mutation.area:8} {mutation.name}\n         {test or 'SURVIVED'}", flush=True)
            if not test:
                survived.append(mutation.name)
    return survived


if __name__ == "__main__":
    main()
