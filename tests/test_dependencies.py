"""What pyproject.toml admits, what the scripts lock, and what they test as oldest belong together."""

import re
import tomllib

from packaging.version import Version

from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def pinned(file: str) -> dict[str, Version]:
    """Package → version of a file of constraints, which pins every package that it names."""
    lines = (ROOT / "scripts" / file).read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {name: Version(version) for name, version in pairs}


def bounds(requirements: list[str]) -> dict[str, Version]:
    """Package → lowest version, which every requirement has and nothing else but a marker."""
    found = [re.fullmatch(r"([\w-]+)>=([\d.]+)(; .*)?", text) for text in requirements]
    assert all(found), requirements
    return {match[1]: Version(match[2]) for match in found if match}


NEEDED = bounds(PROJECT["dependencies"])
EXTRAS = bounds([text for extra in PROJECT["optional-dependencies"].values() for text in extra])


def test_the_oldest_versions_tested_are_the_lower_bounds():
    oldest = pinned("constraints-oldest.txt")
    assert NEEDED.keys() <= oldest.keys()
    del oldest["torch"]  # older ones are not to be had everywhere
    assert oldest == {name: (NEEDED | EXTRAS)[name] for name in oldest}


def test_the_lock_is_within_the_bounds():
    locked = pinned("constraints.txt")
    for name, lowest in (NEEDED | EXTRAS).items():
        assert name == "triton" or locked[name] >= lowest  # a PyTorch built for CUDA pins Triton itself
