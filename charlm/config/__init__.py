"""The config of a run: read from YAML, changed by overrides, and checked as a whole."""

import contextlib
import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from charlm.config.cells import Cell
from charlm.config.faults import fault_lines, show
from charlm.config.optimizers import Optimizer, Schedule
from charlm.config.schema import Config
from charlm.config.shipped import find_config, nearest_configs
from charlm.config.yaml import dump_yaml, load_yaml
from charlm.errors import ConfigError

__all__ = [
    "Config",
    "differences",
    "dump_config",
    "flatten",
    "ignored_options",
    "load_config",
    "override_config",
    "parse_config",
    "read_config_file",
]

# Ten times the longest useful config. PyYAML takes a second and 50 MB for this size, and time and memory grow with it.
MAX_BYTES = 100_000
_ALLOWED = "allowed: a YAML file, or a name from `charlm config list`"
MAX_DEPTH = 8  # parts of an override's KEY; the schema has at most three


def load_config(file: Path, overrides: Iterable[str] = ()) -> Config:
    """Read a config file, or the shipped config of this name, and apply `a.b=VALUE` overrides.

    The ConfigError names all faults at once.
    """
    return parse_config(read_config_file(file), str(file), overrides)


def read_config_file(file: Path) -> Any:
    """Read a file or shipped config as YAML; ConfigError if it cannot be read or is not YAML."""
    try:
        with find_config(file).open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        near = " or ".join(map(repr, nearest_configs(file)))
        hint = f"; did you mean {near}?" if near else ""
        raise ConfigError(f"{file}: found no such file; {_ALLOWED}{hint}") from None
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}; {_ALLOWED}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{file}: found more than {MAX_BYTES} bytes; allowed: a YAML config")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{file}: found byte 0x{data[error.start]:02x} at offset {error.start}, which is not UTF-8; allowed: UTF-8"
        ) from None
    return load_yaml(text, str(file))


def parse_config(raw: Any, where: str, overrides: Iterable[str] = ()) -> Config:
    """Make a config of a YAML value that was read from `where`; the value itself is not changed."""
    raw = {} if raw is None else copy.deepcopy(raw)
    if not isinstance(raw, dict):
        raise ConfigError(f"{where}: found {type(raw).__name__}; allowed: sections such as data:, model:, train:")
    origin: dict[tuple[str | int, ...], str] = {(): where}
    faults: list[str] = []
    for override in overrides:
        try:
            path, value = _parse_override(override)
            made = _set(raw, path, value, override)
        except ConfigError as error:
            faults += error.faults
            continue
        origin = {written: by for written, by in origin.items() if written[: len(path)] != path}
        origin |= dict.fromkeys(made, f"--set {override}")
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        faults += fault_lines(error, Config, raw, origin)
    else:
        if not faults:
            return config
    raise ConfigError(*faults)


def override_config(config: Config, where: str, overrides: Iterable[str]) -> Config:
    """Apply overrides to a config from `where`. A section that changes its kind keeps only shared options."""
    raw = config.model_dump(mode="json")
    overrides = list(overrides)
    for override in overrides:
        with contextlib.suppress(ConfigError):  # parse_config reports it with the other faults
            path, kind = _parse_override(override)
            if path not in _KINDS:
                continue
            section = raw
            for key in path[:-1]:
                section = section[key]
            if kind != section[path[-1]]:
                for key in section.keys() - _KINDS[path].model_fields.keys():
                    del section[key]
    return parse_config(raw, where, overrides)


_KINDS = {
    ("model", "cell", "kind"): Cell,
    ("optimizer", "name"): Optimizer,
    ("optimizer", "schedule", "name"): Schedule,
}


def ignored_options(config: Config) -> list[str]:
    """One line for each option that is set but has no effect."""
    model, dropout = config.model, config.model.dropout
    between_layers = dropout.between_layers if model.layers > 1 else 0
    found = []
    if model.layers == 1 and model.residual:
        found.append("model.residual: found true, which has no effect with one layer; set model.layers above 1")
    # Equal values may come from a single number, which sets both places.
    if model.layers == 1 and dropout.between_layers not in (0, dropout.output):
        found.append(
            f"model.dropout.between_layers: found {dropout.between_layers:g}, which has no effect with one layer; "
            "set model.layers above 1"
        )
    if dropout.variational and not (dropout.embedding or dropout.input or between_layers or dropout.output):
        found.append(
            "model.dropout.variational: found true, which has no effect without dropout; "
            "set embedding, input, output, or between_layers with 2 layers or more"
        )
    if config.data.unit == "line" and config.train.read_share < 1:
        found.append(
            f"train.read_share: found {config.train.read_share:g}, which has no effect with data.unit: line; "
            "lines come in random order"
        )
    return found


def dump_config(config: Config) -> str:
    """Write a config as YAML text, with every option."""
    return dump_yaml(config.model_dump(mode="json"))


def differences(old: Config, new: Config) -> dict[str, tuple[Any, Any]]:
    """The options that differ: {"train.max_steps": (2000, 4000)}."""
    before, after = flatten(old), flatten(new)
    keys = list(dict.fromkeys([*before, *after]))
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def flatten(config: Config) -> dict[str, Any]:
    """Every option by its dotted path: {"train.max_steps": 2000, …}."""
    return _flatten(config.model_dump(mode="json"), "")


def _flatten(section: dict[str, Any], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in section.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _parse_override(override: str) -> tuple[tuple[str, ...], Any]:
    if len(override) > MAX_BYTES:
        raise ConfigError(f"--set {override[:60]}...: found {len(override)} characters; allowed: {MAX_BYTES}")
    key, equals, text = override.partition("=")
    path = tuple(key.strip().split("."))
    if not equals or not all(path) or len(path) > MAX_DEPTH:
        raise ConfigError(f"--set {override}: found no KEY=VALUE; allowed: for example --set train.max_steps=500")
    return path, load_yaml(text, f"--set {override}")


def _set(raw: dict[str, Any], path: tuple[str, ...], value: Any, override: str) -> list[tuple[str, ...]]:
    """Set the value at `path`; return the paths it created: its own, and those of missing sections above it."""
    section, made = raw, [path]
    for depth, key in enumerate(path[:-1], start=1):
        if section.get(key) is None:
            section[key] = {}
            made.append(path[:depth])
        section = section[key]
        if not isinstance(section, dict):
            raise ConfigError(
                f"--set {override}: found {'.'.join(path[:depth])}: {show(section)}, which has no keys; "
                f"allowed: --set {'.'.join(path[:depth])}=VALUE"
            )
    section[path[-1]] = value
    return made
