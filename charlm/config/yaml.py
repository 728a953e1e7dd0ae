"""Read and write YAML as people expect it. Aliases, tags and duplicate keys are errors.

PyYAML alone reads 3e-4 as text, 010 as 8, no as false and 1:30 as 90, and keeps the last of two equal keys.
"""

import math
import re
from typing import Any

import yaml

from charlm.errors import ConfigError
from charlm.system.formatting import CONTROLS, escaped, what_to_type

_PATTERNS = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+",
    "float": r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?",
}
"""Plain text that is no string, by type."""
MAX_DIGITS = 100
_MOST_SHOWN = 100
"""Characters of a line that an error quotes."""


def _fault(fault: str, at: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=f"found {fault}", problem_mark=at.start_mark)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {}  # noqa: RUF012

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            raise _fault("an alias (*name); write the value out", event)
        if event.tag is not None:
            raise _fault("a tag (!name); write the plain value", event)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if not isinstance(key, str):
                raise _fault("a list or section as a key", key_node)
            if key_node.tag != "tag:yaml.org,2002:str":
                raise _fault(f"key {key}, which is not text", key_node)
            if key in keys:
                raise _fault(f"key {key!r} twice in one section", key_node)
            keys.add(key)
        return super().construct_mapping(node, deep=True)

    def construct_int(self, node: Any) -> int:
        text = self.construct_scalar(node)
        if len(text) > MAX_DIGITS:  # Python refuses to write out integers of more than 4300 digits
            raise _fault(f"an integer of {len(text)} characters", node)
        return int(text)


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers = {}  # noqa: RUF012

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_float(dumper: yaml.SafeDumper, value: float) -> yaml.ScalarNode:
    # repr is the shortest text that `load_yaml` reads back as the same number. To other readers 1e-08 is no number.
    assert math.isfinite(value)
    mantissa, e, exponent = repr(value).partition("e")
    if e and "." not in mantissa:
        mantissa += ".0"
    return dumper.represent_scalar("tag:yaml.org,2002:float", mantissa + e + exponent)


def _represent_str(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    # Only the double-quoted style has escapes; the others turn Unicode line separators into spaces.
    style = '"' if "\n" in value or CONTROLS.search(value) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style)


for _type, _pattern in _PATTERNS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_type}", re.compile(rf"(?:{_pattern})\Z"), None)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_int)
_Dumper.add_representer(float, _represent_float)
_Dumper.add_representer(str, _represent_str)


def load_yaml(text: str, where: str) -> Any:
    """Read one YAML document; the ConfigError names `where`, line and column."""
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark, problem = error.problem_mark, (error.problem or "found no YAML").removeprefix("but ")
        if error.context_mark and error.context == "while scanning a quoted scalar":
            mark, problem = error.context_mark, "found a quote without its end"
        location = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        for line in text.split("\n")[mark.line : mark.line + 1] if mark else []:
            if what_to_type(line):
                problem += f" in {line.strip()[:_MOST_SHOWN]}"
        raise ConfigError(f"{where}: {location}{problem}; allowed: plain YAML") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: {' '.join(str(error).split())}; allowed: plain YAML in UTF-8") from None
    except RecursionError:
        raise ConfigError(f"{where}: nested too deeply; allowed: the sections of `charlm config schema`") from None


def dump_yaml(value: Any, *, flow: bool = False) -> str:
    """Write YAML text that `load_yaml` reads back as the same value."""
    width = math.inf if flow else 110
    text = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=width, default_flow_style=flow)
    return escaped(text)


def dump_flow(value: Any) -> str:
    """The same on one line."""
    return dump_yaml(value, flow=True).removesuffix("\n").removesuffix("\n...")
