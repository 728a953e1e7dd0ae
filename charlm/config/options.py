"""The table of all options, generated from the schema."""

import json
from collections.abc import Iterator
from typing import Any

from charlm.config.faults import allowed_text
from charlm.config.schema import Config


def options_table() -> str:
    """A Markdown table: key, default, allowed, meaning. If only some kinds have an option, its meaning names them."""
    lines = ["| option | default | allowed | meaning |", "|---|---|---|---|"]
    for key, default, allowed, meaning in _rows(Config.model_json_schema()):
        cells = [f"`{key}`", f"`{default}`" if default else "", allowed.replace("|", "\\|"), meaning]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _rows(schema: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    yield from _section(schema, schema, "", "")


def _section(node: dict[str, Any], schema: dict[str, Any], prefix: str, note: str) -> Iterator[tuple[str, ...]]:
    for name, child in node["properties"].items():
        yield from _option(f"{prefix}{name}", child, schema, note)


def _option(key: str, node: dict[str, Any], schema: dict[str, Any], note: str) -> Iterator[tuple[str, ...]]:
    meaning = " ".join(node.get("description", "").split())  # a row is one line
    target = schema["$defs"][node["$ref"].rsplit("/", 1)[1]] if "$ref" in node else node
    if "discriminator" in node:
        yield from _union(key, node, schema)
        return
    section = next((branch for branch in target.get("anyOf", [target]) if "properties" in branch), None)
    if section is None:
        default = json.dumps(node["default"], ensure_ascii=False) if "default" in node else ""
        yield key, default, allowed_text(node, schema), note + meaning
        return
    if section is not target:  # a number is allowed in place of the section
        yield key, "", allowed_text(target, schema), meaning
    yield from _section(section, schema, f"{key}.", note)


def _union(key: str, node: dict[str, Any], schema: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """A row for the tag, then rows for the options of each branch; equal options share a row."""
    mapping = node["discriminator"]["mapping"]
    tag = node["discriminator"]["propertyName"]
    branches: dict[str, list[str]] = {}
    for value, reference in mapping.items():
        branches.setdefault(reference.rsplit("/", 1)[1], []).append(value)
    sections = {", ".join(values): schema["$defs"][name] for name, values in branches.items()}
    kinds = "; ".join(f"{values}: {s['properties'][tag]['description'].rstrip('.')}" for values, s in sections.items())
    default = json.dumps(node["default"][tag])
    yield f"{key}.{tag}", default, " | ".join(mapping), f"{node['description']} {kinds}."
    seen: list[tuple[str, dict[str, Any]]] = []
    for section in sections.values():
        for name, child in section["properties"].items():
            if name == tag or (name, child) in seen:
                continue
            seen.append((name, child))
            shared = all(other["properties"].get(name) == child for other in sections.values())
            owners = [v for v, other in sections.items() if other["properties"].get(name) == child]
            yield from _option(f"{key}.{name}", child, schema, "" if shared else f"({', '.join(owners)}) ")
