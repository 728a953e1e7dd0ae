"""The table of all options, generated from the schema."""

import json
from collections.abc import Iterator
from typing import Any

from charlm.config.faults import allowed_text, referred
from charlm.config.schema import Config

Schema = dict[str, Any]


def options_table() -> str:
    """A Markdown table: key, default, allowed, meaning. If only some kinds have an option, its meaning names them."""
    lines = ["| option | default | allowed | meaning |", "|---|---|---|---|"]
    schema = Config.model_json_schema()
    for key, default, allowed, meaning in _section(schema, schema, "", ""):
        cells = [f"`{key}`", f"`{default}`" if default else "", allowed.replace("|", "\\|"), meaning]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _section(node: Schema, schema: Schema, prefix: str, note: str) -> Iterator[tuple[str, ...]]:
    for name, child in node["properties"].items():
        yield from _option(f"{prefix}{name}", child, schema, note)


def _option(key: str, node: Schema, schema: Schema, note: str) -> Iterator[tuple[str, ...]]:
    meaning = " ".join(node.get("description", "").split())  # a row is one line
    if "discriminator" in node:
        yield from _union(key, node, schema)
        return
    target = referred(node["$ref"], schema) if "$ref" in node else node
    section = next((branch for branch in target.get("anyOf", [target]) if "properties" in branch), None)
    if section is None:
        default = json.dumps(node["default"], ensure_ascii=False) if "default" in node else ""
        yield key, default, allowed_text(node, schema), note + meaning
        return
    if section is not target:  # a number is allowed in place of the section
        yield key, "", allowed_text(target, schema), meaning
    yield from _section(section, schema, f"{key}.", note)


def _union(key: str, node: Schema, schema: Schema) -> Iterator[tuple[str, ...]]:
    """A row for the tag, then rows for the options of each branch; equal options share a row."""
    mapping, tag = node["discriminator"]["mapping"], node["discriminator"]["propertyName"]
    values: dict[str, list[str]] = {}
    for value, reference in mapping.items():
        values.setdefault(reference, []).append(value)
    sections = {", ".join(same): referred(reference, schema)["properties"] for reference, same in values.items()}
    kinds = "; ".join(f"{same}: {options[tag]['description'].rstrip('.')}" for same, options in sections.items())
    yield f"{key}.{tag}", json.dumps(node["default"][tag]), " | ".join(mapping), f"{node['description']} {kinds}."
    listed: list[tuple[str, Schema]] = []
    for options in sections.values():
        for name, child in options.items():
            if name == tag or (name, child) in listed:
                continue
            listed.append((name, child))
            owners = [same for same, others in sections.items() if others.get(name) == child]
            note = "" if len(owners) == len(sections) else f"({', '.join(owners)}) "
            yield from _option(f"{key}.{name}", child, schema, note)
