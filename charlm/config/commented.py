"""A config as YAML for people: what differs from the defaults, with comments."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from charlm.config.schema import Config
from charlm.config.yaml import dump_flow
from charlm.system.formatting import one_line

_COLUMN = 36


def commented_yaml(config: Config, heading: str, comments: Mapping[str, str]) -> str:
    """YAML text that `load_config` reads back as the same config.

    Leaves out options that keep their default, except those named in `comments`: option, or section to be written on
    one line → a comment, which may be "".
    """
    lines = [f"# {one_line(line)}" for line in heading.splitlines()]
    return "\n".join([*lines, *_lines(_shown(config, "", comments), "", comments, "")]) + "\n"


def _shown(section: BaseModel, prefix: str, comments: Mapping[str, str]) -> dict[str, Any]:
    """The options of a section that differ from their default, name the kind of the section, or have a comment."""
    shown = {}
    for name, field in type(section).model_fields.items():
        key, value = f"{prefix}{name}", getattr(section, name)
        if key in comments or name in ("kind", "name") or value != field.default:
            is_section = isinstance(value, BaseModel)
            shown[name] = _shown(value, f"{key}.", comments) if is_section else value
    return shown


def _lines(shown: dict[str, Any], prefix: str, comments: Mapping[str, str], indent: str) -> list[str]:
    lines: list[str] = []
    for name, value in shown.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and key not in comments:
            below = _lines(value, f"{key}.", comments, f"{indent}  ")
            lines += [f"{indent}{name}:", *below] if below else []
        else:
            text = f"{indent}{name}: {dump_flow(list(value) if isinstance(value, tuple) else value)}"
            comment = comments.get(key)
            lines.append(f"{text:<{_COLUMN - 1}} # {one_line(comment)}" if comment else text)
    return lines
