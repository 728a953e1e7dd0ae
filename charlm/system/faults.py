"""Turn Pydantic's validation errors into lines that a person can act on: where, found, allowed, nearest key."""

import difflib
import functools
import json
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from charlm.system.number import plain

Path = tuple[str | int, ...]
Schema = dict[str, Any]
Written = dict[Path, str]
"""The file or setting that wrote the value at a path, and all below it that have no entry of their own."""
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


def fault_lines(error: ValidationError, schema: Schema, raw: Any, written: Written, above: Path = ()) -> list[str]:
    """One line per fault, at most MAX_FAULTS, in the order of the JSON Schema; unknown keys come last in a section.

    above: the path of the section `raw`.
    """
    lines: dict[str, None] = {}  # an ordered set
    faults = error.errors()
    for fault in faults[:MAX_FAULTS]:
        path, value, node = _follow(fault["loc"], raw, schema)
        key, text = _explain(fault, path, value, node, schema)
        path = (*above, *path, *key)
        name = ".".join(map(str, path))
        lines[f"{written_at(path, written)}: {f'{name}: ' if name else ''}{text}"] = None
    more = [f"{written[()]}: and {len(faults) - MAX_FAULTS} more"] if len(faults) > MAX_FAULTS else []
    return [*lines, *more]


def written_at(path: Path, written: Written) -> str:
    """The file or setting that wrote the value at a path."""
    return next(written[path[:end]] for end in range(len(path), -1, -1) if path[:end] in written)


@functools.cache
def json_schema(model: type[BaseModel]) -> Schema:
    """The JSON Schema of a model, with the definition in place of each reference."""
    schema = model.model_json_schema()

    def inlined(node: Any) -> Any:
        if isinstance(node, list):
            return [inlined(each) for each in node]
        if isinstance(node, str) and node.startswith("#/$defs/"):
            return inlined(schema["$defs"][node.removeprefix("#/$defs/")])
        if not isinstance(node, dict):
            return node
        definition = inlined(node["$ref"]) if "$ref" in node else {}
        return definition | {key: inlined(value) for key, value in node.items() if key not in ("$ref", "$defs")}

    return inlined(schema)


def _follow(loc: Sequence[str | int], raw: Any, node: Schema) -> tuple[Path, Any, Schema]:
    """Follow Pydantic's location: the path in the file, the value there, and the JSON Schema of option or section."""
    path: list[str | int] = []
    value = raw
    for key in loc:
        if isinstance(value, int | float):  # a number in place of a section: dropout allows it
            break
        path.append(key)
        try:
            value = value[key]
        except (LookupError, TypeError):
            value = _MISSING
        child = node.get("properties", {}).get(key) or (node["prefixItems"][0] if "prefixItems" in node else None)
        node = node if child is None else _of_section(child, value)
    return tuple(path), value, node


def _of_section(node: Schema, value: Any) -> Schema:
    """The JSON Schema of a section that has the kind of `value`; of an option that is no section, the same."""
    if not isinstance(value, dict):
        return node
    if "discriminator" in node:
        tag = node["discriminator"]["propertyName"]
        kind = value.get(tag, node["default"][tag])
        return node["discriminator"]["mapping"].get(kind, node) if isinstance(kind, str) else node
    return next((branch for branch in node.get("anyOf", []) if "properties" in branch), node)


_MISSING: Any = object()


def _explain(fault: Any, path: Path, value: Any, node: Schema, schema: Schema) -> tuple[Path, str]:
    """The faulty key below `path`, if the fault lies below it, and what is wrong."""
    kind = fault["type"]
    if kind == "extra_forbidden":
        known = list(node.get("properties", {}))
        here = ".".join(map(str, path))  # an option of other kinds
        elsewhere = next((option for option in options_named(str(path[-1]), schema) if option != here), "")
        hint = f"; did you mean {elsewhere!r}?" if elsewhere else nearest(path[-1], known)
        return (), f"unknown key; allowed: {', '.join(known)}{hint}"
    if kind == "value_error":  # from our validators: "key: found …; allowed: …", or without the key
        key, colon, text = str(fault["ctx"]["error"]).partition(": found ")
        return (tuple(key.split(".")), f"found {text}") if colon else ((), key)
    if kind == "union_tag_not_found":
        tag, allowed = node["discriminator"]["propertyName"], list(node["discriminator"]["mapping"])
        tag_value = value.get(tag, _MISSING)
        return (tag,), f"found {show(tag_value)}; allowed: {' | '.join(allowed)}{nearest(tag_value, allowed)}"
    if kind == "string_unicode":  # the value or the key itself
        return (), f"found {show(fault['input'])}, which is not Unicode text; allowed: UTF-8"
    choices = [choice for choice in _choices(node) if isinstance(choice, str)]
    return (), f"found {show(value)}; allowed: {allowed_text(node)}{nearest(value, choices)}"


def options_named(name: str, schema: Schema, above: Path = ()) -> Iterator[str]:
    """The dotted paths of the options of this name; of a section with kinds, the path of its kind."""
    kinds = schema.get("discriminator", {}).get("mapping", {})
    for section in (schema, *kinds.values(), *schema.get("anyOf", ())):
        for key, node in section.get("properties", {}).items():
            path = (*above, key)
            if key == name:
                tag = node.get("discriminator", {}).get("propertyName")
                yield ".".join(map(str, (*path, tag) if tag else path))
            yield from options_named(name, node, path)


def nearest(value: Any, known: Sequence[str]) -> str:
    """A hint at the known name that is most like a value; "" if none is."""
    is_short = isinstance(value, str) and len(value) < 100  # difflib takes seconds for 10 MB
    near = difflib.get_close_matches(value.lower(), known, n=1, cutoff=0.5) if is_short else []
    return f"; did you mean {near[0]!r}?" if near else ""


def _choices(node: Schema) -> list[Any]:
    return [node["const"]] if "const" in node else node.get("enum", node.get("examples", []))


def allowed_text(node: Schema) -> str:
    """Describe in words what a JSON Schema node allows."""
    if "anyOf" in node:
        return " or ".join(map(allowed_text, node["anyOf"]))
    if choices := _choices(node):
        return " | ".join(map(str, choices))
    if "discriminator" in node:
        return f"a section with {node['discriminator']['propertyName']}"
    if "minItems" in node:
        return f"a list of {node['minItems']}: {allowed_text(node['prefixItems'][0])} each"
    if node.get("minLength"):
        return "text that is not empty"
    bounds = [sign.format(plain(node[key])) for key, sign in _BOUNDS.items() if key in node]
    return " ".join([_TYPES.get(node.get("type", ""), "another value"), " and ".join(bounds)]).strip()


def show(value: Any) -> str:
    if value is _MISSING:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
