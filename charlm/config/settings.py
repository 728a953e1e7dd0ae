"""Settings: options by their dotted paths, which change a config, as people type them and as programs give them."""

from collections.abc import Iterable, Mapping
from typing import Any

from charlm.config.listing import flatten
from charlm.config.optimizers import OPTIMIZERS, SCHEDULES
from charlm.config.schema import CELL_KINDS
from charlm.config.yaml import load_yaml
from charlm.errors import ConfigError

Settings = Mapping[str, Any]
"""Options by their dotted paths: {"train.max_steps": 500}; see `merged`."""
KINDS = {"model.cell": CELL_KINDS, "optimizer": OPTIMIZERS, "optimizer.schedule": SCHEDULES}
"""The sections that have kinds."""
_MOST_PARTS = 8
"""Of a KEY; the schema has at most three."""


def read_settings(texts: Iterable[str]) -> dict[str, Any]:
    """The settings that a person typed as KEY=VALUE; ConfigError with a line for each text that is none."""
    settings: list[Settings] = []
    faults: list[str] = []
    for text in texts:
        key, equals, value = text.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(parts) or len(parts) > _MOST_PARTS:
            faults.append(f"--set {text}: found no KEY=VALUE; allowed: for example --set train.max_steps=500")
            continue
        try:
            settings.append({key.strip(): load_yaml(value, f"--set {text}")})
        except ConfigError as error:
            faults += error.faults
    if faults:
        raise ConfigError(*faults)
    return merged(*settings)


def merged(*settings: Settings) -> dict[str, Any]:
    """One mapping of several; later ones win. A section becomes its options, unless it names its kind."""
    options: dict[str, Any] = {}
    for each in settings:
        given = flatten(each, whole=KINDS)
        for section, kinds in KINDS.items():
            if isinstance(given.get(section), dict) and kinds.tag not in given[section]:
                given |= flatten(given.pop(section), f"{section}.", whole=KINDS)
        for key, value in given.items():
            for replaced in [name for name in options if f"{name}.".startswith(f"{key}.")]:
                del options[replaced]
            options[key] = value
    return options
