"""What pyproject.toml admits, what the scripts lock, and what they test as oldest belong together."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def pinned(file: str) -> dict[str, str]:
    """Package → version of a file of constraints, which pins every package that it names."""
    lines = Path(ROOT, "scripts", file).read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def bounds(requirements: list[str]) -> dict[str, str]:
    """Package → lowest version, which every requirement has and nothing else but a marker."""
    found = [re.fullmatch(r"([\w-]+)>=([\d.]+)(; .*)?", text) for text in requirements]
    assert all(found), requirements
    return {match[1]: match[2] for match in found if match}


NEEDED = bounds(PROJECT["dependencies"])
EXTRAS = bounds([text for extra in PROJECT["optional-dependencies"].values() for text in extra])


def test_the_oldest_versions_tested_are_the_lower_bounds():
    oldest = pinned("constraints-oldest.txt")
    assert NEEDED.keys() <= oldest.keys()
    for name, version in oldest.items():
        if name != "torch":  # older ones are not to be had everywhere
            assert release(version) == release((NEEDED | EXTRAS)[name]), name


# A PyTorch built for CUDA pins Triton itself.
@pytest.mark.parametrize("name", [name for name in NEEDED | EXTRAS if name != "triton"])
def test_the_lock_is_within_the_bounds(name):
    assert release(pinned("constraints.txt")[name]) >= release((NEEDED | EXTRAS)[name])


def release(version: str) -> tuple[int, ...]:
    """2.10.0 and 2.10 alike."""
    numbers = [int(number) for number in version.split(".")]
    return tuple(numbers + [0] * (4 - len(numbers)))
