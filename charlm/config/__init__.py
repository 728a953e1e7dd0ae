"""The config of a run: read from YAML, checked as a whole, with overrides through the same checks."""

import contextlib
import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from charlm.config.faults import fault_lines, show
from charlm.config.schema import Cell, Config, Optimizer, Schedule
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

# Ten times the longest that has a use. PyYAML needs a second and 50 MB for this much, and more than that in proportion.
MAX_BYTES = 100_000
_ALLOWED = "allowed: a YAML file, or a name from `charlm config list`"
MAX_DEPTH = 8  # parts of the KEY in an override; the schema has at most three


def load_config(file: Path, overrides: Iterable[str] = ()) -> Config:
    """A file, or the shipped config of this name, with `a.b=VALUE` overrides; ConfigError names every fault at once."""
    return parse_config(read_config_file(file), str(file), overrides)


def read_config_file(file: Path) -> Any:
    """The YAML value of a file or shipped config; ConfigError if it cannot be read or is no YAML."""
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
            f"{file}: found byte 0x{data[error.start]:02x} at offset {error.start}, which is no UTF-8; allowed: UTF-8"
        ) from None
    return load_yaml(text, str(file))


def parse_config(raw: Any, where: str, overrides: Iterable[str] = ()) -> Config:
    """The config of a YAML value read from `where`; the value itself is not changed."""
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
    """A config from `where` with overrides; a section that gets another kind keeps what all its kinds have."""
    raw = config.model_dump(mode="json")
    overrides = list(overrides)
    for override in overrides:
        with contextlib.suppress(ConfigError):  # parse_config names it with the others
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
    """What the config sets without any effect, a line each."""
    model, dropout = config.model, config.model.dropout
    between_layers = dropout.between_layers if model.layers > 1 else 0
    found = []
    if model.layers == 1 and model.residual:
        found.append("model.residual: found true, which one layer has no use for; set model.layers above 1")
    # Not where a single number, which stands for both, may have set it.
    if model.layers == 1 and dropout.between_layers not in (0, dropout.output):
        found.append(
            f"model.dropout.between_layers: found {dropout.between_layers:g}, which one layer has no use for; "
            "set model.layers above 1"
        )
    if dropout.variational and not (dropout.embedding or dropout.input or between_layers or dropout.output):
        found.append(
            "model.dropout.variational: found true, without dropout that it could keep the masks of; "
            "set that of embedding, input, output, or between_layers of 2 layers or more"
        )
    return found


def dump_config(config: Config) -> str:
    """The YAML text of a config with every option written out."""
    return dump_yaml(config.model_dump(mode="json"))


def differences(old: Config, new: Config) -> dict[str, tuple[Any, Any]]:
    """Options that differ, as {"train.max_steps": (2000, 4000)}."""
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
    """Put a value in its place; the paths that this made: its own, and those of sections that were not there."""
    section, made = raw, [path]
    for depth, key in enumerate(path[:-1], start=1):
        if section.get(key) is None:
            section[key] = {}
            made.append(path[:depth])
        section = section[key]
        if not isinstance(section, dict):
            raise ConfigError(
                f"--set {override}: found {'.'.join(path[:depth])} to be {show(section)}, which has no keys; "
                f"allowed: --set {'.'.join(path[:depth])}=VALUE"
            )
    section[path[-1]] = value
    return made
