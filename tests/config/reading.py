"""How these tests read a config."""

from pathlib import Path

import pytest

from charlm.config import (
    Config,
    parse_config,
)
from charlm.config.yaml import load_yaml
from charlm.errors import ConfigError

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))


def parse(text: str, *overrides: str) -> Config:
    return parse_config(load_yaml(text, "f"), "f", overrides)


def faults(text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as refusal:
        parse(text, *overrides)
    assert str(refusal.value) == "\n".join(refusal.value.faults)
    return list(refusal.value.faults)


KEYS = "data, model, train, optimizer, seed, device, precision, threads"


INTEGER = "an integer ≥ 0 and < 9223372036854775808"


DROPOUT = "a number ≥ 0 and < 1 or a section"


OPTIMIZERS = "adagrad | adam | adamw | muon | nadam | radam | rmsprop | sgd"
