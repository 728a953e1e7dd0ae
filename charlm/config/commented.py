"""A config as YAML for people: what differs from the defaults, with comments."""

from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

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
    return "\n".join([*lines, *_section(config, "", comments, "")]) + "\n"


def _section(section: BaseModel, prefix: str, comments: Mapping[str, str], indent: str) -> list[str]:
    lines: list[str] = []
    for name, field in type(section).model_fields.items():
        key, value = f"{prefix}{name}", getattr(section, name)
        if key not in comments and not _says_something(section, name, field):
            continue
        if isinstance(value, BaseModel) and key not in comments:
            below = _section(value, f"{key}.", comments, f"{indent}  ")
            lines += [f"{indent}{name}:", *below] if below else []
        else:
            text = f"{indent}{name}: {dump_flow(_plain(value, key, comments))}"
            comment = comments.get(key)
            lines.append(f"{text:<{_COLUMN - 1}} # {one_line(comment)}" if comment else text)
    return lines


def _plain(value: Any, key: str, comments: Mapping[str, str]) -> Any:
    """The value for YAML; of a section only what differs from the defaults or has a comment."""
    if not isinstance(value, BaseModel):
        return list(value) if isinstance(value, tuple) else value
    return {
        name: _plain(getattr(value, name), f"{key}.{name}", comments)
        for name, field in type(value).model_fields.items()
        if f"{key}.{name}" in comments or _says_something(value, name, field)
    }


def _says_something(section: BaseModel, name: str, field: FieldInfo) -> bool:
    """Whether an option differs from its default, or names the kind of its section."""
    names_kind = get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1
    return names_kind or field.is_required() or getattr(section, name) != field.get_default(call_default_factory=True)
