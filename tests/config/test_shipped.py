"""The configs of configs/: one purpose each, and a first line that says it."""

import itertools
from pathlib import Path

import pytest

from charlm.config import load_config

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))


def test_no_two_have_the_same_settings():
    configs = {file.stem: load_config(file) for file in CONFIGS}
    assert [pair for pair in itertools.combinations(configs, 2) if configs[pair[0]] == configs[pair[1]]] == []


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_the_first_line_is_one_sentence(file):
    first = file.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# ")
    assert first.endswith(".")
    assert 20 < len(first) <= 120
