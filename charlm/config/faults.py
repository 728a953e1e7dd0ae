"""Turn Pydantic's validation errors into lines that a person can act on: where, found, allowed, nearest key."""

import difflib
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

Path = tuple[str | int, ...]
MAX_FAULTS = 100
_BOUNDS = {"minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "exclusiveMaximum": "< {}"}
_TYPES = {
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "string": "text",
    "object": "a section",
    "null": "null",
}


def fault_lines(error: ValidationError, model: type[BaseModel], raw: Any, origin: Mapping[Path, str]) -> list[str]:
    """One line per fault, at most MAX_FAULTS, in the order of the schema; unknown keys come last in a section.

    `origin` maps a path to where its value was written: a file or --set. The longest matching prefix counts.
    """
    schema = _schema(model)
    lines: dict[str, None] = {}  # an ordered set
    faults = error.errors()
    for fault in faults[:MAX_FAULTS]:
        path, value, node = _follow(fault["loc"], raw, schema)
        key, text = _explain(fault, path, value, node, schema)
        path += key
        name = ".".join(map(str, path))
        lines[f"{written_at(path, origin)}: {f'{name}: ' if name else ''}{text}"] = None
    more = [f"{origin[()]}: and {len(faults) - MAX_FAULTS} more"] if len(faults) > MAX_FAULTS else []
    return [*lines, *more]


def written_at(path: Path, origin: Mapping[Path, str]) -> str:
    """Where the value at a path was written: in the file, or in an override."""
    return origin[max((p for p in origin if path[: len(p)] == p), key=len)]


@functools.cache
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()


def _follow(loc: Sequence[str | int], raw: Any, schema: dict[str, Any]) -> tuple[Path, Any, dict[str, Any]]:
    """Follow Pydantic's location: the path in the file, the value there and the JSON Schema of the option.

    Pydantic puts the tag of a union into its locations (cell.rhn.dept); the file has no such key. For an unknown key,
    return the JSON Schema of its section.
    """
    path: list[str | int] = []
    value, node, tag = raw, _resolve(schema, raw, schema), None
    for key in loc:
        if tag is not None and key == tag:
            tag = None
            continue
        if isinstance(value, int | float):  # a number in place of a section: dropout allows it
            break
        path.append(key)
        value = value[key] if _holds(value, key) else _MISSING
        if isinstance(key, str) and key in node.get("properties", {}):
            tag = _tag(node["properties"][key], value)
            node = _resolve(node["properties"][key], value, schema)
        elif isinstance(key, int) and key < len(node.get("prefixItems", ())):
            node = _resolve(node["prefixItems"][key], value, schema)
    return tuple(path), value, node


_MISSING: Any = object()


def _holds(value: Any, key: str | int) -> bool:
    return (isinstance(value, dict) and key in value) or (
        isinstance(value, list) and isinstance(key, int) and key < len(value)
    )


def _resolve(node: dict[str, Any], value: Any, schema: dict[str, Any]) -> dict[str, Any]:
    """Follow the reference of `node`, and choose the branch of a union by the tag in `value`."""
    while "$ref" in node:
        node = referred(node["$ref"], schema)
    if "anyOf" in node and isinstance(value, dict):
        node = next((branch for branch in node["anyOf"] if "properties" in branch), node)
    tag = _tag(node, value)
    if isinstance(tag, str) and tag in node["discriminator"]["mapping"]:
        return referred(node["discriminator"]["mapping"][tag], schema)
    return node


def referred(reference: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The definition that a reference of the schema names."""
    return schema["$defs"][reference.rpartition("/")[2]]


def _tag(node: dict[str, Any], value: Any) -> Any:
    """The tag in `value`, or the default tag, which chooses the branch of a union; None if `node` is no union."""
    if "discriminator" not in node or not isinstance(value, dict):
        return None
    name = node["discriminator"]["propertyName"]
    return value.get(name, node["default"][name])


def _explain(fault: Any, path: Path, value: Any, node: dict[str, Any], schema: dict[str, Any]) -> tuple[Path, str]:
    """The faulty key below `path`, if the fault lies below it, and what is wrong."""
    kind = fault["type"]
    if kind == "extra_forbidden":
        known = list(node.get("properties", {}))
        return (), f"unknown key; allowed: {', '.join(known)}{_nearest(path[-1], known)}"
    if kind == "value_error":  # from our validators: "key: found …; allowed: …", or without the key
        key, colon, text = str(fault["ctx"]["error"]).partition(": found ")
        return (tuple(key.split(".")), f"found {text}") if colon else ((), key)
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        tag, allowed = node["discriminator"]["propertyName"], list(node["discriminator"]["mapping"])
        found = value.get(tag, _MISSING)
        return (tag,), f"found {show(found)}; allowed: {' | '.join(allowed)}{_nearest(found, allowed)}"
    if kind == "string_unicode":  # the value or the key itself
        return (), f"found {show(fault['input'])}, which is not Unicode text; allowed: UTF-8"
    text = f"found {show(value)}; allowed: {allowed_text(node, schema)}"
    return (), text + _nearest(value, [choice for choice in _choices(node) if isinstance(choice, str)])


def _nearest(found: Any, known: Sequence[str]) -> str:
    is_short = isinstance(found, str) and len(found) < 100  # difflib takes seconds for 10 MB
    near = difflib.get_close_matches(found, known, n=1, cutoff=0.5) if is_short else []
    return f"; did you mean {near[0]!r}?" if near else ""


def _choices(node: dict[str, Any]) -> list[Any]:
    return [node["const"]] if "const" in node else node.get("enum", node.get("examples", []))


def allowed_text(node: dict[str, Any], schema: dict[str, Any]) -> str:
    """Describe in words what a JSON Schema node allows."""
    node = _resolve(node, None, schema)
    if "anyOf" in node:
        return " or ".join(allowed_text(branch, schema) for branch in node["anyOf"])
    if choices := _choices(node):
        return " | ".join(map(str, choices))
    if "discriminator" in node:
        return f"a section with {node['discriminator']['propertyName']}"
    if node.get("type") == "array":
        return f"a list of {node['minItems']}: {allowed_text(node['prefixItems'][0], schema)} each"
    if node.get("minLength"):
        return "text that is not empty"
    bounds = [text.format(_plain(node[key])) for key, text in _BOUNDS.items() if key in node]
    return " ".join([_TYPES[node["type"]], " and ".join(bounds)]).strip()


def _plain(bound: float) -> float:
    """Write 1.0 as 1: Pydantic's versions differ in how they write bounds."""
    return int(bound) if bound == int(bound) else bound


def show(value: Any) -> str:
    if value is _MISSING:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
