"""The options of a config: listed, compared, written."""

import re
from collections.abc import Container, Mapping
from typing import Any

from charlm.cells.cell import same_file
from charlm.config.schema import Config
from charlm.config.yaml import dump_flow, dump_yaml
from charlm.system.faults import show
from charlm.system.section import Section


def ignored_options(config: Config) -> list[str]:
    """One line for each option that is set but has no effect."""
    model, values = config.model, flatten(config)
    ignored: dict[str, str] = {}
    if model.layers == 1:
        ignored["model.residual"] = "with one layer; set model.layers above 1"
    if not model.cell.program(square=True).recurrent():
        for key in ("model.dropout.state", "model.dropout.weights", "model.orthogonal"):
            ignored[key] = f"with cell.kind: {model.cell.name}; it has no recurrent matrices"
    return [
        f"{key}: found {show(values[key])}, which has no effect {reason}"
        for key, reason in ignored.items()
        if values[key]
    ]


def dump_config(config: Config) -> str:
    """Write a config as YAML text, with every option."""
    return dump_yaml(config.model_dump(mode="json"))


def commented(section: Section, indent: str = "") -> str:
    """The options that differ from their defaults as YAML, each with the first sentence of its help."""
    text = ""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        below = commented(value, f"{indent}  ") if isinstance(value, Section) else ""
        if below:
            text += f"{indent}{name}:\n{below}"
        elif isinstance(value, Section) or name in ("kind", "name") or value != field.default:
            line = f"{indent}{name}: {dump_flow({} if isinstance(value, Section) else value)}"
            help = " ".join((field.description or "").split())
            text += f"{line:<35} # {_SENTENCE_END.split(help)[0].rstrip('.')}\n"
    return text


_SENTENCE_END = re.compile(r"(?<!\bet al)\. ")


def differences(old: Config, new: Config) -> dict[str, tuple[Any, Any]]:
    """The options that differ: {"train.max_steps": (2000, 4000)}; of cells of different kinds only the kind."""
    before, after = flatten(old), flatten(new)
    kinds = old.model.cell.kind, new.model.cell.kind
    is_other_cell = kinds[0] != kinds[1] and not same_file(*kinds)
    different = {}
    for key in before | after:
        if is_other_cell and key.startswith("model.cell.") and key != "model.cell.kind":
            continue
        if before.get(key) != after.get(key):
            different[key] = before.get(key), after.get(key)
    return different


def flatten(values: Config | Mapping[str, Any], prefix: str = "", whole: Container[str] = ()) -> dict[str, Any]:
    """Every option of a config or a mapping by its dotted path: {"train.max_steps": 2000, …}.

    whole: the paths of sections that stay sections.
    """
    if isinstance(values, Config):
        values = values.model_dump(mode="json")
    flat: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and key not in whole:
            flat |= flatten(value, f"{key}.", whole)
        else:
            flat[key] = value
    return flat
